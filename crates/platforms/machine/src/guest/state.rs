//! A guest's state: its memory, its grant table, and what is free of both.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypervisor::{DomId, Error, EvtchnPort, GrantRef};
use shm::{Region, Space};

use super::grouping::Frames;
use crate::event::GuestEvent;
use crate::grant_table::{GRANT_ENTRY_LEN, gtf};
use crate::guest_copy::Request;
use crate::memory::MemorySize;

pub(crate) trait Hypercalls: Send + Sync {
    /// All memory is mapped, and may be sealed.
    fn mapped(&self) -> Result<(), Error>;
    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, EvtchnPort), Error>;
    fn surrender(&self, frames: &[u32]) -> Result<(), Error>;
    fn decrease_reservation(&self, pages: Range<usize>) -> Result<(), Error>;
    fn increase_reservation(&self, pages: Range<usize>) -> Result<(), Error>;
    /// Copies out of the driver domain's buffers; a bit for each copy that was done, at most 64.
    fn copy_granted(&self, id: u32, requests: &[Request]) -> Result<u64, Error>;
    /// The file of a pool.
    fn open_pool(&self, id: u32) -> Result<OwnedFd, Error>;
    /// A channel about its contexts of cards.
    fn open_contexts(&self) -> Result<OwnedFd, Error>;
}

/// A guest's side of its domain.
pub(super) struct Inner {
    pub(super) domid: DomId,
    pub(super) size: MemorySize,
    pub(super) file: OwnedFd,
    /// The addresses of its ordinary memory.
    pub(super) space: Arc<Space>,
    /// Addresses for pages that are transferred here, in blocks reserved for them.
    pub(super) places: Arc<Space>,
    /// All its ordinary memory, mapped once.
    pub(super) memory: Arc<Region>,
    /// The grant table, at the start of the domain's memory.
    pub(super) table: Region,
    pub(super) free: Mutex<Free>,
    /// Held while memory is given up or taken back.
    pub(super) ballooning: Mutex<()>,
    pub(super) calls: Box<dyn Hypercalls>,
}

pub(super) struct Free {
    pub(super) frames: Frames,
    pub(super) grants: Vec<u32>,
    pub(super) arrivals: Arrivals,
}

/// Pages that came, or may still come, and are not used.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Pages, by real number, that are unmapped and go back with the next surrender.
    pub(super) leaving: Vec<u32>,
    /// Offers that were dropped while a page was on its way.
    pub(super) dropped: Vec<Offer>,
}

/// A published offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) gref: GrantRef,
    pub(super) pfn: usize,
}

impl Inner {
    pub(super) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn flags(&self, gref: GrantRef) -> Option<&AtomicU16> {
        self.table.atomic_u16(gref.0 as usize * GRANT_ENTRY_LEN).ok()
    }

    /// Fills an entry; `kind` is what it grants, one of [`gtf`].
    pub(super) fn publish(
        &self,
        gref: GrantRef,
        to: DomId,
        frame: usize,
        kind: u16,
    ) -> Result<(), Error> {
        let at = gref.0 as usize * GRANT_ENTRY_LEN;
        let frame = u32::try_from(frame).map_err(|_| Error::Exhausted("page numbers"))?;
        let outside = |_| Error::Exhausted("grant table");
        self.table.write(at + 2, to.0).map_err(outside)?;
        self.table.write(at + 4, frame).map_err(outside)?;
        let flags = self.table.atomic_u16(at).map_err(outside)?;
        // Release: a reader that sees the flags sees the domain and the frame.
        flags.store(kind, Ordering::Release);
        Ok(())
    }

    /// Revokes a grant; fails while the hypervisor has it mapped.
    pub(super) fn revoke(&self, gref: GrantRef) -> bool {
        self.flags(gref).is_some_and(|flags| {
            let change = |f| (f & (gtf::READING | gtf::WRITING) == 0).then_some(0);
            flags.try_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
        })
    }
}
