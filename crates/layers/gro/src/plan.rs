//! Which frames of a batch become one.

use arrayvec::ArrayVec;
use offload::{Checksum, Gso, Merge, Mergeable, Need, is_one_flow};
use port::{Body, Frame, Merging, Offer, Outcome, Place, Run, WINDOW};
use wire::checksum::Sum;
use wire::headers::Transport;

/// Flows of a batch that are followed at a time. A further flow takes the place of the oldest.
const FLOWS: usize = 8;
/// Bytes of a payload that are read at a time. Even, so that their sums add up.
const CHUNK: usize = 2048;

/// A frame that the port is offered: one of the batch, or a merged one.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    /// The place of its first frame in the batch.
    pub(crate) first: usize,
    /// What may be merged with it, if anything.
    merge: Option<Merge>,
    /// The place of the merged frame in the scratch, if there is one.
    pub(crate) merged: Option<usize>,
}

impl Output {
    /// How many frames of the batch it is.
    pub(crate) fn segments(&self) -> u16 {
        self.merge.map_or(1, |merge| merge.segments())
    }
}

/// What the port is offered in place of the frames of a batch. It is large, so it is used again for each batch.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) outputs: ArrayVec<Output, WINDOW>,
    /// The output that each frame of the batch is in.
    pub(crate) output_of: ArrayVec<u8, WINDOW>,
    merged: Merged,
}

/// Merged frames. The memory of earlier batches' frames is used again.
#[derive(Default)]
struct Merged {
    frames: Vec<Frame>,
    /// How many this batch has.
    count: usize,
}

impl Merged {
    /// Begins another merged frame with `first`. Returns its place.
    fn begin(&mut self, first: &Frame) -> usize {
        let place = self.count;
        if self.frames.len() == place {
            self.frames.push(Frame::empty());
        }
        self.frames[place].begin_merge(first);
        self.count += 1;
        place
    }
}

/// Whether there is anything to merge at first sight: two TCP segments with payload, and no frame that the port must be offered in
/// parts.
#[inline]
pub(crate) fn is_worthwhile(merging: &Merging, offers: &[Offer<'_>]) -> bool {
    if !(2..=WINDOW).contains(&offers.len()) {
        return false;
    }
    let mut segments = 0;
    for Offer { frame, .. } in offers {
        segments += u32::from(is_segment(frame));
        if frame.gso.is_some() && frame.need(merging.features) != Need::Nothing {
            return false;
        }
    }
    segments > 1
}

/// Whether a frame is a TCP segment with payload at first sight.
#[inline]
fn is_segment(frame: &Frame) -> bool {
    frame.headers.transport == Transport::Tcp
        && frame.gso.is_none()
        && frame.len > u32::from(frame.headers.payload_offset)
}

impl Plan {
    /// Merges the frames of a batch that can be merged. Returns whether there are any.
    pub(crate) fn find(
        &mut self,
        merging: &Merging,
        offers: &mut [Offer<'_>],
        body: Body<'_>,
    ) -> bool {
        let Self { outputs, output_of, merged } = self;
        outputs.clear();
        output_of.clear();
        merged.count = 0;
        let mut batch = Batch { offers, body, longest: merging.longest };
        // Outputs that the next segments of their flows may be added to, the oldest first.
        let mut open = ArrayVec::<u8, FLOWS>::new();
        for n in 0..batch.offers.len() {
            let frame = batch.offers[n].frame;
            let mergeable = mergeable(frame);
            let is_its = |output: &u8| {
                let first = batch.offers[outputs[usize::from(*output)].first].frame;
                is_one_flow((&first.headers, first.header()), (&frame.headers, frame.header()))
            };
            let place = open.iter().position(is_its);
            if let (Some(place), Some(next)) = (place, mergeable) {
                let output = open[place];
                let to = &mut outputs[usize::from(output)];
                if batch.add(to, n, next, merged) {
                    output_of.push(output);
                    continue;
                }
            }
            // What follows in this flow must not get before this frame.
            if let Some(place) = place {
                open.remove(place);
            } else if is_of_unknown_flow(frame) {
                open.clear();
            }
            // Below WINDOW.
            let output = u8::try_from(outputs.len()).unwrap_or(u8::MAX);
            let merge = mergeable.and_then(Merge::of);
            let merge = merge.filter(|merge| takes(merging, frame, merge.gso()));
            if merge.is_some() {
                if open.is_full() {
                    open.remove(0);
                }
                open.push(output);
            }
            output_of.push(output);
            outputs.push(Output { first: n, merge, merged: None });
        }
        self.finish();
        self.merged.count > 0
    }

    /// The frame of an output.
    pub(crate) fn offer<'a>(&'a self, output: &Output, offers: &[Offer<'a>]) -> Offer<'a> {
        match output.merged {
            Some(place) => Offer::new(&self.merged.frames[place]),
            None => Offer { outcome: Outcome::Waiting, ..offers[output.first] },
        }
    }

    /// Writes the headers of the merged frames.
    fn finish(&mut self) {
        for output in &self.outputs {
            if let (Some(merge), Some(place)) = (&output.merge, output.merged) {
                let frame = &mut self.merged.frames[place];
                let end = usize::from(frame.header_len);
                merge.write(&mut frame.bytes[..end]);
                frame.end_merge(merge.gso());
            }
        }
    }
}

/// The frame as a part of a merged one, if it can be one. A frame in its receiver's buffers cannot: it need not be copied.
fn mergeable(frame: &Frame) -> Option<Mergeable> {
    if !is_segment(frame) || frame.lent.is_any() {
        return None;
    }
    Mergeable::of(frame.header(), frame.len as usize, &frame.headers, frame.checksum)
}

/// Whether the frame may belong to a TCP connection that its headers do not show: an IP fragment, or one with headers that were not parsed.
fn is_of_unknown_flow(frame: &Frame) -> bool {
    matches!(frame.headers.transport, Transport::Fragment | Transport::Opaque)
}

/// Whether the port takes such a merged frame whole.
fn takes(merging: &Merging, frame: &Frame, gso: Gso) -> bool {
    let need = offload::need(&frame.headers, Checksum::Partial, Some(gso), merging.features);
    need == Need::Nothing
}

/// Frames that the port is offered, and the longest merged one that it takes.
struct Batch<'a, 'f> {
    offers: &'a mut [Offer<'f>],
    body: Body<'a>,
    longest: usize,
}

impl Batch<'_, '_> {
    /// Adds the frame at place `n` to an output, if it may follow there and both have the right checksums. With the output's second frame, a
    /// merged one begins. Returns whether the frame was added.
    fn add(&mut self, to: &mut Output, n: usize, next: Mergeable, merged: &mut Merged) -> bool {
        let Some(merge) = &mut to.merge else { return false };
        let (first, frame) = (self.offers[to.first].frame, self.offers[n].frame);
        let mut longer = *merge;
        let follows = longer.add([first.header(), frame.header()], next, self.longest)
            && (to.merged.is_some() || self.is_right(to.first, merge.first()))
            && self.is_right(n, &next);
        if !follows {
            return false;
        }
        let place = *to.merged.get_or_insert_with(|| merged.begin(first));
        let is_added = merged.frames[place].append(frame);
        if is_added {
            *merge = longer;
        }
        is_added
    }

    /// Whether the frame's checksum is right. It is summed once, however often it is offered.
    fn is_right(&mut self, place: usize, mergeable: &Mergeable) -> bool {
        let offer = &mut self.offers[place];
        let sum = || sum_of_payload(offer.frame, mergeable.payload_offset(), self.body);
        *offer.is_right.get_or_insert_with(|| mergeable.is_right(offer.frame.header(), sum))
    }
}

/// Sums the bytes of a frame from `start` on, which is within its private header. None if they are not mapped here.
fn sum_of_payload(frame: &Frame, start: usize, body: Body<'_>) -> Option<Sum> {
    let mut sum = Sum::of(frame.header().get(start..)?);
    let mut bytes = [0; CHUNK];
    for run in frame.runs() {
        let fragment = match run {
            Run::Private(bytes) => {
                sum.add_bytes(bytes);
                continue;
            }
            Run::Fragment(fragment) => fragment,
        };
        let Place::Region { index, offset } = fragment.place else { return None };
        let region = body.regions()?.get(usize::from(index))?;
        let mut at = offset.index();
        let mut left = usize::from(fragment.len);
        while left > 0 {
            let chunk = &mut bytes[..left.min(CHUNK)];
            region.copy_out(at, chunk).ok()?;
            sum.add_bytes(chunk);
            at += chunk.len();
            left -= chunk.len();
        }
    }
    Some(sum)
}
