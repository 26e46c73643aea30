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
//! Within one batch: the frames of one queue for one queue, which a worker delivers in one call. No frame waits for another. Merged is only what
//! this port takes whole, so nothing has to be cut again later.
//!
//! # What
//! Segments in a row of one connection, whose headers differ in what a segmenter writes and in nothing else: IP length and identification,
//! sequence number, PSH of the last, checksums. Addresses, VLAN tags, TTL, class, acknowledgement, window and options with their timestamps are
//! equal. All payloads but the last are equally long. So a segmenter would make the same segments of the merged frame, bit by bit.
//!
//! A checksum that is not known to be right is verified before: a merged frame says that its checksum need not be. A wrong one leaves its frame
//! as it is, for the receiver to find. To verify, the payload is read, which takes memory that is mapped here; a frame in granted pages
//! with such a checksum is not merged.
//!
//! Frames of one flow keep their order. Those of different flows may change places within the batch.
//!
//! # Where
//! Innermost, next to the port: limits, captures, mirrors and the counters of ports have the frames as they came.

#![forbid(unsafe_code)]

mod plan;
mod wrapper;

pub use wrapper::{Counters, GroLayer, GroStatus, METRICS, merge};
