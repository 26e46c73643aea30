//! What a worker's thread is doing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often it is checked while the thread does not wait for events. A check takes the CPU from whatever runs there, perhaps a worker: at 1 ms that was
/// 2 % of a worker that shares its CPU.
pub(crate) const TICK: Duration = Duration::from_millis(3);

/// What a worker's thread is doing: the thread writes it, and the thread that watches for sleepers reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Activity {
    /// Counts its rounds from 1 on; 0 while it waits for events.
    round: AtomicU64,
    /// Nanoseconds since the start of the datapath after which it must not wait for events any more; 0 for no such time.
    past: AtomicU64,
    /// Counts its turns: two reads tell whether it is still in the same one.
    turn: AtomicU64,
    /// The serial number, and one, of the port whose queue or task has its turn, and of the port to which frames are delivered.
    from: AtomicU64,
    to: AtomicU64,
    /// Whether those frames are copies, in memory of this process.
    are_copies: AtomicBool,
}

/// A turn of a worker's thread, and whose memory it may touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    number: u64,
    /// The serial number of the port whose queue or task it is.
    pub(crate) from: Option<u64>,
    /// The port to which frames are being delivered.
    pub(crate) to: Option<u64>,
    /// Whether these are copies: the thread touches nothing of the port that they came from.
    pub(crate) are_copies: bool,
}

impl Turn {
    /// Whether the same ports are in the thread's hands in both.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.from, self.to, self.are_copies) == (other.from, other.to, other.are_copies)
    }
}

impl Activity {
    /// The thread is in this round. After a wait for events, [`Alarm::set`](poller::Alarm::set) has the barrier that belongs to
    /// it; rounds one after the other need none.
    #[inline]
    pub(crate) fn begin_round(&self, number: u64) {
        self.round.store(number, Ordering::Relaxed);
    }

    /// The thread waits for events, and not long past this time since the start of the datapath. If there is one, [`Alarm::set`](poller::Alarm::set)
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
        self.begin_turn(port + 1);
    }

    /// No port has a turn: it polls for events, or executes commands.
    #[inline]
    pub(crate) fn serve_none(&self) {
        self.begin_turn(0);
    }

    #[inline]
    fn begin_turn(&self, from: u64) {
        self.turn.store(self.turn.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.from.store(from, Ordering::Relaxed);
        self.to.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn deliver(&self, port: u64) {
        self.to.store(port + 1, Ordering::Relaxed);
    }

    /// It has delivered them.
    #[inline]
    pub(crate) fn delivered(&self) {
        self.to.store(0, Ordering::Relaxed);
    }

    /// Runs `deliver`, which delivers copies of frames.
    pub(crate) fn with_copies(&self, deliver: impl FnOnce()) {
        self.are_copies.store(true, Ordering::Relaxed);
        deliver();
        self.are_copies.store(false, Ordering::Relaxed);
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

    /// Its present turn, or its last one. A thread that sleeps changes nothing of it.
    pub(crate) fn turn(&self) -> Turn {
        let [from, to] =
            [&self.from, &self.to].map(|port| port.load(Ordering::Relaxed).checked_sub(1));
        let number = self.turn.load(Ordering::Relaxed);
        Turn { number, from, to, are_copies: self.are_copies.load(Ordering::Relaxed) }
    }
}
