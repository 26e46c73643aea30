//! What a worker's thread is doing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a worker's thread is doing: the thread writes it, and the thread that looks for sleepers reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Activity {
    /// Counts its rounds from 1 on; 0 while it waits for events.
    round: AtomicU64,
    /// Nanoseconds since the start of the datapath after which it must not wait for events any more; 0 for no such time.
    past: AtomicU64,
    /// The serial number, and one, of the port whose queue or task has its turn, and of the port to which frames are delivered.
    from: AtomicU64,
    to: AtomicU64,
}

impl Activity {
    /// The thread is in this round. After a wait for events, [`Dozer::wake`](poller::Dozer::wake) has the barrier that belongs to
    /// it; rounds one after the other need none.
    #[inline]
    pub(crate) fn begin_round(&self, number: u64) {
        self.round.store(number, Ordering::Relaxed);
    }

    /// The thread waits for events, and not long past this time since the start of the datapath. If there is one, [`Dozer::wake`](poller::Dozer::wake)
    /// must follow.
    #[inline]
    pub(crate) fn rest(&self, past: Option<Duration>) {
        let past = past.map_or(0, |past| u64::try_from(past.as_nanos()).unwrap_or(u64::MAX));
        self.past.store(past, Ordering::Relaxed);
        // Whoever sees that it waits sees how long.
        self.round.store(0, Ordering::Release);
    }

    /// The port whose queue or task has its turn.
    #[inline]
    pub(crate) fn serve(&self, port: u64) {
        self.from.store(port + 1, Ordering::Relaxed);
        self.to.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn deliver(&self, port: u64) {
        self.to.store(port + 1, Ordering::Relaxed);
    }

    /// The number of its round; none while it waits for events.
    pub(crate) fn round(&self) -> Option<u64> {
        Some(self.round.load(Ordering::Acquire)).filter(|round| *round != 0)
    }

    /// If it waits for events: after how much time since the start of the datapath it must be rung.
    pub(crate) fn past(&self) -> Option<Duration> {
        let past = self.round().is_none().then(|| self.past.load(Ordering::Relaxed));
        past.filter(|past| *past != 0).map(Duration::from_nanos)
    }

    /// The serial numbers of the ports whose memory it may touch: that from which frames come, and that to which they go.
    pub(crate) fn ports(&self) -> [Option<u64>; 2] {
        [&self.from, &self.to].map(|port| port.load(Ordering::Relaxed).checked_sub(1))
    }
}
