//! Generic receive offload: TCP segments on their way to a port that takes unsegmented frames become such frames.
//!
//! ```text
//!  offers of one batch          what the port is offered
//!  A1 A2 B1 A3 x B2    ──►      A1+A2+A3  B1+B2  x         no copy: a merged frame is a chain of the others' bodies
//!        ▲                              │
//!        └────── outcomes ──────────────┘
//! ```
//!
//! # When
//! Frames are merged within one batch: those that a worker delivers from one queue to another in one call. No frame waits for another. A
//! merged frame is one that the port takes whole, so nothing has to be cut again later.
//!
//! # What
//! Consecutive segments of one connection are merged. Their headers differ only in what a segmenter writes: IP length and identification,
//! sequence number, PSH of the last, checksums. Addresses, VLAN tags, TTL, class, acknowledgement, window and options with their timestamps are
//! equal. All payloads but the last are equally long. So a segmenter would make the same segments of the merged frame, bit by bit.
//!
//! A checksum that is not known to be right is verified first, because a merged frame says that its checksum need not be. A frame with a
//! wrong checksum is left as it is, for the receiver to find. Verifying reads the payload, for which its memory must be mapped here: a frame in
//! granted pages whose checksum is not known to be right is not merged.
//!
//! Frames of one flow keep their order. Those of different flows may change places within the batch.
//!
//! # Where
//! Innermost, next to the port: limits, captures, mirrors and the counters of ports see the frames before they are merged.

#![forbid(unsafe_code)]

mod plan;
mod wrapper;

pub use wrapper::{Counters, GroLayer, GroStatus, METRICS, merge};
