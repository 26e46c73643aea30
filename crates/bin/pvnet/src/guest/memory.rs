//! The guest's balloon: it keeps the guest's memory at the toolstack's target.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hypervisor::PAGE_SIZE;
use machine::MachineGuest;
use machine::toolstack::MEMORY_TARGET;
use tracing::{info, warn};
use xenstore::{Store, StoreError};

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

    /// Sets the guest's memory to the target, or as near to it as possible. Each target is tried
    /// once: if too much memory is in use, the guest does not retry.
    ///
    /// Returns whether there is still a toolstack. A context shows no difference when the daemon has gone.
    fn follow(&mut self) -> bool {
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
            match self.guest.set_reservation(kib / PAGE_KIB) {
                Ok(()) => info!(kib, "memory"),
                Err(error) => warn!(%error, "memory"),
            }
        }
        is_there
    }
}
