//! Receiving: a ring that is kept filled with free pages.

#![expect(
    clippy::cast_possible_truncation,
    reason = "page numbers and lengths here are bounded by the pages or a page"
)]

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use cdna::descriptor::FRAGMENTS_MAX;
use cdna::ring::{self, SLOTS};
use cdna::{Flags, RxCompletion};
use hypervisor::PAGE_SIZE;
use netdev::Metadata;
use offload::{Checksum, Gso};
use shm::Iovec;

use crate::Fault;
use crate::call_page::BATCH;
use crate::pages::{Memory, RX_PAGES};
use crate::ring::Ring;

/// The fewest buffers that are posted together while at least half of the ring is full, if posting takes no call of the
/// hypervisor.
const REFILL_MIN: usize = 32;

/// A received frame. One value may be used for all frames.
#[derive(Clone, Debug, Default)]
pub struct ReceivedFrame {
    /// The index of its first completion.
    first: u32,
    parts: ArrayVec<Part, FRAGMENTS_MAX>,
    metadata: Metadata,
}

/// A part of a frame: the start of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) page: u32,
    pub(crate) len: u16,
}

impl ReceivedFrame {
    #[inline]
    pub(crate) fn metadata(&self) -> Metadata {
        self.metadata
    }

    /// The index of its first completion.
    #[inline]
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    #[inline]
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

pub(crate) struct RxRing {
    ring: Ring,
    memory: Memory,
    /// The index of the next completion to be read.
    taken: u32,
    /// The page of each slot's buffer.
    page_of: Box<[u32]>,
    /// Free pages, in the order in which they were freed.
    free: VecDeque<u32>,
    /// Whether the page that was freed first is used first. Otherwise the last one is, which may be in the CPU's cache.
    first_in_first_out: bool,
}

impl RxRing {
    pub(crate) fn new(ring: Ring, memory: Memory) -> Self {
        Self { free: (0..RX_PAGES as u32).collect(), ..Self::empty(ring, memory) }
    }

    /// A ring without pages. They are [posted](Self::post) one by one.
    pub(crate) fn empty(ring: Ring, memory: Memory) -> Self {
        let taken = ring.consumer();
        let (page_of, free) = (vec![0; SLOTS as usize].into(), VecDeque::new());
        let first_in_first_out = ring.needs_rest();
        Self { ring, memory, taken, page_of, free, first_in_first_out }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Stores the next frame in `frame`. Returns whether there was one. Its pages stay in use until they are
    /// [released](Self::release).
    ///
    /// # Errors
    /// The card completed what cannot be, or the hypervisor refused a call.
    #[inline]
    pub(crate) fn take(&mut self, frame: &mut ReceivedFrame) -> Result<bool, Fault> {
        if self.taken == self.ring.consumer() && self.ring.refresh()? == 0 {
            return Ok(false);
        }
        let (first, end) = (self.taken, self.ring.consumer());
        frame.parts.clear();
        (frame.first, frame.metadata.len) = (first, 0);
        loop {
            if self.taken == end || frame.parts.is_full() {
                return self.ring.fail(Fault::Unfinished(first));
            }
            let completion = self.ring.pages().rx_completion(self.taken);
            let RxCompletion { len, .. } = completion;
            if len == 0 || usize::from(len) > PAGE_SIZE {
                return self.ring.fail(Fault::Length { index: self.taken, len });
            }
            if self.taken == first {
                let gso = completion.gso().map(|(kind, size)| Gso { kind: kind.into(), size });
                if gso.is_some_and(|gso| gso.size == 0) {
                    return self.ring.fail(Fault::SegmentSize(first));
                }
                (frame.metadata.checksum, frame.metadata.gso) = (checksum(completion.flags()), gso);
            }
            let page = self.page_of[ring::slot(self.taken)];
            frame.parts.push(Part { page, len });
            frame.metadata.len += usize::from(len);
            self.taken = self.taken.wrapping_add(1);
            if completion.flags().contains(Flags::EOP) {
                return Ok(true);
            }
        }
    }

    /// Prefetches the start of the next frame, if there is one.
    #[inline]
    pub(crate) fn prefetch_next(&self) {
        if self.taken != self.ring.consumer() {
            let start = self.page_of[ring::slot(self.taken)] as usize * PAGE_SIZE;
            self.memory.region().prefetch(start);
            self.memory.region().prefetch(start + 64);
        }
    }

    /// The bytes of a frame, in order.
    #[inline]
    pub(crate) fn fragments<'a>(
        &'a self,
        frame: &'a ReceivedFrame,
    ) -> impl Iterator<Item = Iovec<'a>> {
        frame.parts.iter().map(|part| Iovec::Shared {
            region: self.memory.region(),
            offset: part.page as usize * PAGE_SIZE,
            len: part.len.into(),
        })
    }

    /// The pages may be posted again, with the next [refill](Self::refill).
    #[inline]
    pub(crate) fn release(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.free.extend(pages);
    }

    /// Posts free pages, if they are many or the ring is short of them.
    #[inline]
    pub(crate) fn refill(&mut self) {
        let posted = self.posted();
        let count = ((SLOTS - posted) as usize).min(self.free.len());
        let least = if self.ring.is_called() { BATCH } else { REFILL_MIN };
        let is_short = posted < SLOTS / 2;
        if count == 0 || (count < least && !is_short) {
            return;
        }
        // Calls are full, unless the ring is short of buffers.
        let count = if self.ring.is_called() && !is_short { count - count % BATCH } else { count };
        for _ in 0..count {
            let next =
                if self.first_in_first_out { self.free.pop_front() } else { self.free.pop_back() };
            let Some(page) = next else { break };
            self.post(page);
        }
        self.ring.announce();
    }

    /// Buffers whose completions were not read yet: their slots are not free.
    #[inline]
    pub(crate) fn posted(&self) -> u32 {
        self.ring.next().wrapping_sub(self.taken)
    }

    /// Posts a page, in a free slot. Returns its index. The card does not know of it before
    /// [`announce`](Self::announce).
    #[inline]
    pub(crate) fn post(&mut self, page: u32) -> u32 {
        let index = self.ring.next();
        self.page_of[ring::slot(index)] = page;
        self.ring.push(self.memory.address(page as usize), PAGE_SIZE as u16, Flags::NONE);
        index
    }

    /// Tells the card of the pages that were posted.
    pub(crate) fn announce(&mut self) {
        self.ring.announce();
    }

    /// The indices of the buffers whose completions were not read yet.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = u32> + use<> {
        let taken = self.taken;
        (0..self.posted()).map(move |n| taken.wrapping_add(n))
    }

    /// Asks for an interrupt at the next frame. Returns whether there is one already.
    pub(crate) fn arm(&self) -> bool {
        if self.taken != self.ring.consumer() {
            return true;
        }
        self.ring.arm(self.taken);
        self.ring.done() > 0
    }
}

#[inline]
fn checksum(flags: Flags) -> Checksum {
    let is_set = |flag| flags.contains(flag);
    Checksum::from_flags(is_set(Flags::CSUM_BLANK), is_set(Flags::CSUM_VALIDATED))
}
