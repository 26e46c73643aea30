//! Frames for the guest that fit into one of its buffers.

use port::{Body, Broken, Frame, Offer, Outcome, Place, ScatterList};
use shm::{Iovec, OutOfBounds, Region};
use virtqueue::{Buffer, Queue, Single};

use crate::header::{FrameHeader, HeaderForm};

/// Buffers that are taken before the first of them is written, so that their lines are on the way.
const AHEAD: usize = 32;
/// A buffer for a frame with a body is fetched again this many buffers ahead: the guest's CPU, which reads the one before, fetches it too, and a line that
/// both have is as slow to write as one that is missing.
const AGAIN: usize = 6;
/// Bytes of each buffer that are fetched ahead: a small frame, or the beginning of a large one.
const LINES: [usize; 2] = [0, 64];

/// Chains of one buffer that were taken off a ring and not written yet. They stay taken until the next frames come, or
/// until they are put back.
#[derive(Debug)]
pub(crate) struct Singles {
    all: [Single; AHEAD],
    next: usize,
    end: usize,
}

impl Default for Singles {
    fn default() -> Self {
        Self { all: [Single::default(); AHEAD], next: 0, end: 0 }
    }
}

impl Singles {
    /// Takes up to `wanted` chains if none is left.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        queue: &mut Queue,
        regions: &[Region],
        wanted: usize,
    ) -> Result<(), Broken> {
        if self.next < self.end { Ok(()) } else { self.refill(queue, regions, wanted) }
    }

    #[inline(never)]
    fn refill(
        &mut self,
        queue: &mut Queue,
        regions: &[Region],
        wanted: usize,
    ) -> Result<(), Broken> {
        let place = &mut self.all[..wanted.min(AHEAD)];
        (self.next, self.end) = (0, queue.pop_singles(true, place).map_err(Broken::new)?);
        self.all[..self.end].iter().for_each(|single| fetch(regions, single));
        Ok(())
    }

    /// Those that are left.
    #[inline]
    pub(crate) fn left(&self) -> &[Single] {
        &self.all[self.next..self.end]
    }

    /// The next `count` are used.
    #[inline]
    pub(crate) fn skip(&mut self, count: usize) {
        self.next += count;
    }

    /// Starts to fetch the next `count` once more: the guest's CPU may have fetched some of them meanwhile.
    #[inline]
    pub(crate) fn fetch_again(&self, regions: &[Region], count: usize) {
        self.left().iter().take(count).for_each(|single| fetch(regions, single));
    }

    /// Writes the private bytes of frames and their metadata into the next buffers, which have room for them.
    ///
    /// Nothing else is stored in between: the CPU's store buffer empties in order, and has room for the stores of some ten frames
    /// while the line of the first is on its way.
    #[inline]
    pub(crate) fn write_small(
        &self,
        regions: &[Region],
        form: HeaderForm,
        offers: &[Offer<'_>],
    ) -> Result<(), Broken> {
        let buffers = self.left();
        for (offer, single) in offers.iter().zip(buffers) {
            let frame = offer.frame;
            let region = &regions[usize::from(single.buffer.region)];
            let at = usize::try_from(single.buffer.offset).unwrap_or(usize::MAX);
            let header = form.describe(&frame.headers, frame.checksum, frame.gso, 1);
            let at = write_header(region, at, header)?;
            region.copy_in(at, frame.header()).map_err(outside)?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Single> {
        self.all[self.next..self.end].first().copied()
    }

    /// The next one is used.
    #[inline]
    pub(crate) fn take(&mut self, regions: &[Region]) {
        self.next += 1;
        if let Some(single) = self.all[..self.end].get(self.next + AGAIN) {
            fetch(regions, single);
        }
    }

    /// Puts back those that are left.
    #[inline]
    pub(crate) fn put_back(&mut self, queue: &mut Queue) {
        let left = self.end - std::mem::replace(&mut self.next, self.end);
        if left > 0 {
            // At most AHEAD.
            queue.put_back_singles(u16::try_from(left).unwrap_or(0));
        }
    }
}

/// Starts to fetch the first lines of a buffer, for writing.
#[inline]
fn fetch(regions: &[Region], Single { buffer, .. }: &Single) {
    let at = usize::try_from(buffer.offset).unwrap_or(usize::MAX);
    let region = &regions[usize::from(buffer.region)];
    LINES.iter().for_each(|line| region.prefetch_for_write(at.saturating_add(*line)));
}

/// Writes a frame's header to the byte `at` of a region, and returns the byte behind it.
#[inline]
fn write_header(
    region: &Region,
    at: usize,
    FrameHeader { metadata, len }: FrameHeader,
) -> Result<usize, Broken> {
    let bytes = metadata.to_bytes();
    let written = match len {
        // Of a known length, so that it is two moves.
        12 => region.copy_in(at, &bytes),
        _ => region.copy_in(at, &bytes[..len]),
    };
    written.map_err(outside)?;
    Ok(at.saturating_add(len))
}

/// Writes a frame and its header into a buffer with room for both. None if the sender's platform has no addresses for
/// devices.
///
/// # Errors
/// The buffer is not in the guest's memory.
#[inline]
pub fn write(
    regions: &[Region],
    buffer: &Buffer,
    header: FrameHeader,
    frame: &Frame,
    body: Body<'_>,
) -> Result<Option<Outcome>, Broken> {
    let region = &regions[usize::from(buffer.region)];
    let at = usize::try_from(buffer.offset).unwrap_or(usize::MAX);
    let mut at = write_header(region, at, header)?;
    region.copy_in(at, frame.header()).map_err(outside)?;
    at += usize::from(frame.header_len);
    if !frame.has_body() {
        return Ok(Some(Outcome::Delivered));
    }
    // The fragments of a frame are as long as it says.
    let mut left = (frame.len as usize).saturating_sub(frame.header_len.into());
    let Some(sources) = body.regions().filter(|_| frame.tail.is_none()) else {
        return write_list(region, at, left, frame, body);
    };
    let mut copy = |source: &Region, offset: usize, len: usize| {
        if len > left || source.address(offset, len).is_err() {
            return Ok(false);
        }
        Region::copy_between(source, offset, region, at, len).map_err(outside)?;
        (at, left) = (at + len, left - len);
        Ok(true)
    };
    for fragment in &frame.fragments {
        let Some((source, offset)) = find(fragment.place, sources) else {
            return Ok(Some(Outcome::SourceFault));
        };
        if !copy(source, offset, fragment.len.into())? {
            return Ok(Some(Outcome::SourceFault));
        }
    }
    Ok(Some(Outcome::Delivered))
}

/// The same for the body of a frame of granted pages, or of one that was merged: to the byte `at` of a region, at most `left` bytes.
#[inline(never)]
fn write_list(
    region: &Region,
    mut at: usize,
    mut left: usize,
    frame: &Frame,
    body: Body<'_>,
) -> Result<Option<Outcome>, Broken> {
    let Some(list) = ScatterList::of(frame, body) else { return Ok(None) };
    // The private header is written already.
    for iovec in list.all().skip(usize::from(frame.header_len > 0)) {
        let (len, is_readable) = match iovec {
            Iovec::Shared { region, offset, len } => (len, region.address(offset, len).is_ok()),
            Iovec::Private(bytes) => (bytes.len(), true),
        };
        if len > left || !is_readable {
            return Ok(Some(Outcome::SourceFault));
        }
        let copied = match iovec {
            Iovec::Shared { region: source, offset, len } => {
                Region::copy_between(source, offset, region, at, len)
            }
            Iovec::Private(bytes) => region.copy_in(at, bytes),
        };
        copied.map_err(outside)?;
        (at, left) = (at + len, left - len);
    }
    Ok(Some(Outcome::Delivered))
}

#[inline]
fn find(place: Place, sources: &[Region]) -> Option<(&Region, usize)> {
    let Place::Region { index, offset } = place else { return None };
    Some((sources.get(usize::from(index))?, offset.index()))
}

#[cold]
fn outside(_: OutOfBounds) -> Broken {
    Broken::new("a receive buffer outside of the guest's memory")
}
