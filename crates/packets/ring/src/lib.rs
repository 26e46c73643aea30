//! Xen's shared ring (`public/io/ring.h`), both ends, generic over the slots.
//!
//! A ring is one page: four 32-bit indices, then a power of two of slots, each of which holds
//! a request on its way to the backend and later a response on its way back. Indices run
//! freely and wrap at 2³². The producer of either direction fills slots first and moves its
//! index after that (release); the consumer reads the index first (acquire) and then the slots.
//!
//! A side that finds nothing to do writes the index at which it wants an event (`req_event`,
//! `rsp_event`), then *looks again* after a full barrier: without the second look, a request
//! published between the first look and the event index would never be announced.
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
mod page;

pub use back::BackRing;
pub use front::FrontRing;
pub use ledger::{LEDGER_LEN, Ledger};
pub use page::{HEADER_LEN, Index, RegionPage, SharedPage};

use zerocopy::{FromBytes, Immutable, IntoBytes};

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
