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

/// A ring page: the first page of a mapped region.
#[derive(Debug)]
pub struct RegionPage<R> {
    region: R,
}

impl<R: Deref<Target = Region>> RegionPage<R> {
    /// The first 4 KiB of `region`.
    pub fn new(region: R) -> Result<Self, OutOfBounds> {
        // Checked once here, so that no access below can fail.
        match region.len() {
            4096.. => Ok(Self { region }),
            size => Err(OutOfBounds { offset: 0, len: 4096, size }),
        }
    }

    /// The region that holds the page.
    pub fn region(&self) -> &R {
        &self.region
    }

    #[expect(
        clippy::expect_used,
        reason = "new() checked that the page is mapped, and a region is aligned"
    )]
    fn word(&self, index: Index) -> &std::sync::atomic::AtomicU32 {
        self.region.atomic_u32(index as usize).expect("page checked at creation")
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

    #[inline(always)]
    #[expect(clippy::expect_used, reason = "slots lie inside the page by Slots::COUNT")]
    fn read_slot<T: FromBytes>(&self, offset: usize) -> T {
        self.region.read(offset).expect("slot inside the page")
    }

    #[inline(always)]
    #[expect(clippy::expect_used, reason = "slots lie inside the page by Slots::COUNT")]
    fn write_slot<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        self.region.write(offset, value).expect("slot inside the page");
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}
