//! Offloads that an egress port lacks, done in software in the same way for every port.

use std::ops::Range;

use hypervisor::{Counted, PAGE_SIZE};
use offload::{Checksum, Features, MAX_HEADER, Need, Segmenter};

use crate::linear::start;
use crate::{Body, DropReason, FRAME_MAX, Frame, Outcome, linearise};

/// A frame that would become more segments than this is dropped. Each segment costs a slot or a
/// system call, and without a limit a guest could cause thousands of them with one frame.
pub const SEGMENTS_MAX: usize = 192;

/// The segments of a frame that is sent at once.
pub const ALL_SEGMENTS: Range<usize> = 0..SEGMENTS_MAX;

const MALFORMED: Outcome = Outcome::Dropped(DropReason::Malformed);

/// Finishes frames for a port: unchanged, copied whole with a complete checksum, or cut into
/// segments.
pub struct Finisher {
    features: Features,
    /// The buffer for whole frames. Allocated with the first frame that needs it.
    scratch: Option<Box<[u8]>>,
    /// Called with the number of bytes copied and of segments made.
    note: Box<dyn Fn(Counted, u64) + Send>,
}

/// A frame in private memory, and the segmenter that cuts it.
pub struct Segments<'a> {
    /// Makes the header of each segment, checksums complete.
    pub segmenter: Segmenter<'a>,
    /// The whole frame, which holds the segments' payloads.
    pub whole: &'a [u8],
}

impl Finisher {
    /// A finisher for a port with these features. `note` counts its work.
    pub fn new(features: Features, note: impl Fn(Counted, u64) + Send + 'static) -> Self {
        Self { features, scratch: None, note: Box::new(note) }
    }

    /// What the port can take.
    #[inline]
    pub fn features(&self) -> Features {
        self.features
    }

    /// From now on the port can take this.
    pub fn set_features(&mut self, features: Features) {
        self.features = features;
    }

    /// What a frame needs before the port can take it.
    #[inline]
    pub fn need(&self, frame: &Frame) -> Need {
        frame.need(self.features)
    }

    /// Whether the port completes the checksums of a frame's segments.
    #[inline]
    pub fn sums(&self, frame: &Frame) -> bool {
        let need = offload::need(&frame.headers, Checksum::Partial, None, self.features);
        need == Need::Nothing
    }

    /// Copies a frame to private memory, whole.
    ///
    /// # Errors
    /// [`Outcome::SourceFault`] where the sender's memory cannot be read.
    pub fn whole(&mut self, frame: &Frame, body: Body<'_>) -> Result<&mut [u8], Outcome> {
        let scratch = self.scratch.get_or_insert_with(|| vec![0; FRAME_MAX + PAGE_SIZE].into());
        let start = start(frame, scratch.as_ptr().addr());
        let whole = scratch[start..start + FRAME_MAX].get_mut(..frame.len as usize);
        let whole = whole.ok_or(MALFORMED)?;
        let copied = linearise(frame, body, whole)?;
        (self.note)(Counted::DriverBytes, copied);
        Ok(whole)
    }

    /// Copies a frame to private memory and completes its checksum.
    ///
    /// # Errors
    /// What became of the frame instead.
    pub fn complete(&mut self, frame: &Frame, body: Body<'_>) -> Result<&mut [u8], Outcome> {
        let whole = self.whole(frame, body)?;
        let completed = match frame.checksum {
            Checksum::Elsewhere => offload::complete_checksum_at(whole, frame.checksum_at),
            _ => offload::complete_checksum(whole, &frame.headers),
        };
        completed.map_err(|_| MALFORMED)?;
        Ok(whole)
    }

    /// Copies a frame to private memory and prepares to cut it into segments with complete
    /// checksums. Only the segments of this `part` are made, as by [`contiguous_segments`](Self::contiguous_segments).
    ///
    /// # Errors
    /// What became of the frame instead.
    pub fn segments(
        &mut self,
        frame: &Frame,
        body: Body<'_>,
        part: Range<usize>,
    ) -> Result<Segments<'_>, Outcome> {
        self.admit(frame, part.clone())?;
        let gso = frame.gso.ok_or(MALFORMED)?;
        let whole = &*self.whole(frame, body)?;
        let segmenter = Segmenter::new(whole, &frame.headers, gso).map_err(|_| MALFORMED)?;
        Ok(Segments { segmenter: segmenter.part(part), whole })
    }

    /// Cuts a frame without reading its payload: each segment has its header and a range of the
    /// frame, and a partial checksum, which the port completes. Only the segments of this `part` are
    /// made.
    ///
    /// # Errors
    /// What became of the frame instead.
    pub fn headers<'a>(
        &self,
        frame: &'a Frame,
        part: Range<usize>,
    ) -> Result<Segmenter<'a>, Outcome> {
        self.admit(frame, part)
    }

    /// Cuts a frame into contiguous segments and passes those of this `part` to `send` in order. Their
    /// checksums are complete unless the port [completes them](Self::sums). Returns how many segments
    /// follow the part.
    ///
    /// Each part reads the frame from the sender's memory anew: one of [`SEGMENTS_MAX`] segments in
    /// parts of 64 is copied three times. A sender that writes to it in between damages its own
    /// frame, and the headers stay those of the private copy.
    ///
    /// # Errors
    /// What became of the frame instead: the first error of `send`, or of the frame.
    pub fn contiguous_segments(
        &mut self,
        frame: &Frame,
        body: Body<'_>,
        part: Range<usize>,
        mut send: impl FnMut(&[u8]) -> Result<(), Outcome>,
    ) -> Result<usize, Outcome> {
        let sums = self.sums(frame);
        let mut segmenter = self.admit(frame, part)?;
        let whole = self.whole(frame, body)?;
        let mut header = [0; MAX_HEADER];
        while let Some(segment) = segmenter.next(&mut header) {
            // Over the end of the previous segment's payload, which has been sent.
            let start = segment.payload.start - segment.header_len;
            let bytes = &mut whole[start..segment.payload.end];
            bytes[..segment.header_len].copy_from_slice(&header[..segment.header_len]);
            if !sums {
                offload::complete_checksum(bytes, &frame.headers).map_err(|_| MALFORMED)?;
            }
            send(bytes)?;
        }
        Ok(segmenter.behind())
    }

    /// Checks that a frame can be cut into no more than [`SEGMENTS_MAX`] segments, and counts those of
    /// this part.
    fn admit<'a>(&self, frame: &'a Frame, part: Range<usize>) -> Result<Segmenter<'a>, Outcome> {
        let gso = frame.gso.ok_or(MALFORMED)?;
        let len = frame.len as usize;
        let segmenter = Segmenter::of_header(frame.header(), len, &frame.headers, gso);
        let segmenter = segmenter.map_err(|_| MALFORMED)?;
        if segmenter.segments() > SEGMENTS_MAX {
            return Err(Outcome::Dropped(DropReason::TooLarge));
        }
        let segmenter = segmenter.part(part);
        (self.note)(Counted::Segments, segmenter.segments() as u64);
        Ok(segmenter)
    }
}
