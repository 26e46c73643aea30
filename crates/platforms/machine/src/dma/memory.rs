//! A domain's memory, as devices reach it.

use std::ops::Range;
use std::sync::Weak;

use hypervisor::{DmaMemory, DomId, PageOwner, PageReferences, PageUser};
use shm::Region;

use crate::domain::Domain;
use crate::memory::MemorySize;

impl DmaMemory for Domain {
    fn region(&self) -> &Region {
        self.memory()
    }

    fn begin(&self) -> u8 {
        self.holds().begin()
    }

    fn end(&self, began: u8) {
        self.holds().end(began);
    }

    fn is_revoked(&self) -> bool {
        !self.is_alive()
    }
}

impl PageOwner for Domain {
    fn id(&self) -> DomId {
        Domain::id(self)
    }

    fn machine_pages(&self) -> Range<u64> {
        let MemorySize { pages, exchange_pages, .. } = self.size();
        let first = self.dma_pages().first();
        first..first + (pages + exchange_pages) as u64
    }

    fn is_alive(&self) -> bool {
        Domain::is_alive(self)
    }

    /// Its ordinary pages that are not out. Flips move pages of the exchange area without checking references,
    /// so no card may reach those.
    #[inline]
    fn owns(&self, page: usize) -> bool {
        page < self.size().pages && !self.balloon().is_out(page)
    }

    #[inline]
    fn references(&self) -> &PageReferences {
        self.dma_pages().references(self.size().pages)
    }

    fn attach(&self, user: Weak<dyn PageUser>) {
        self.dma_pages().attach(user, self.size().pages);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypervisor::{DmaHold, PAGE_SIZE};

    use crate::{Machine, MemorySize};

    #[test]
    fn pages_that_a_device_reads_are_not_given_up() {
        let machine = Machine::new();
        let domain = machine.create(MemorySize::default()).unwrap();
        let hold = DmaHold::new(domain.clone());
        assert!(domain.decrease_reservation(100..101).is_err(), "the device still reads");
        assert_eq!(domain.pages_out(), 0);
        drop(hold);
        domain.decrease_reservation(100..101).unwrap();
    }

    #[test]
    fn a_hold_outlives_its_domain_and_is_revoked() {
        let machine = Machine::new();
        let domain = machine.create(MemorySize::default()).unwrap();
        let (id, weak) = (domain.id(), Arc::downgrade(&domain));
        let hold = DmaHold::new(domain);
        hold.region().write(PAGE_SIZE, 7u8).unwrap();
        assert!(!hold.is_revoked());
        machine.destroy(id);
        assert!(hold.is_revoked());
        assert_eq!(hold.region().read::<u8>(PAGE_SIZE), Ok(7));
        drop(hold);
        assert!(weak.upgrade().is_none(), "the memory goes with the last hold");
    }
}
