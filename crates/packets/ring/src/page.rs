//! A ring's page, behind a trait that loom's model also implements.

use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};

use shm::{OutOfBounds, Region};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes before the first slot.
pub const HEADER_LEN: usize = 64;

/// The shared indices, by their byte offset in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Index {
    /// Requests published by the frontend.
    ReqProd = 0,
    /// The backend wants an event when `req_prod` passes this.
    ReqEvent = 4,
    /// Responses published by the backend.
    RspProd = 8,
    /// The frontend wants an event when `rsp_prod` passes this.
    RspEvent = 12,
}

/// One page shared with the other end.
pub trait SharedPage {
    /// Reads an index; slots read after it are at least as new (acquire).
    fn load(&self, index: Index) -> u32;
    /// Writes an index; slots written before it are visible with it (release).
    fn store(&self, index: Index, value: u32);
    /// A private copy of the slot at byte `offset`, read once.
    fn read_slot<T: FromBytes>(&self, offset: usize) -> T;
    /// Writes the slot at byte `offset`.
    fn write_slot<T: IntoBytes + Immutable>(&self, offset: usize, value: T);
    /// A full barrier: it also orders earlier stores before later loads.
    fn full_barrier(&self);
}

/// A ring page within a mapped region.
#[derive(Debug)]
pub struct RegionPage<R> {
    region: R,
    start: usize,
}

impl<R: Deref<Target = Region>> RegionPage<R> {
    /// The 4 KiB page at byte `start` of `region`, which must be a multiple of the page size.
    pub fn new(region: R, start: usize) -> Result<Self, OutOfBounds> {
        let size = region.len();
        let inside = start.checked_add(4096).is_some_and(|end| end <= size);
        // Alignment is checked once here, so that no access below can fail.
        if !inside || region.atomic_u32(start).is_err() {
            return Err(OutOfBounds { offset: start, len: 4096, size });
        }
        Ok(Self { region, start })
    }

    /// The region that holds the page.
    pub fn region(&self) -> &R {
        &self.region
    }

    #[expect(clippy::expect_used, reason = "new() checked that the page is mapped and aligned")]
    fn word(&self, index: Index) -> &std::sync::atomic::AtomicU32 {
        self.region.atomic_u32(self.start + index as usize).expect("page checked at creation")
    }
}

impl<R: Deref<Target = Region>> SharedPage for RegionPage<R> {
    #[inline]
    fn load(&self, index: Index) -> u32 {
        self.word(index).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, index: Index, value: u32) {
        self.word(index).store(value, Ordering::Release);
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "slots lie inside the page by Slots::COUNT")]
    fn read_slot<T: FromBytes>(&self, offset: usize) -> T {
        self.region.read(self.start + offset).expect("slot inside the page")
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "slots lie inside the page by Slots::COUNT")]
    fn write_slot<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        self.region.write(self.start + offset, value).expect("slot inside the page");
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}
