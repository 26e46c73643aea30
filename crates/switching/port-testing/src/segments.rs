//! What a segmenter makes of a frame.

use offload::{Gso, MAX_HEADER, Segmenter};
use wire::headers::Headers;

/// The segments of a frame, whole and with complete checksums.
///
/// # Panics
/// The frame is malformed, or cannot be cut so.
#[must_use]
pub fn segments(bytes: &[u8], gso: Gso) -> Vec<Vec<u8>> {
    let headers = Headers::parse(bytes).unwrap();
    let mut segmenter = Segmenter::new(bytes, &headers, gso).unwrap();
    let mut header = [0; MAX_HEADER];
    let next = || {
        let segment = segmenter.next(&mut header)?;
        Some([&header[..segment.header_len], &bytes[segment.payload]].concat())
    };
    std::iter::from_fn(next).collect()
}
