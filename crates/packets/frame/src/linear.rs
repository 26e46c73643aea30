//! Contiguous frames in this domain's memory.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hypervisor::{CopyOut, PAGE_SIZE, Target};
use shm::Region;

use crate::{Body, FRAGMENTS_MAX, FRAME_MAX, Fragment, Frame, Memory, Outcome, Place, Run, WINDOW};

/// Copies a frame to private memory, whole. `whole` has the frame's length. Returns how many of
/// the bytes this domain copied itself, rather than the hypervisor.
///
/// # Errors
/// [`Outcome::SourceFault`] where the sender's memory cannot be read.
pub fn linearise(frame: &Frame, body: Body<'_>, whole: &mut [u8]) -> Result<u64, Outcome> {
    let mut copies = ArrayVec::<CopyOut, FRAGMENTS_MAX>::new();
    let place = place_in(whole)?;
    let mut to = Target::Private(whole);
    let copied = plan(frame, body, &mut to, place, &mut copies)?;
    fetch(body, &mut copies, &mut to)?;
    Ok(copied)
}

/// All of a slice.
fn place_in(whole: &[u8]) -> Result<Range<u32>, Outcome> {
    Ok(0..u32::try_from(whole.len()).map_err(|_| Outcome::SourceFault)?)
}

/// Copies what is private or mapped here of a frame to its place in `to`, and adds the copies out of granted pages, which are performed
/// where there is no room for more. Returns how many bytes were copied.
fn plan<const MOST: usize>(
    frame: &Frame,
    body: Body<'_>,
    to: &mut Target<'_>,
    place: Range<u32>,
    copies: &mut ArrayVec<CopyOut, MOST>,
) -> Result<u64, Outcome> {
    let header_len = u32::from(frame.header_len);
    if place.start + header_len > place.end || !to.write(place.start as usize, frame.header()) {
        return Err(Outcome::SourceFault);
    }
    let place = place.start + header_len..place.end;
    Ok(u64::from(header_len) + plan_body(frame, body, to, place, copies)?)
}

/// The same for its body, all that follows the private header.
fn plan_body<const MOST: usize>(
    frame: &Frame,
    body: Body<'_>,
    to: &mut Target<'_>,
    place: Range<u32>,
    copies: &mut ArrayVec<CopyOut, MOST>,
) -> Result<u64, Outcome> {
    let (mut behind, mut copied) = (place.start, 0);
    // Not a loop, which would ask of each run whether it is one of the tail.
    frame.runs().try_for_each(|run| {
        let (at, len) = (behind, run.len());
        behind += u32::from(len);
        let is_copied = match (run, body) {
            _ if behind > place.end => false,
            (Run::Fragment(Fragment { place: Place::Grant(from), .. }), Body::Granted { .. }) => {
                if copies.is_full() {
                    fetch(body, copies, to)?;
                }
                copies.push(CopyOut { from: *from, at, len });
                return Ok(());
            }
            (Run::Private(bytes), _) => to.write(at as usize, bytes),
            (Run::Fragment(Fragment { place: Place::Region { index, offset }, .. }), body) => {
                let region = body.regions().and_then(|regions| regions.get(usize::from(*index)));
                let fill = |region| to.fill(at as usize, len.into(), region, offset.index());
                region.is_some_and(fill)
            }
            (Run::Fragment(_), _) => false,
        };
        copied += u64::from(len);
        is_copied.then_some(()).ok_or(Outcome::SourceFault)
    })?;
    // Else the last bytes would be those of an earlier frame in the same buffer.
    if behind == place.end { Ok(copied) } else { Err(Outcome::SourceFault) }
}

/// Performs the copies out of granted pages, and empties their list.
fn fetch<const MOST: usize>(
    body: Body<'_>,
    copies: &mut ArrayVec<CopyOut, MOST>,
    to: &mut Target<'_>,
) -> Result<(), Outcome> {
    let is_copied = match body {
        Body::Granted { memory, mapped } if !copies.is_empty() => {
            memory.copy_out(mapped, copies, to)
        }
        _ => true,
    };
    copies.clear();
    if is_copied { Ok(()) } else { Err(Outcome::SourceFault) }
}

/// Where in the buffer a frame begins, so that its body is at the same place in a page as in its sender's memory: a hypervisor
/// copies from page to page, and a page that would lie in two of the buffer takes two copies.
pub(crate) fn start(frame: &Frame, buffer: usize) -> usize {
    let Some(Place::Grant(first)) = frame.fragments.first().map(|fragment| fragment.place) else {
        return 0;
    };
    let body = buffer + usize::from(frame.header_len);
    usize::from(first.offset).wrapping_sub(body) % PAGE_SIZE
}

/// Most bytes before a frame: the metadata of a device.
const BEFORE_MAX: usize = 64;
/// Memory for several frames at once, more than three of the longest.
const BUFFER: usize = Linear::BYTES;
/// Copies of one batch, as many as the platform makes in one call.
const COPIES_MAX: usize = 64;

/// Gives memory of a length in bytes, which this process alone writes.
pub type Allocate = dyn Fn(usize) -> io::Result<Region> + Send + Sync;

/// Frames in this domain's memory, each contiguous, that were copied there in one batch: a hypervisor is called once for many.
#[derive(Default)]
pub struct Linear {
    /// What gives the memory; [`Region::anonymous`] if absent.
    allocate: Option<Arc<Allocate>>,
    /// None before the first frame.
    memory: Option<Region>,
    /// Where the frames are.
    places: ArrayVec<Range<usize>, WINDOW>,
    taken: usize,
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { places, taken, .. } = self;
        f.debug_struct("Linear")
            .field("places", places)
            .field("taken", taken)
            .finish_non_exhaustive()
    }
}

impl Linear {
    /// How many pages its memory has.
    pub const PAGES: usize = (3 * (BEFORE_MAX + FRAME_MAX + PAGE_SIZE)).div_ceil(PAGE_SIZE);
    /// How many bytes these are.
    pub const BYTES: usize = Self::PAGES * PAGE_SIZE;

    /// Frames in memory from `allocate`, for example memory that a hypervisor copies to at less cost.
    #[must_use]
    pub fn within(allocate: Arc<Allocate>) -> Self {
        Self { allocate: Some(allocate), ..Self::default() }
    }

    /// Where in its memory the frames are, taken or not.
    #[must_use]
    pub fn places(&self) -> &[Range<usize>] {
        &self.places
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.places.clear();
        self.taken = 0;
    }

    /// Whether all frames have been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == self.places.len()
    }

    /// The next frame, in the order of [`fill`](Self::fill).
    pub fn take(&mut self) -> Option<shm::Iovec<'_>> {
        let place = self.places.get(self.taken)?.clone();
        self.taken += 1;
        Some(iovec(self.memory.as_ref()?, &place))
    }

    /// The frames that have not been taken, in that order.
    pub fn rest(&self) -> impl Iterator<Item = shm::Iovec<'_>> {
        let memory = self.memory.as_ref();
        self.places.iter().skip(self.taken).filter_map(move |place| Some(iovec(memory?, place)))
    }

    /// Skips the next `frames` frames.
    pub fn skip(&mut self, frames: usize) {
        self.taken = self.places.len().min(self.taken + frames);
    }

    /// Copies frames that follow each other, as many as there is room for. None are copied if a sender's memory cannot be read, or if there is no memory
    /// for them: [`linearise`] finds out whose. Returns how many of the bytes this domain copied itself, rather than the hypervisor.
    pub fn fill<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>, body: Body<'_>) -> u64 {
        self.fill_behind(frames, body, |_| [])
    }

    /// As [`fill`](Self::fill), each frame behind `before` of it, with which it is taken.
    pub fn fill_behind<'a, const N: usize>(
        &mut self,
        frames: impl Iterator<Item = &'a Frame>,
        body: Body<'_>,
        before: impl Fn(&Frame) -> [u8; N],
    ) -> u64 {
        self.clear();
        self.append_behind(frames, body, before).1
    }

    /// As [`fill`](Self::fill), behind the frames that are there. Returns how many are new.
    pub fn append<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>, body: Body<'_>) -> usize {
        self.append_behind(frames, body, |_| []).0
    }

    /// Whether there is room for a frame behind those that are there.
    #[must_use]
    pub fn has_room(&self, frame: &Frame) -> bool {
        let end = self.places.last().map_or(0, |place| place.end);
        !self.places.is_full() && end + PAGE_SIZE + frame.len as usize <= BUFFER
    }

    /// Returns how many frames are new, and how many of their bytes this domain copied itself.
    #[inline]
    fn append_behind<'a, const N: usize>(
        &mut self,
        frames: impl Iterator<Item = &'a Frame>,
        body: Body<'_>,
        before: impl Fn(&Frame) -> [u8; N],
    ) -> (usize, u64) {
        const { assert!(N <= BEFORE_MAX) };
        let Self { allocate, memory, places, .. } = self;
        if memory.is_none() {
            let new =
                allocate.as_ref().map_or_else(|| Region::anonymous(BUFFER), |give| give(BUFFER));
            *memory = new.ok();
        }
        let Some(memory) = memory else { return (0, 0) };
        let first = places.len();
        let (mut at, mut own) = (places.last().map_or(0, |place| place.end), 0);
        let mut copies = ArrayVec::<CopyOut, COPIES_MAX>::new();
        let mut to = Target::Mapped(memory);
        for frame in frames.take(WINDOW - first) {
            let Ok(address) = memory.address(at + N, 0) else { break };
            let start = at + N + start(frame, address.addr());
            let end = start + frame.len as usize;
            if end > memory.len() || copies.remaining_capacity() < frame.runs_max() {
                break;
            }
            to.write(start - N, &before(frame));
            // Below the buffer's length.
            let (Ok(from), Ok(until)) = (u32::try_from(start), u32::try_from(end)) else { break };
            let Ok(copied) = plan(frame, body, &mut to, from..until, &mut copies) else { break };
            own += copied;
            places.push(start - N..end);
            at = end;
        }
        if fetch(body, &mut copies, &mut to).is_err() {
            places.truncate(first);
        }
        (places.len() - first, own)
    }
}

fn iovec<'a>(region: &'a Region, place: &Range<usize>) -> shm::Iovec<'a> {
    shm::Iovec::Shared { region, offset: place.start, len: place.len() }
}

/// A bounce buffer: a private copy of a frame whose memory the egress port's platform cannot
/// reach.
#[derive(Debug)]
pub struct Bounce {
    bytes: Box<[u8]>,
    frame: Frame,
}

impl Default for Bounce {
    fn default() -> Self {
        Self { bytes: vec![0; FRAME_MAX].into(), frame: Frame::empty() }
    }
}

impl Bounce {
    /// Copies a frame's body here. Returns the frame, and the memory that its fragments lie in.
    ///
    /// # Errors
    /// [`Outcome::SourceFault`] where the sender's memory cannot be read.
    pub fn copy<P>(
        &mut self,
        frame: &Frame,
        body: Body<'_>,
    ) -> Result<(&Frame, Memory<'_, P>), Outcome> {
        let len = (frame.len as usize).saturating_sub(frame.header_len.into());
        let bytes = self.bytes.get_mut(..len).ok_or(Outcome::SourceFault)?;
        let mut copies = ArrayVec::<CopyOut, FRAGMENTS_MAX>::new();
        let place = place_in(bytes)?;
        let mut to = Target::Private(bytes);
        plan_body(frame, body, &mut to, place, &mut copies)?;
        fetch(body, &mut copies, &mut to)?;
        self.frame.clone_from(frame);
        self.frame.fragments.clear();
        self.frame.tail = None;
        if let Ok(len) = u16::try_from(len)
            && len > 0
        {
            self.frame.fragments.push(Fragment::in_region(0, 0, len));
        }
        Ok((&self.frame, Memory::Private(&self.bytes)))
    }
}
