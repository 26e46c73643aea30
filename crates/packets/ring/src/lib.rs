//! Xen's shared ring (`public/io/ring.h`), both ends, generic over the slots.
//!
//! A ring is one page: four 32-bit indices, then a power of two of slots, each of which holds
//! a request on its way to the backend and later a response on its way back. Indices run
//! freely and wrap at 2³². The producer of either direction fills slots first and moves its
//! index after that (release); the consumer reads the index first (acquire) and then the slots.
//!
//! A side that finds nothing to do writes the index at which it wants an event (`req_event`,
//! `rsp_event`), then *checks again* after a full barrier: without this final check, a request
//! published between the first check and the event index would never be announced.
//!
//! A backend may be killed at any moment and replaced by another one. The frontend does not
//! notice: [`BackRing`] publishes responses in the order of the requests, from a
//! [`Ledger`] that outlives it.
//!
//! The other side may write anything to the page at any time. Indices are checked at every read,
//! slots are copied once, and a violation is [`Broken`], after which the caller disables the
//! device.

#![forbid(unsafe_code)]

mod back;
mod front;
mod ledger;
pub mod netif;

use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};

use shm::{OutOfBounds, Region};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use back::BackRing;
pub use front::FrontRing;
pub use ledger::{LEDGER_LEN, Ledger};

/// A kind of ring: the types of its requests and responses.
pub trait Slots {
    /// Written by the frontend.
    type Request: FromBytes + IntoBytes + Immutable + Copy;
    /// Written by the backend, over the request's bytes.
    type Response: FromBytes + IntoBytes + Immutable + Copy;

    /// Bytes of a slot: the larger of the two.
    const SLOT_LEN: usize = if size_of::<Self::Request>() > size_of::<Self::Response>() {
        size_of::<Self::Request>()
    } else {
        size_of::<Self::Response>()
    };

    /// How many slots fit a 4 KiB page after the header, rounded down to a power of two.
    const COUNT: u32 = {
        let fitting = (4096 - HEADER_LEN) / Self::SLOT_LEN;
        1 << fitting.ilog2()
    };
}

/// The other side broke the protocol; the ring must not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The frontend claims more requests than there are slots (XSA-39).
    #[error("req_prod {req_prod} is more than {slots} slots ahead of rsp_prod {rsp_prod}")]
    RequestOverflow {
        /// The index in the shared page.
        req_prod: u32,
        /// The last response of this side.
        rsp_prod: u32,
        /// The ring's size.
        slots: u32,
    },
    /// The frontend moved its index back.
    #[error("req_prod went back from {before} to {now}")]
    RequestsBackwards {
        /// The earlier index.
        before: u32,
        /// The present index.
        now: u32,
    },
    /// The backend claims responses to requests that were never made, or moved its index back.
    #[error("rsp_prod {rsp_prod} answers more than the {outstanding} requests after {rsp_cons}")]
    ResponseOverflow {
        /// The index in the shared page.
        rsp_prod: u32,
        /// The last response that this side has taken.
        rsp_cons: u32,
        /// How many requests are unanswered.
        outstanding: u32,
    },
}

/// Whether a publication from `old` to `new` needs an event for a side that asked for one
/// at `event`: exactly when `event` is in (old, new], in wrapping arithmetic.
#[must_use]
fn must_notify(old: u32, new: u32, event: u32) -> bool {
    new.wrapping_sub(event) < new.wrapping_sub(old)
}

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn notify_iff_the_event_index_was_passed(old in any::<u32>(), n in 0u32..300, d in -400i64..400) {
            let new = old.wrapping_add(n);
            let event = u32::try_from((i64::from(old) + d).rem_euclid(1 << 32)).unwrap();
            let passed = d >= 1 && d <= i64::from(n);
            prop_assert_eq!(must_notify(old, new, event), passed);
        }
    }
}
