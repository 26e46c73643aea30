//! What a worker's thread is doing.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a worker's thread is doing: the thread writes it, and the thread that looks for sleepers reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Activity {
    /// Counts its rounds from 1 on; 0 while it waits for events.
    round: AtomicU64,
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

    /// The thread waits for events.
    #[inline]
    pub(crate) fn rest(&self) {
        self.round.store(0, Ordering::Relaxed);
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
        Some(self.round.load(Ordering::Relaxed)).filter(|round| *round != 0)
    }

    /// The serial numbers of the ports whose memory it may touch: that from which frames come, and that to which they go.
    pub(crate) fn ports(&self) -> [Option<u64>; 2] {
        [&self.from, &self.to].map(|port| port.load(Ordering::Relaxed).checked_sub(1))
    }
}
