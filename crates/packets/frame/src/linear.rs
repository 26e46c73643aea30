//! Frames in one piece of private memory.

use std::ops::Range;

use arrayvec::ArrayVec;
use hypervisor::{CopyOut, PAGE_SIZE};

use crate::{Body, FRAME_MAX, Frame, Memory, Outcome, PIECES_MAX, Piece, Place, Run, WINDOW};

/// Copies a frame to private memory, whole. `whole` has the frame's length. Returns how many of
/// the bytes this domain copied itself, rather than the hypervisor.
///
/// # Errors
/// [`Outcome::SourceFault`] where the sender's memory cannot be read.
pub fn linearise(frame: &Frame, body: Body<'_>, whole: &mut [u8]) -> Result<u64, Outcome> {
    let mut copies = ArrayVec::<CopyOut<'_>, PIECES_MAX>::new();
    let copied = plan(frame, body, whole, &mut copies)?;
    fetch(body, &mut copies)?;
    Ok(copied)
}

/// Copies what is private or mapped here of a frame to `whole`, and adds the copies out of granted pages, which are performed
/// where there is no room for more. Returns how many bytes were copied.
fn plan<'a, const MOST: usize>(
    frame: &Frame,
    body: Body<'_>,
    whole: &'a mut [u8],
    copies: &mut ArrayVec<CopyOut<'a>, MOST>,
) -> Result<u64, Outcome> {
    let (header, rest) =
        whole.split_at_mut_checked(frame.header_len.into()).ok_or(Outcome::SourceFault)?;
    header.copy_from_slice(frame.header());
    let copied = plan_body(frame, body, rest, copies)?;
    Ok(copied + u64::from(frame.header_len))
}

/// The same for its body, all that follows the private header.
fn plan_body<'a, const MOST: usize>(
    frame: &Frame,
    body: Body<'_>,
    mut rest: &'a mut [u8],
    copies: &mut ArrayVec<CopyOut<'a>, MOST>,
) -> Result<u64, Outcome> {
    let mut copied = 0;
    for run in frame.runs() {
        let (to, after) =
            rest.split_at_mut_checked(run.len().into()).ok_or(Outcome::SourceFault)?;
        rest = after;
        let place = match run {
            Run::Private(bytes) => {
                to.copy_from_slice(bytes);
                copied += to.len() as u64;
                continue;
            }
            Run::Piece(piece) => piece.place,
        };
        match (place, body) {
            (Place::Grant(from), Body::Granted { .. }) => {
                if copies.is_full() {
                    fetch(body, copies)?;
                }
                copies.push(CopyOut { from, to });
            }
            (Place::Region { index, offset }, body) => {
                let regions = body.regions().ok_or(Outcome::SourceFault)?;
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                let region = regions.get(usize::from(index)).ok_or(Outcome::SourceFault)?;
                copied += to.len() as u64;
                region.copy_out(offset, to).map_err(|_| Outcome::SourceFault)?;
            }
            _ => return Err(Outcome::SourceFault),
        }
    }
    // Else the last bytes would be those of an earlier frame in the same buffer.
    if !rest.is_empty() {
        return Err(Outcome::SourceFault);
    }
    Ok(copied)
}

/// Performs the copies out of granted pages, and empties their list.
fn fetch<const MOST: usize>(
    body: Body<'_>,
    copies: &mut ArrayVec<CopyOut<'_>, MOST>,
) -> Result<(), Outcome> {
    let is_copied = match body {
        Body::Granted { memory, mapped } if !copies.is_empty() => memory.copy_out(mapped, copies),
        _ => true,
    };
    copies.clear();
    is_copied.then_some(()).ok_or(Outcome::SourceFault)
}

/// Where in the buffer a frame begins, so that its body is at the same place in a page as in its sender's memory: a hypervisor
/// copies from page to page, and a page that would lie in two of the buffer takes two copies.
pub(crate) fn start(frame: &Frame, buffer: &[u8]) -> usize {
    let Some(Place::Grant(first)) = frame.pieces.first().map(|piece| piece.place) else { return 0 };
    let body = buffer.as_ptr().addr() + usize::from(frame.header_len);
    usize::from(first.offset).wrapping_sub(body) % PAGE_SIZE
}

/// Most bytes before a frame: the metadata of a device.
const BEFORE_MAX: usize = 64;
/// Memory for several frames at once, more than two of the longest.
const BUFFER: usize = 2 * (BEFORE_MAX + FRAME_MAX + PAGE_SIZE);
/// Copies of one batch, as many as the platform makes in one call.
const COPIES_MAX: usize = 64;

/// Frames in private memory, each in one piece, that were copied there in one batch: a hypervisor is called once for many.
#[derive(Debug, Default)]
pub struct Linear {
    bytes: Box<[u8]>,
    /// Where the frames are.
    places: ArrayVec<Range<usize>, WINDOW>,
    taken: usize,
}

impl Linear {
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
    pub fn take(&mut self) -> Option<&[u8]> {
        let place = self.places.get(self.taken)?;
        self.taken += 1;
        self.bytes.get(place.clone())
    }

    /// The frames that have not been taken, in that order.
    pub fn rest(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().skip(self.taken).filter_map(|place| self.bytes.get(place.clone()))
    }

    /// Takes the next frames, so many.
    pub fn skip(&mut self, frames: usize) {
        self.taken = self.places.len().min(self.taken + frames);
    }

    /// Copies frames that follow each other, as many as there is room for. None are copied if a sender's memory cannot be read:
    /// [`linearise`] finds out whose. Returns how many of the bytes this domain copied itself, rather than the hypervisor.
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
        const { assert!(N <= BEFORE_MAX) };
        self.clear();
        if self.bytes.is_empty() {
            self.bytes = vec![0; BUFFER].into();
        }
        let (mut rest, mut at, mut own) = (&mut *self.bytes, 0, 0);
        let mut copies = ArrayVec::<CopyOut<'_>, COPIES_MAX>::new();
        for frame in frames.take(WINDOW) {
            let Some(behind) = rest.get(N..) else { break };
            let start = N + start(frame, behind);
            let end = start + frame.len as usize;
            if end > rest.len() || copies.remaining_capacity() < frame.runs_max() {
                break;
            }
            let (part, after) = std::mem::take(&mut rest).split_at_mut(end);
            rest = after;
            let (front, whole) = part.split_at_mut(start);
            front[start - N..].copy_from_slice(&before(frame));
            let Ok(copied) = plan(frame, body, whole, &mut copies) else { break };
            own += copied;
            self.places.push(at + start - N..at + end);
            at += end;
        }
        let is_copied = fetch(body, &mut copies).is_ok();
        drop(copies);
        if !is_copied {
            self.clear();
        }
        own
    }
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
    /// Copies a frame's body here. Returns the frame, and the memory that its pieces lie in.
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
        let mut copies = ArrayVec::<CopyOut<'_>, PIECES_MAX>::new();
        plan_body(frame, body, bytes, &mut copies)?;
        fetch(body, &mut copies)?;
        drop(copies);
        self.frame.clone_from(frame);
        self.frame.pieces.clear();
        self.frame.tail = None;
        if let Ok(len) = u16::try_from(len)
            && len > 0
        {
            self.frame.pieces.push(Piece::in_region(0, 0, len));
        }
        Ok((&self.frame, Memory::Private(&self.bytes)))
    }
}
