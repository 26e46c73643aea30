//! The guest's balloon: it keeps the guest's memory at the toolstack's target.

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

    /// Sets the guest's memory to the target, or as near to it as possible. Each target is tried
    /// once: if too much memory is in use, the guest does not retry.
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
