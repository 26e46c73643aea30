//! The card's side: from an I/O virtual address to a machine address.

use crate::PAGE_SIZE;
use crate::invalidation::Invalidation;
use crate::iotlb::{Geometry, Iotlb, IotlbCount};
use crate::responder::{Responder, Transfer};
use crate::table::Access;
use crate::table::ReadTable;

/// Why an address was not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FaultKind {
    /// The table has no entry for the page.
    #[error("outside the table")]
    Outside,
    /// Nothing is mapped there.
    #[error("not mapped")]
    NotMapped,
    /// The mapping does not permit this access.
    #[error("not permitted")]
    NotPermitted,
}

/// An access that the table does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{access:?} at {address:#x}: {kind}")]
pub struct Fault {
    /// The I/O virtual address.
    pub address: u64,
    /// What the card wanted to do.
    pub access: Access,
    /// Why it may not.
    pub kind: FaultKind,
}

/// The translation of one context, for one thread of the card.
#[derive(Debug)]
pub struct Translator<T, P> {
    table: T,
    iotlb: Iotlb,
    responder: Responder<P>,
}

impl<T: ReadTable, P: Invalidation> Translator<T, P> {
    /// A translation with an empty cache.
    pub fn new(table: T, words: P, geometry: Geometry) -> Self {
        Self { table, iotlb: Iotlb::new(geometry), responder: Responder::new(words) }
    }

    /// What the cache has counted.
    #[must_use]
    pub fn count(&self) -> IotlbCount {
        self.iotlb.count()
    }

    /// The machine address of an I/O virtual address. It is valid to the end of the page and until the
    /// transfer ends: an invalidation waits for that.
    ///
    /// # Errors
    /// The access is not allowed.
    #[inline]
    pub fn translate(&mut self, _: &Transfer, address: u64, access: Access) -> Result<u64, Fault> {
        let fault = |kind| Fault { address, access, kind };
        let page = (address / PAGE_SIZE)
            .checked_sub(self.table.first())
            .and_then(|page| u32::try_from(page).ok())
            .filter(|page| *page < self.table.pages())
            .ok_or(fault(FaultKind::Outside))?;
        let entry = match self.iotlb.lookup(page) {
            Some(entry) => entry,
            None => {
                let entry = self.table.load(page);
                if !entry.is_valid() {
                    return Err(fault(FaultKind::NotMapped));
                }
                self.iotlb.insert(page, entry);
                entry
            }
        };
        match entry.permits(access) {
            true => Ok(entry.machine_page() * PAGE_SIZE + address % PAGE_SIZE),
            false => Err(fault(FaultKind::NotPermitted)),
        }
    }

    /// See [`Responder::begin`].
    #[inline]
    pub fn begin(&mut self) -> Transfer {
        self.responder.begin()
    }

    /// See [`Responder::end`].
    #[inline]
    pub fn end(&mut self, transfer: Transfer) {
        self.responder.end(transfer);
    }

    /// See [`Responder::in_progress`].
    #[must_use]
    pub fn in_progress(&self) -> u32 {
        self.responder.in_progress()
    }

    /// See [`Responder::serve`].
    #[inline]
    pub fn serve(&mut self) {
        self.responder.serve(&mut self.iotlb);
    }

    /// See [`Responder::sleep`].
    pub fn sleep(&mut self) -> bool {
        self.responder.sleep()
    }

    /// See [`Responder::wake`].
    pub fn wake(&mut self) {
        self.responder.wake(&mut self.iotlb);
    }
}
