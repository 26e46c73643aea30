//! Offloads that an egress port lacks, in software: segmentation and checksums.
//!
//! ```text
//! frame, Headers, Checksum, Option<Gso>  +  the port's Features
//!                        │
//!                      need ──► Nothing: send as it is
//!                        ├────► Checksum: complete_checksum, then send
//!                        └────► Segment:  Segmenter, then send header + payload range for each segment
//! ```
//!
//! [`Merge`] is the reverse of the segmenter: it finds TCP segments that one frame can stand for.
//!
//! [`vnet`] translates the metadata from and to `virtio_net_hdr`.
//!
//! Everything else here takes a linear frame in private memory, or its headers only ([`Segmenter::of_header`]). Contradictory
//! frames are errors, never panics: their metadata comes from guests.

#![forbid(unsafe_code)]

mod checksum;
mod error;
mod gso;
mod layout;
mod merge;
mod need;
mod segment;
pub mod vnet;

pub use checksum::{Checksum, blank_checksum, complete_checksum, complete_checksum_at};
pub use error::Error;
pub use gso::{Gso, GsoKind};
pub use merge::{Merge, Mergeable, is_one_flow};
pub use need::{Features, Need, need};
pub use segment::{MAX_HEADER, Segment, Segmenter};
