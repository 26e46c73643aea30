//! Why software could not supply an offload.

use thiserror::Error;

/// The frame contradicts itself or the metadata that came with it. The remedy is to drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
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
