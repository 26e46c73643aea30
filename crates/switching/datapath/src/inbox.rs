//! Frames for a port in whose memory a thread may sleep, from ports that cannot wait for that.
//!
//! Their senders' turns copy them here, and the turns of the port's own queue deliver them. So a thread that sleeps in the port's memory has nothing of
//! anybody else in its hands. There are two batches: one is filled while the other one is delivered.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use port::{Body, Offer, Outcome, WINDOW};

use crate::copies::Copies;

/// The frames on their way to one egress queue.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Locked while frames are copied, none of which lies in memory where a thread sleeps.
    filling: Mutex<Filling>,
    /// Locked for a turn of the port's own queue, the one reader.
    delivering: Mutex<Delivering>,
    /// How many frames both have.
    count: AtomicUsize,
    /// A bit for each worker that waits for room.
    waiters: AtomicU64,
}

#[derive(Debug, Default)]
struct Filling {
    copies: Copies,
    /// The worker that sleeps until there is a frame.
    armed: Option<usize>,
}

/// Frames that are being delivered.
#[derive(Debug, Default)]
pub(crate) struct Delivering {
    pub(crate) copies: Copies,
    /// A bit for each that is not done with.
    pub(crate) left: u64,
    /// How many segments of the first of these are sent, and whether its checksum is right.
    pub(crate) sent: u16,
    pub(crate) is_right: Option<bool>,
}

impl Inbox {
    /// Whether a turn may have work.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Copies frames here, as many as there is room for; the others wait. Returns the worker to be woken, if one sleeps.
    pub(crate) fn put(
        &self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        worker: usize,
    ) -> Option<usize> {
        let mut filling = self.filling.lock();
        let (mut rest, mut most, mut taken) = (offers, WINDOW, 0);
        while let Some(first) = rest.first() {
            if !filling.copies.has_room(first.frame) {
                // Under the lock: the reader checks after it has taken frames.
                self.waiters.fetch_or(1 << worker, Ordering::AcqRel);
                break;
            }
            let frames = rest.iter().take(most).map(|offer| offer.frame);
            let mut count = filling.copies.append(frames, body);
            let mut outcome = Outcome::Delivered;
            taken += count;
            if count == 0 {
                // One of them cannot be read. Which one, only a copy of each alone can tell.
                if std::mem::replace(&mut most, 1) > 1 {
                    continue;
                }
                (count, outcome) = (1, Outcome::SourceFault);
            }
            let (done, later) = rest.split_at_mut(count);
            done.iter_mut().for_each(|offer| offer.outcome = outcome);
            rest = later;
        }
        self.count.fetch_add(taken, Ordering::Relaxed);
        if taken > 0 { filling.armed.take() } else { None }
    }

    /// The frames to be delivered, and the workers that wait for room that there is now. None if an earlier thread still sleeps with them.
    pub(crate) fn take(&self) -> Option<(MutexGuard<'_, Delivering>, u64)> {
        let mut delivering = self.delivering.try_lock()?;
        if delivering.left != 0 {
            return Some((delivering, 0));
        }
        delivering.copies.clear();
        let mut filling = self.filling.lock();
        std::mem::swap(&mut filling.copies, &mut delivering.copies);
        let count = delivering.copies.frames().len();
        // At most WINDOW.
        delivering.left = if count == 0 { 0 } else { u64::MAX >> (64 - count) };
        Some((delivering, self.waiters.swap(0, Ordering::AcqRel)))
    }

    /// So many frames are done with.
    pub(crate) fn done(&self, frames: u64) {
        self.count.fetch_sub(usize::try_from(frames).unwrap_or(0), Ordering::Relaxed);
    }

    /// Has the next frame wake this worker. Returns false if there is a frame that need not wait for room.
    #[cold]
    pub(crate) fn arm(&self, worker: usize, is_blocked: bool) -> bool {
        let mut filling = self.filling.lock();
        if !self.has_work() {
            filling.armed = Some(worker);
            return true;
        }
        is_blocked && self.delivering.try_lock().is_none_or(|delivering| delivering.left != 0)
    }
}

impl Delivering {
    /// The frames that are not done with, in order.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.copies.frames().len()).filter(|place| self.left & (1 << place) != 0)
    }
}
