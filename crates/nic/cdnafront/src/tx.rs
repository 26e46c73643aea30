//! Sending: a ring, and the pages that frames are sent from.
//!
//! The card completes descriptors in order, so pages are taken and freed in order too: each frame lies in the pages
//! after those of the frame before. It is one descriptor, or two where the pages start over.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and page counts here are bounded by a frame"
)]

use std::num::NonZeroU16;

use arrayvec::ArrayVec;
use cdna::descriptor::{FRAME_MAX, FRAME_MIN};
use cdna::ring::{self, SLOTS};
use cdna::{Flags, Offload};
use hypervisor::PAGE_SIZE;
use netdev::{Buffer, Burst, Metadata, Refused};
use offload::{Checksum, Gso};
use shm::{Iovec, OutOfBounds, Region};

use crate::Fault;
use crate::call_page::BATCH;
use crate::pages::{Memory, TX_PAGES};
use crate::ring::Ring;

/// Pages in use at most.
const USED_MAX: usize = TX_PAGES / 2;
/// Pages of the longest frame.
const FRAME_PAGES: usize = FRAME_MAX.div_ceil(PAGE_SIZE);
/// Descriptors of a frame at most: an offload's and two buffers'.
const FRAME_DESCRIPTORS: u32 = 3;

/// How much is handed over at once if that takes a call of the hypervisor: as many frames of the MTU as a call has descriptors.
const CALLED_BURST: Burst = Burst { frames: BATCH, bytes: BATCH * 1536 };

pub(crate) struct TxRing {
    ring: Ring,
    memory: Memory,
    /// How many pages are used in turn. Fewer pages stay in the CPU's cache more often.
    cycle: usize,
    /// The page after the last one in use.
    head: usize,
    /// Pages in use.
    used: usize,
    /// How many of them each slot's buffer has.
    owned: Box<[u8]>,
    /// Pages that the card is done with, since the start.
    freed: u64,
}

/// Consecutive free pages.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: usize,
    pages: usize,
}

impl TxRing {
    pub(crate) fn new(ring: Ring, memory: Memory) -> Self {
        let cycle = if ring.needs_rest() { TX_PAGES } else { USED_MAX };
        let owned = vec![0; SLOTS as usize].into();
        Self { ring, memory, cycle, head: 0, used: 0, owned, freed: 0 }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Whether the longest frame fits.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        USED_MAX - self.used >= FRAME_PAGES && self.ring.free() >= FRAME_DESCRIPTORS
    }

    /// Whether `frames` frames of `pages` pages in all fit. One of them may lie in two runs, and the last one
    /// must find room for any frame.
    #[inline]
    pub(crate) fn fits(&self, frames: usize, pages: usize) -> bool {
        let free = self.ring.free() as usize;
        USED_MAX - self.used >= pages && free >= frames + FRAME_DESCRIPTORS as usize
    }

    /// The free pages for the next frame, in order.
    #[inline]
    fn runs(&self) -> ArrayVec<Run, 2> {
        let mut runs = ArrayVec::new();
        if self.ring.free() < FRAME_DESCRIPTORS {
            return runs;
        }
        let free = FRAME_PAGES.min(USED_MAX - self.used);
        let before_end = free.min(self.cycle - self.head);
        let all = [(self.head, before_end), (0, free - before_end)];
        runs.extend(
            all.into_iter().filter(|run| run.1 > 0).map(|(first, pages)| Run { first, pages }),
        );
        runs
    }

    /// The memory for the next frame's bytes, in order. Empty if there is no room.
    #[inline]
    pub(crate) fn buffers(&self) -> impl Iterator<Item = Buffer<'_>> {
        self.runs().into_iter().map(|Run { first, pages }| Buffer {
            region: self.memory.region(),
            offset: first * PAGE_SIZE,
            len: pages * PAGE_SIZE,
        })
    }

    /// Copies a frame's bytes into [`buffers`](Self::buffers). Returns how many.
    ///
    /// # Errors
    /// An iovec does not lie in its region.
    pub(crate) fn copy<'a>(
        &self,
        iovecs: impl IntoIterator<Item = Iovec<'a>>,
    ) -> Result<usize, CopyError> {
        let mut to =
            Cursor { memory: self.memory.region(), runs: self.runs(), taken: 0, copied: 0 };
        for iovec in iovecs {
            to.copy(iovec)?;
        }
        Ok(to.copied)
    }

    /// Sends the frame that is in [`buffers`](Self::buffers). The next [`announce`](Self::announce) hands it over.
    ///
    /// # Errors
    /// There is no room, or no frame has this length or segment size. Nothing was sent.
    #[inline]
    pub(crate) fn submit(&mut self, frame: Metadata) -> Result<(), Refused> {
        let Metadata { len, checksum, gso } = frame;
        let offload = match gso {
            Some(Gso { kind, size }) => {
                let kind = kind.netif().ok_or(Refused)?;
                Some(Offload { kind, size: NonZeroU16::new(size).ok_or(Refused)? })
            }
            None => None,
        };
        let runs = self.runs();
        let room: usize = runs.iter().map(|run| run.pages * PAGE_SIZE).sum();
        if !(FRAME_MIN..=FRAME_MAX.min(room)).contains(&len) {
            return Err(Refused);
        }
        let is_blank = checksum == Checksum::Partial;
        let mut flags = if is_blank { Flags::CSUM_BLANK } else { Flags::NONE };
        if let Some(offload) = offload {
            self.own(0);
            // The flags of the whole frame are its first descriptor's.
            self.ring.push_offload(offload, std::mem::take(&mut flags));
        }
        let mut left = len;
        for Run { first, pages } in runs {
            let bytes = left.min(pages * PAGE_SIZE);
            left -= bytes;
            let end = if left == 0 { Flags::EOP } else { Flags::NONE };
            self.own(bytes.div_ceil(PAGE_SIZE));
            // At most FRAME_MAX.
            self.ring.push(self.memory.address(first), bytes as u16, flags | end);
            flags = Flags::NONE;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes pages for the buffer of the next descriptor.
    #[inline]
    fn own(&mut self, pages: usize) {
        self.owned[ring::slot(self.ring.next())] = pages as u8;
        self.used += pages;
        self.head += pages;
        if self.head == self.cycle {
            self.head = 0;
        }
    }

    /// Hands all submitted frames to the card.
    #[inline]
    pub(crate) fn announce(&mut self) {
        self.ring.announce();
    }

    /// Frees the pages of frames that were sent, if at least half of the slots or of the pages are in use. Checking seldom
    /// saves cache misses. Where calls of the hypervisor are needed, [enough](Self::enough) must be sent.
    #[inline]
    pub(crate) fn reclaim(&mut self) -> Result<(), Fault> {
        let is_half_full = self.ring.used() >= SLOTS / 2 || self.used >= USED_MAX / 2;
        let least = if self.ring.is_called() { self.enough() } else { 1 };
        if is_half_full && self.ring.done() >= least {
            self.reclaim_now()
        } else {
            self.ring.check()
        }
    }

    /// How many descriptors must be sent before a full ring is refilled: otherwise it would take an interrupt, and perhaps a
    /// call of the hypervisor, for each few slots that become free. The card has three quarters of the ring meanwhile.
    #[inline]
    pub(crate) fn enough(&self) -> u32 {
        (self.ring.used() / 4).max(1)
    }

    /// Frees the pages of frames that were sent.
    ///
    /// # Errors
    /// The card has an impossible index, or the hypervisor refused a call.
    pub(crate) fn reclaim_now(&mut self) -> Result<(), Fault> {
        let (count, before) = (self.ring.refresh()?, self.used);
        for n in 1..=count {
            let index = self.ring.consumer().wrapping_sub(n);
            self.used -= usize::from(self.owned[ring::slot(index)]);
        }
        self.freed += (before - self.used) as u64;
        Ok(())
    }

    /// Pages of frames that were sent, since the start.
    #[inline]
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }

    /// Asks for an interrupt when `least` descriptors were sent: at least 1, at most as many as the card has. Returns
    /// whether that many were sent already.
    pub(crate) fn arm(&self, least: u32) -> bool {
        self.ring.arm(self.ring.consumer().wrapping_add(least - 1));
        self.ring.done() >= least
    }

    /// How much is handed over at once.
    pub(crate) fn burst(&self) -> Burst {
        if self.ring.is_called() { CALLED_BURST } else { Burst::SHORT }
    }
}

/// Why a frame was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// There is no room for it.
    Room,
    /// Its memory cannot be read.
    Source,
}

impl From<OutOfBounds> for CopyError {
    fn from(_: OutOfBounds) -> Self {
        Self::Source
    }
}

/// Where the next bytes of a frame go.
struct Cursor<'a> {
    memory: &'a Region,
    runs: ArrayVec<Run, 2>,
    /// Bytes in the first run.
    taken: usize,
    /// Bytes of the frame.
    copied: usize,
}

impl Cursor<'_> {
    fn copy(&mut self, iovec: Iovec<'_>) -> Result<(), CopyError> {
        let len = match iovec {
            Iovec::Shared { len, .. } => len,
            Iovec::Private(bytes) => bytes.len(),
        };
        let mut done = 0;
        while done < len {
            let Run { first, pages } = *self.runs.first().ok_or(CopyError::Room)?;
            let now = (len - done).min(pages * PAGE_SIZE - self.taken);
            if now == 0 {
                self.runs.remove(0);
                self.taken = 0;
                continue;
            }
            let to = first * PAGE_SIZE + self.taken;
            match iovec {
                Iovec::Shared { region, offset, .. } => {
                    Region::copy_between(region, offset + done, self.memory, to, now)?;
                }
                Iovec::Private(bytes) => self.memory.copy_in(to, &bytes[done..done + now])?,
            }
            self.taken += now;
            self.copied += now;
            done += now;
        }
        Ok(())
    }
}
