//! Copies that have not been sent yet.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offload::Checksum;
use port::{Body, Doorbell, FRAME_MAX, Fragment, Frame, HEADER_MAX, Lent, linearise};
use shm::Region;

/// The most copies in a buffer. It uses memory for as many as were in it at once, up to 64 KiB each.
pub const COPIES_MAX: u16 = 256;
/// The most bytes that are copied at a time, for all mirrors of a queue. A guest can send a whole window of the longest frames that are then
/// dropped. The queues behind its turn wait for the copies: some tenths of a millisecond, as long as a turn delivers.
pub const COPY_BYTES: usize = 2 << 20;
/// Bytes between the bodies of two copies.
const STRIDE: usize = FRAME_MAX.next_power_of_two();

/// What became of the frames of mirrored ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorCounts {
    /// Frames that were copied.
    pub copied: u64,
    /// Frames for which there was no room.
    pub lost: u64,
}

/// A copy: its frame, and the place of its body.
pub(crate) type Copy = (u16, Frame);

#[derive(Debug)]
pub(crate) struct Buffer {
    /// The bodies; one region.
    regions: Arc<[Region]>,
    copies: Mutex<Copies>,
    pub(crate) doorbell: Arc<Doorbell>,
    snaplen: usize,
    copied: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Copies {
    free: Vec<u16>,
    ready: VecDeque<Copy>,
    /// Whether the reader waits for the doorbell.
    is_armed: bool,
}

impl Buffer {
    pub(crate) fn new(snaplen: u32) -> io::Result<Self> {
        // The kernel gives a page when it is first written.
        let region = Region::anonymous(usize::from(COPIES_MAX) * STRIDE)?;
        let (free, ready) = ((0..COPIES_MAX).rev().collect(), VecDeque::new());
        let snaplen = match usize::try_from(snaplen) {
            Ok(0) | Err(_) => FRAME_MAX,
            Ok(len) => len.clamp(HEADER_MAX, FRAME_MAX),
        };
        Ok(Self {
            regions: [region].into(),
            copies: Mutex::new(Copies { free, ready, is_armed: false }),
            doorbell: Arc::new(Doorbell::new()?),
            snaplen,
            copied: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    pub(crate) fn counts(&self) -> MirrorCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MirrorCounts { copied: read(&self.copied), lost: read(&self.lost) }
    }

    /// The memory of the bodies.
    pub(crate) fn regions(&self) -> &Arc<[Region]> {
        &self.regions
    }

    /// Copies frames whose bodies lie in `body`, as many as there is room for, and as `left` bytes allow. `scratch` has room for a frame.
    pub(crate) fn copy<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame>,
        body: Body<'_>,
        scratch: &mut [u8],
        left: &mut usize,
    ) {
        let (mut copied, mut lost) = (0, 0);
        for frame in frames {
            let Some(rest) = left.checked_sub(frame.len as usize) else {
                lost += 1;
                continue;
            };
            // The lock is not held while bytes are copied: others copy too.
            let Some(place) = self.copies().free.pop() else {
                lost += 1;
                continue;
            };
            *left = rest;
            match self.copy_to(place, frame, body, scratch) {
                Some(frame) => {
                    copied += 1;
                    self.copies().ready.push_back((place, frame));
                }
                None => self.copies().free.push(place),
            }
        }
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.copied.fetch_add(copied, Ordering::Relaxed);
        if copied > 0 && std::mem::take(&mut self.copies().is_armed) {
            self.doorbell.ring();
        }
    }

    /// Copies a frame to a place that was free; none if its sender's memory cannot be read.
    fn copy_to(
        &self,
        place: u16,
        frame: &Frame,
        body: Body<'_>,
        scratch: &mut [u8],
    ) -> Option<Frame> {
        let whole = scratch.get_mut(..frame.len as usize)?;
        linearise(frame, body, whole).ok()?;
        let len = whole.len().min(self.snaplen);
        let mut copy =
            Frame { fragments: Default::default(), tail: None, lent: Lent::NONE, ..frame.clone() };
        if len < whole.len() {
            // A frame that was cut can be neither segmented nor have its checksum completed.
            (copy.gso, copy.checksum) = (None, Checksum::Unknown);
            copy.len = u32::try_from(len).ok()?;
        }
        let header = usize::from(copy.header_len).min(len);
        copy.header_len = u8::try_from(header).ok()?;
        let rest = &whole[header..len];
        if !rest.is_empty() {
            let offset = usize::from(place) * STRIDE;
            self.regions.first()?.copy_in(offset, rest).ok()?;
            copy.fragments.push(Fragment::in_region(
                0,
                offset as u64,
                u16::try_from(rest.len()).ok()?,
            ));
        }
        Some(copy)
    }

    /// Takes the oldest copy.
    pub(crate) fn take(&self) -> Option<Copy> {
        self.copies().ready.pop_front()
    }

    /// Frees the places of copies that are not used any more.
    pub(crate) fn free(&self, places: impl Iterator<Item = u16>) {
        self.copies().free.extend(places);
    }

    /// Has the doorbell ring for the next copy. Returns false if a copy is there already.
    pub(crate) fn arm(&self) -> bool {
        let mut copies = self.copies();
        copies.is_armed = copies.ready.is_empty();
        copies.is_armed
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
