//! Offloads that a frame's receiver lacks, in software, in the card's buffer.

use offload::{Checksum, Error, Features, Need, Segmenter, complete_checksum, need};
use wire::headers::Headers;

use crate::bus::Metadata;

/// The most segments of a frame. The least that TCP allows of IPv4 (RFC 1122: 536 bytes) needs 122 for 64 KiB.
pub(crate) const SEGMENTS_MAX: usize = 128;

/// A frame as its receiver takes it.
pub(crate) enum Form<'a> {
    /// As it lies in the buffer.
    Whole,
    /// In segments with complete checksums, whose payloads are ranges of the frame.
    Segments(Segmenter<'a>, &'a [u8]),
}

/// Brings a frame into a form that a receiver with these features takes. A checksum that is completed
/// stays so.
///
/// # Errors
/// The frame contradicts its metadata, or would make too many segments.
#[inline]
pub(crate) fn finish<'a>(
    frame: &'a mut [u8],
    metadata: &mut Metadata,
    features: Features,
) -> Result<Form<'a>, Error> {
    if metadata.gso.is_none() && metadata.checksum != Checksum::Partial {
        return Ok(Form::Whole);
    }
    finish_offload(frame, metadata, features)
}

fn finish_offload<'a>(
    frame: &'a mut [u8],
    metadata: &mut Metadata,
    features: Features,
) -> Result<Form<'a>, Error> {
    let headers = Headers::parse(frame).map_err(|_| Error::Headers)?;
    match need(&headers, metadata.checksum, metadata.gso, features) {
        Need::Nothing => Ok(Form::Whole),
        Need::Checksum => {
            complete_checksum(frame, &headers)?;
            metadata.checksum = Checksum::Validated;
            Ok(Form::Whole)
        }
        Need::Segment => {
            let gso = metadata.gso.ok_or(Error::GsoSize)?;
            let segmenter = Segmenter::new(frame, &headers, gso)?;
            if segmenter.segments() > SEGMENTS_MAX {
                return Err(Error::GsoSize);
            }
            Ok(Form::Segments(segmenter, frame))
        }
    }
}
