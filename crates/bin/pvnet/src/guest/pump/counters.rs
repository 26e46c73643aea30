//! What a queue's thread has carried, and how long its ring was full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use control_socket::QueueReport;
use netdev::Copied;

/// Written by the queue's thread alone, read by others at any time.
#[derive(Debug, Default)]
pub struct QueueCounters {
    frames: AtomicU64,
    full: AtomicU64,
    full_nanoseconds: AtomicU64,
    copies: AtomicU64,
    copy_hypercalls: AtomicU64,
}

impl QueueCounters {
    /// The counters now.
    pub fn report(&self) -> QueueReport {
        QueueReport {
            frames: self.frames.load(Ordering::Relaxed),
            full: self.full.load(Ordering::Relaxed),
            full_nanoseconds: self.full_nanoseconds.load(Ordering::Relaxed),
            copies: self.copies.load(Ordering::Relaxed),
            copy_hypercalls: self.copy_hypercalls.load(Ordering::Relaxed),
        }
    }
}

/// The thread's side: sees whether the transmit ring has room for the longest frame.
#[derive(Debug, Default)]
pub(super) struct RingWatch {
    counters: Arc<QueueCounters>,
    full_since: Option<Instant>,
}

impl RingWatch {
    pub(super) fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Returns `has_room`. Reads the clock only where it differs from the last time.
    #[inline]
    pub(super) fn note_room(&mut self, has_room: bool) -> bool {
        if has_room == self.full_since.is_some() {
            self.change();
        }
        has_room
    }

    #[cold]
    fn change(&mut self) {
        match self.full_since.take() {
            Some(since) => {
                let nanoseconds = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.counters.full_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
            }
            None => {
                self.full_since = Some(Instant::now());
                self.counters.full.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes what the guest has copied itself so far.
    pub(super) fn copied(&self, Copied { copies, hypercalls }: Copied) {
        self.counters.copies.store(copies, Ordering::Relaxed);
        self.counters.copy_hypercalls.store(hypercalls, Ordering::Relaxed);
    }

    /// Adds frames that were sent.
    pub(super) fn sent(&self, frames: u64) {
        self.counters.frames.fetch_add(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_full_to_not_full() {
        let mut watch = RingWatch::default();
        assert!(watch.note_room(true));
        assert_eq!(watch.counters().report(), QueueReport::default());
        assert!(!watch.note_room(false) && !watch.note_room(false));
        let full = watch.counters().report();
        assert_eq!((full.full, full.full_nanoseconds), (1, 0));
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(watch.note_room(true) && watch.note_room(true));
        watch.sent(3);
        let report = watch.counters().report();
        assert_eq!((report.full, report.frames), (1, 3));
        assert!(report.full_nanoseconds >= 2_000_000, "{report:?}");
    }
}
