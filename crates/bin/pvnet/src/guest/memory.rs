//! The guest's balloon: it has as much memory as the toolstack says.

use std::sync::Arc;

use hypervisor::PAGE_SIZE;
use machine::MachineGuest;
use machine::toolstack::MEMORY_TARGET;
use tracing::{info, warn};
use xenstore::{Store, StoreError};

/// KiB of a page.
const PAGE_KIB: usize = PAGE_SIZE / 1024;

/// Follows the target in the store.
pub(super) struct Balloon {
    guest: MachineGuest,
    store: Arc<dyn Store>,
    /// The target, in KiB, that was followed last.
    followed: usize,
}

impl Balloon {
    /// From now on the store's events tell of new targets too.
    pub(super) fn watch(guest: MachineGuest, store: Arc<dyn Store>) -> Result<Self, StoreError> {
        store.watch(MEMORY_TARGET, MEMORY_TARGET)?;
        let followed = guest.reservation() * PAGE_KIB;
        Ok(Self { guest, store, followed })
    }

    /// Has as much memory as the target says, or as near to it as may be. Each target is tried
    /// once: a guest whose memory is in use waits for the next.
    pub(super) fn follow(&mut self) {
        let target = self.store.read(None, MEMORY_TARGET).ok().and_then(|text| text.parse().ok());
        let Some(kib) = target.filter(|kib| *kib != self.followed) else { return };
        self.followed = kib;
        match self.guest.set_reservation(kib / PAGE_KIB) {
            Ok(()) => info!(kib, "memory"),
            Err(error) => warn!(%error, "memory"),
        }
    }
}
