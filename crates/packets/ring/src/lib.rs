//! Xen's shared ring (`public/io/ring.h`), both ends, generic over the slots.
//!
//! A ring is one page: four 32-bit indices, then a power of two of slots, each of which holds
//! a request on its way to the backend and later a response on its way back. Indices run
//! freely and wrap at 2³². The producer of either direction fills slots first and moves its
//! index after (release); the consumer reads the index first (acquire) and the slots after.
//!
//! A side that finds nothing to do says at which index it wants to be woken (`req_event`,
//! `rsp_event`), then *looks again* behind a full barrier: without the second look, a request
//! published between the first look and the event index would never be announced.
//!
//! A backend may be killed at any moment and be followed by another one, which the frontend does
//! not notice: [`BackRing`] publishes responses in the order of the requests, and out of a
//! [`Ledger`] that outlives it.
//!
//! The other side may write anything anywhere at any time. Indices are checked at every read,
//! slots are copied once, and a violation is [`Broken`]: the caller disables the device.

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

/// A kind of ring: what travels in its slots.
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

    /// How many slots fit a 4 KiB page behind the header, rounded down to a power of two.
    const COUNT: u32 = {
        let fitting = (4096 - HEADER_LEN) / Self::SLOT_LEN;
        1 << fitting.ilog2()
    };
}

/// The other side broke the protocol; the ring can not be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The frontend claims more requests than there are slots (XSA-39).
    #[error("req_prod {req_prod} is more than {slots} slots ahead of rsp_prod {rsp_prod}")]
    RequestOverflow {
        /// What the shared page says.
        req_prod: u32,
        /// What this side has answered.
        rsp_prod: u32,
        /// The ring's size.
        slots: u32,
    },
    /// The frontend took requests back.
    #[error("req_prod went back from {before} to {now}")]
    RequestsBackwards {
        /// What the shared page said.
        before: u32,
        /// What it says.
        now: u32,
    },
    /// The backend claims responses to requests that were never made, or takes some back.
    #[error("rsp_prod {rsp_prod} answers more than the {outstanding} requests after {rsp_cons}")]
    ResponseOverflow {
        /// What the shared page says.
        rsp_prod: u32,
        /// What this side has taken.
        rsp_cons: u32,
        /// How many requests are unanswered.
        outstanding: u32,
    },
}

/// Whether a publication from `old` to `new` must be announced to a side that asked to be
/// woken at `event`: exactly when `event` lies in (old, new], in wrapping arithmetic.
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
