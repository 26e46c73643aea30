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
mod gso;
mod layout;
mod merge;
mod need;
mod segment;
pub mod vnet;

pub use checksum::{Checksum, blank_checksum, complete_checksum, complete_checksum_at};
pub use gso::{Gso, GsoKind};
pub use merge::{Merge, Mergeable, is_one_flow};
pub use need::{Features, Need, need};
pub use segment::{MAX_HEADER, Segment, Segmenter};

/// The frame contradicts itself or the metadata that came with it. The remedy is to drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// The frame has no checksum to complete.
    #[error("neither TCP nor UDP, whole and over IP")]
    Transport,
    /// The GSO type names TCP or UDP over one IP version, and the frame is something else.
    #[error("not the TCP or UDP over IP that its GSO type names")]
    GsoKind,
    /// Segments without payload would never end.
    #[error("GSO size is zero")]
    GsoSize,
    /// The headers were parsed from another frame.
    #[error("offsets do not lead to the frame's headers")]
    Headers,
    /// The frame ends before the field of its checksum.
    #[error("a checksum beyond the frame")]
    Place,
    /// An IP or UDP length field does not fit the frame and its headers.
    #[error("impossible IP or UDP length")]
    Length,
    /// The packet, or one segment of it, is longer than IP's length field can say.
    #[error("longer than an IP packet can be")]
    TooLong,
}
