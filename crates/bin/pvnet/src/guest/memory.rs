//! The guest's balloon: it keeps the guest's memory at the toolstack's target.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hypervisor::PAGE_SIZE;
use machine::toolstack::MEMORY_TARGET;
use machine::{BalloonError, MachineGuest};
use tracing::{info, warn};
use xenstore::{Store, StoreError};

use super::link::Link;
use super::links::Follow;

/// KiB of a page.
const PAGE_KIB: usize = PAGE_SIZE / 1024;

/// Follows the target in the store.
pub(super) struct Balloon {
    guest: MachineGuest,
    store: Arc<dyn Store>,
    /// The last target, in KiB.
    followed: usize,
}

impl Balloon {
    /// Watches the target in the store.
    pub(super) fn watch(guest: MachineGuest, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        store.watch(MEMORY_TARGET, MEMORY_TARGET)?;
        let followed = guest.reservation() * PAGE_KIB;
        Ok(Self { guest, store, followed })
    }
}

impl Follow for Balloon {
    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.store.event_fd())
    }

    /// Sets the guest's memory to the target, or as near to it as possible. If too little is free, the
    /// interfaces free pages that they send from. Each target is tried once: if too much memory is in
    /// use, the guest does not retry.
    ///
    /// Returns whether there is still a toolstack. A context shows no difference when the daemon has gone.
    fn follow(&mut self, links: &mut [Link]) -> bool {
        let is_there = loop {
            match self.store.event() {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let target = self.store.read(None, MEMORY_TARGET).ok().and_then(|text| text.parse().ok());
        if let Some(kib) = target.filter(|kib| *kib != self.followed) {
            self.followed = kib;
            let mut result = self.guest.set_reservation(kib / PAGE_KIB);
            if let Err(BalloonError::InUse { asked, kept }) = result
                && free_pages(links, (kept - asked) / PAGE_KIB) > 0
            {
                result = self.guest.set_reservation(kib / PAGE_KIB);
            }
            match result {
                Ok(()) => info!(kib, "memory"),
                Err(error) => warn!(%error, "memory"),
            }
        }
        is_there
    }
}

/// Frees at most `count` pages of the interfaces. Returns how many.
fn free_pages(links: &mut [Link], count: usize) -> usize {
    let mut freed = 0;
    for link in links {
        match link.free_pages(count - freed) {
            Ok(pages) => freed += pages,
            Err(error) => warn!(interface = link.name(), %error, "memory"),
        }
    }
    freed
}
