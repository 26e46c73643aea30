//! The memory that frames from the tap are read into.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use port::{Body, FRAME_MAX, Frame, HEADER_MAX, KeptFrame, ReceiveBuffers, WINDOW};
use shm::{PageSize, Region};

use crate::kept::{HEADROOM, KeptBuffers};

/// Bytes of a buffer for a frame of the MTU, as drivers of NICs size it.
const SMALL: usize = 2048;
const PAGE: usize = PageSize::Small.bytes();

/// Options of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// Accept frames larger than the MTU: 64 KiB per frame instead of 2 KiB.
    pub large: bool,
    /// Put each frame into separate pages, which the system zeroes before and takes back
    /// after it. This is the cost of pages that may be transferred to a guest (Menon et al. 2006,
    /// §4.2 and §6.4.1): they must not hold bytes of an earlier frame, and a transferred page must
    /// be replaced. Otherwise buffers are reused without zeroing.
    pub zeroed_pages: bool,
    /// Room for 2 MiB pages: see [`Buffers::populate_huge`].
    pub huge_pages: bool,
}

impl BufferOptions {
    /// Bytes of one buffer, and the most buffers of a frame.
    fn layout(self) -> (usize, usize) {
        match (self.large, self.zeroed_pages) {
            (true, true) => (PAGE, (FRAME_MAX - HEADER_MAX).div_ceil(PAGE)),
            (true, false) => (FRAME_MAX.next_multiple_of(PAGE), 1),
            (false, true) => (PAGE, 1),
            (false, false) => (SMALL, 1),
        }
    }
}

/// Memory for the body of each frame in hand, by slot of the window. It uses no memory before it is
/// touched.
#[derive(Debug)]
pub struct Buffers {
    regions: Arc<[Region]>,
    /// Bytes of one buffer.
    size: usize,
    /// The most buffers of a frame.
    each: usize,
    /// Bytes of a buffer before the frame's body.
    headroom: usize,
    zeroed: bool,
    /// For each slot, how many of its buffers hold bytes of an earlier frame.
    used: [u8; WINDOW],
    /// Set if receivers may keep frames.
    kept: Option<KeptBuffers>,
}

impl Buffers {
    /// Allocates buffers with these options.
    ///
    /// # Errors
    /// The kernel has no memory left.
    pub fn new(options: BufferOptions) -> io::Result<Self> {
        Self::within(options, &Region::anonymous)
    }

    /// As [`new`](Self::new), in memory that `allocate` gives, unless its pages are replaced or must be large. The window takes the buffers at
    /// its start before others.
    ///
    /// # Errors
    /// Its errors, and the kernel's.
    pub fn within(
        options: BufferOptions,
        allocate: &(impl Fn(usize) -> io::Result<Region> + ?Sized),
    ) -> io::Result<Self> {
        let (size, each) = options.layout();
        let bytes = WINDOW * size * each;
        let region = Arc::new(match options {
            BufferOptions { huge_pages: true, .. } => Region::anonymous_huge(bytes)?,
            BufferOptions { zeroed_pages: true, .. } => Region::anonymous(bytes)?,
            _ => allocate(bytes)?,
        });
        // A slice, which others may share.
        let region = region.slice(0..region.len()).map_err(io::Error::other)?;
        Ok(Self {
            regions: [region].into(),
            size,
            each,
            headroom: if each == 1 && size > PAGE { HEADROOM } else { 0 },
            zeroed: options.zeroed_pages,
            used: [0; WINDOW],
            kept: None,
        })
    }

    /// As [`new`](Self::new), with `spare` further buffers, so that receivers can keep frames. A kept
    /// frame is contiguous, so pages are not zeroed.
    ///
    /// # Errors
    /// The kernel has no memory left.
    pub fn with_spares(options: BufferOptions, spare: usize) -> io::Result<Self> {
        let (size, each) = BufferOptions { zeroed_pages: false, ..options }.layout();
        let allocate = if options.huge_pages { Region::anonymous_huge } else { Region::anonymous };
        let whole = Arc::new(allocate((WINDOW + spare) * size)?);
        let kept = Some(KeptBuffers::new(&whole, size)?);
        let regions = [whole.slice(0..whole.len())?].into();
        let headroom = HEADROOM;
        Ok(Self { regions, size, each, headroom, zeroed: false, used: [0; WINDOW], kept })
    }

    /// Populates all buffers now, in 2 MiB pages.
    ///
    /// # Errors
    /// The kernel has no such pages. The buffers are still usable, in pages of 4 KiB.
    pub fn populate_huge(&self) -> io::Result<()> {
        self.region().populate_huge(0..self.region().len())
    }

    pub(crate) fn region(&self) -> &Region {
        &self.regions[0]
    }

    /// Prepares a slot's buffers for a read. Returns how many pages were zeroed.
    pub(crate) fn prepare(&mut self, slot: usize) -> u64 {
        if let Some(kept) = &mut self.kept {
            kept.renew(slot);
        }
        let used = std::mem::take(&mut self.used[slot]);
        if !self.zeroed || used == 0 {
            return 0;
        }
        // A slot's buffers are adjacent, and within the region for any slot.
        let (start, len) = (slot * self.each * self.size, usize::from(used) * self.size);
        if self.region().renew(start, len).is_err() {
            // The system refuses to take back locked pages, which are zeroed in place instead.
            let _ = self.region().zero(start, len);
        }
        used.into()
    }

    /// A slot's buffers, each as its first byte and its length.
    ///
    /// A body begins where it would if its header were at the buffer's start. So the pages that the frame is copied to begin where pages
    /// of the buffer do: the copy of each is in one page here too, which is one operation of a hypervisor instead of two.
    pub(crate) fn places(
        &self,
        slot: usize,
    ) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
        let size = self.size;
        let first = self.kept.as_ref().map_or(slot * self.each, |kept| kept.current(slot));
        let headroom = self.headroom;
        (first..first + self.each).map(move |n| (n * size + headroom, size - headroom))
    }

    /// Whether each frame has one buffer, whose pages are not zeroed.
    pub(crate) fn are_single(&self) -> bool {
        self.each == 1 && !self.zeroed
    }

    /// All of a slot's buffers, which are adjacent.
    pub(crate) fn range(&self, slot: usize) -> Range<usize> {
        let mut places = self.places(slot);
        let (start, len) = places.next().unwrap_or_default();
        start..places.last().map_or(start + len, |(last, len)| last + len)
    }

    /// Their memory, for readers of bodies.
    pub(crate) fn body(&self) -> Body<'_> {
        match &self.kept {
            Some(_) => Body::Buffers(self),
            None => Body::Regions(&self.regions),
        }
    }

    /// Notes that `bytes` were read into a slot's buffers, from the first on.
    pub(crate) fn fill(&mut self, slot: usize, bytes: usize) {
        self.used[slot] = u8::try_from(bytes.div_ceil(self.size)).unwrap_or(u8::MAX);
    }
}

impl ReceiveBuffers for Buffers {
    fn regions(&self) -> &Arc<[Region]> {
        &self.regions
    }

    fn keep(&self, frame: &Frame) -> Option<KeptFrame> {
        self.kept.as_ref()?.keep(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(large: bool, zeroed_pages: bool) -> Buffers {
        Buffers::new(BufferOptions { large, zeroed_pages, huge_pages: false }).unwrap()
    }

    #[test]
    fn a_frame_fits_its_buffers() {
        for (large, zeroed_pages, size, each) in [
            (true, false, 65_536 - HEADROOM, 1),
            (true, true, 4096, 16),
            (false, false, 2048, 1),
            (false, true, 4096, 1),
        ] {
            let buffers = buffers(large, zeroed_pages);
            let places: Vec<_> = buffers.places(WINDOW - 1).collect();
            assert_eq!(places.len(), each);
            assert!(places.iter().all(|(_, len)| *len == size));
            let end = places.iter().map(|(at, len)| at + len).max();
            assert_eq!(end, Some(buffers.region().len()));
            let room = HEADER_MAX + size * each;
            assert!(room > if large { FRAME_MAX } else { 1518 });
        }
    }

    #[test]
    fn pages_of_a_long_frame_are_pages_of_its_buffer() {
        let long = buffers(true, false);
        for slot in [0, 1, WINDOW - 1] {
            assert_eq!(long.places(slot).next().unwrap().0 % PAGE, HEADER_MAX);
        }
    }

    #[test]
    fn what_was_used_is_zeroed_and_nothing_else() {
        let mut pages = buffers(true, true);
        assert_eq!(pages.prepare(3), 0, "the kernel's pages are zero at first");
        let start = pages.places(3).next().unwrap().0;
        for page in 0..16 {
            pages.region().write(start + page * PAGE, 7u8).unwrap();
        }
        pages.fill(3, 2 * PAGE + 1);
        assert_eq!((pages.prepare(2), pages.prepare(3), pages.prepare(3)), (0, 3, 0));
        let first = |page| pages.region().read::<u8>(start + page * PAGE).unwrap();
        assert_eq!([0, 1, 2, 3].map(first), [0, 0, 0, 7]);

        let mut recycled = buffers(true, false);
        recycled.region().write(0, 7u8).unwrap();
        recycled.fill(0, 100);
        assert_eq!(recycled.prepare(0), 0);
        assert_eq!(recycled.region().read::<u8>(0), Ok(7));
    }
}
