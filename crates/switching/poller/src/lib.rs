//! Decides whether a thread without work polls or sleeps.
//!
//! A thread on another CPU runs some 25 µs after it was woken, and waking it costs its waker 7 µs. In a
//! series of round trips each thread waits for less than that, so polling is cheaper, with a `sched_yield`
//! ([`Yields`]) between two polls for other threads. Under bulk traffic sleeping is cheaper: a thread that
//! wakes up finds many frames, and the CPU has other work meanwhile.
//!
//! A [`Poller`] watches the waits of one thread. It lets the thread poll while waits are short and bursts are
//! small, and gives up when polling finds nothing. An idle thread never polls.
//!
//! A lone frame is often answered hundreds of microseconds later, when all threads on its way have been woken up. If answers came lately, a thread
//! polls for the next one too (`lone`), for a hundredth of the time at most.
//!
//! A thread that has a CPU to itself need not sleep at all: [`Poller::always`].
//!
//! A thread that checks something from time to time sleeps while there is nothing to check: [`Dozer`], [`Alarm`].

#![forbid(unsafe_code)]

mod doze;
mod lone;
mod yields;

use std::time::{Duration, Instant};

use lone::Lone;

pub use doze::{Alarm, Awake, AwakeFlag, Dozer, doze_until, must_wake};
pub use yields::Yields;

/// For how long a wait is polled at most, by default: four wake-ups of another CPU.
pub const POLL: Duration = Duration::from_micros(100);
/// A wait of up to this many times the limit counts as short while the thread sleeps: with sleeping threads
/// a round trip takes that much longer.
const SLOW: u32 = 2;
/// A poll that comes this many times the limit after the one before is late: another program used the CPU for a time slice. The other threads
/// of a round trip use it for less, also when all of them share one CPU.
const LATE: u32 = 5;
/// A burst of more bytes is bulk: a frame that TCP does not send before it has that much.
const BULK_BYTES: u64 = 16 * 1024;
/// A burst of more frames is bulk.
const BULK_FRAMES: usize = 16;
/// A burst is not bulk if its polls found no more bytes or frames each on average: the round trip is so fast that each poll finds the
/// next frame.
const POLL_BYTES: u64 = 2048;
const POLL_FRAMES: usize = 2;
/// A burst that is not bulk after this many polls begins anew: earlier frames say nothing of what comes next.
const BURST_POLLS: u32 = 64;
/// Waits after a bulk burst that are not polled. Between the bursts there are others with acknowledgements.
const BULK_WAITS: u8 = 16;
/// Short waits in a row after which a thread begins to poll.
const START: u8 = 4;
/// The first and highest score: this many waits that are polled in vain end polling. Those that it
/// waits for begin at other times.
const SCORE_MAX: u8 = 8;
/// What a wait that ended in time adds. Every second wait may end late: a thread that forwards requests and
/// replies may wait long for the one, and not for the other.
const HIT: u8 = 2;
/// Waits that are not polled after polling ended, at least. The number doubles each time, and halves after as many waits that ended in
/// time.
const REST_MIN: u16 = 16;
/// The same at most.
const REST_MAX: u16 = 4096;
/// The same, at least, after a [late](LATE) poll that comes soon after another. `sched_yield` gives whole time slices away, so
/// one such wait costs more than a thousand wake-ups save.
const REST_CROWDED: u16 = 1024;
/// After this many waits that ended in time, polling has saved more than a late poll costs: the CPU was taken once only.
const CALM: u16 = 2 * REST_CROWDED;

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// It polls each wait for as long as it lasts.
    Always,
    /// It polls where that helps, a wait in a series of round trips for at most this time; zero: never.
    UpTo(Duration),
}

impl Default for Polling {
    fn default() -> Self {
        Self::UpTo(POLL)
    }
}

/// The waits of a thread, and whether it polls.
#[derive(Clone, Debug)]
pub struct Poller {
    limit: Duration,
    /// It never sleeps.
    always: bool,
    /// Waits for the answers of lone frames.
    lone: Lone,
    /// When the present wait began, and when its last poll was.
    since: Option<Instant>,
    last_poll: Instant,
    /// Whether the present wait is polled, and whether it was at first.
    polls: bool,
    was_polled: bool,
    /// What was done since the last wait.
    burst: Burst,
    /// The next waits that are not polled, because of a bulk burst.
    bulk: u8,
    /// Short waits in a row while waits are not polled.
    short: u8,
    /// Above zero, waits are polled.
    score: u8,
    /// The next waits that are not polled, because polling was in vain.
    rest: u16,
    next_rest: u16,
    /// Polled waits that ended in time since this number changed.
    hits: u16,
    /// The same since the last late poll, up to [`CALM`].
    calm: u16,
}

/// Work between two waits.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    polls: u32,
    frames: usize,
    bytes: u64,
}

impl Burst {
    #[inline]
    fn add(&mut self, frames: usize, bytes: u64) {
        if self.polls >= BURST_POLLS && !self.is_bulk() {
            *self = Self::default();
        }
        // A poll that brings no frame, only malformed packets, is not counted.
        self.polls = self.polls.saturating_add(u32::from(frames > 0));
        self.frames += frames;
        self.bytes += bytes;
    }

    fn is_bulk(self) -> bool {
        let Self { polls, frames, bytes } = self;
        frames > BULK_FRAMES.max(POLL_FRAMES.saturating_mul(polls as usize))
            || bytes > BULK_BYTES.max(POLL_BYTES.saturating_mul(polls.into()))
    }
}

impl Poller {
    /// A poller that never polls a wait for longer than `limit`; zero: not at all.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            always: false,
            lone: Lone::new(Instant::now()),
            since: None,
            last_poll: Instant::now(),
            polls: false,
            was_polled: false,
            burst: Burst::default(),
            bulk: 0,
            short: 0,
            score: 0,
            rest: 0,
            next_rest: REST_MIN,
            hits: 0,
            calm: 0,
        }
    }

    /// A poller of a thread that waits so.
    #[must_use]
    pub fn of(polling: Polling) -> Self {
        match polling {
            Polling::Always => Self::always(),
            Polling::UpTo(limit) => Self::new(limit),
        }
    }

    /// A poller that polls each wait for as long as it lasts.
    #[must_use]
    pub fn always() -> Self {
        Self { always: true, ..Self::new(POLL) }
    }

    /// Whether it polls each wait for as long as it lasts.
    #[must_use]
    #[inline]
    pub fn is_always(&self) -> bool {
        self.always
    }

    /// The longest time for which a wait is polled, in a series of short ones.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The thread polled and found `frames` frames of `bytes` bytes in all. `now` is the time of the poll; it is
    /// only called if a wait ends.
    #[inline]
    pub fn worked(&mut self, frames: usize, bytes: u64, now: impl FnOnce() -> Instant) {
        self.burst.add(frames, bytes);
        if self.always {
            return;
        }
        if let Some(since) = self.since.take() {
            self.end_wait(since, now());
        }
    }

    /// The thread polled and found nothing. Returns whether it should yield and poll again; otherwise it should sleep.
    #[inline]
    pub fn is_worth_polling(&mut self, now: Instant) -> bool {
        if self.always {
            return true;
        }
        match self.since {
            Some(since) if self.polls => {
                self.polls = now.saturating_duration_since(since) < self.limit;
                if !self.polls {
                    self.end_polled_wait(since, now);
                }
            }
            Some(_) => {}
            None => self.begin_wait(now),
        }
        self.last_poll = now;
        self.polls || self.lone.polls_on(now)
    }

    /// A wait begins: decides whether it is polled.
    fn begin_wait(&mut self, now: Instant) {
        let is_bulk = std::mem::take(&mut self.burst).is_bulk();
        if is_bulk {
            self.bulk = BULK_WAITS;
        } else {
            self.bulk = self.bulk.saturating_sub(1);
        }
        self.polls = self.score > 0 && self.bulk == 0;
        self.lone.begin_wait(now, !is_bulk && !self.limit.is_zero());
        self.was_polled = self.polls;
        self.since = Some(now);
    }

    /// Learns from a wait that ended with work.
    fn end_wait(&mut self, since: Instant, now: Instant) {
        let took = now.saturating_duration_since(since);
        self.lone.end_wait(now);
        if self.polls {
            self.end_polled_wait(since, now);
        } else if self.was_polled || self.bulk > 0 || self.limit.is_zero() {
            // Of a wait that was polled, enough is known. One between bulk bursts says nothing about round trips.
        } else if took >= self.limit * SLOW {
            self.short = 0;
        } else if self.rest > 0 {
            self.rest -= 1;
        } else {
            self.short += 1;
            if self.short == START {
                (self.short, self.score) = (0, SCORE_MAX);
            }
        }
    }

    /// Learns from a wait whose polling ends, with work or without.
    fn end_polled_wait(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(self.last_poll) >= self.limit * LATE {
            self.score = 0;
            if std::mem::take(&mut self.calm) < CALM {
                self.next_rest = self.next_rest.max(REST_CROWDED / 2);
            }
        } else if now.saturating_duration_since(since) < self.limit {
            self.score = (self.score + HIT).min(SCORE_MAX);
            self.hits += 1;
            self.calm = (self.calm + 1).min(CALM);
            if self.hits >= self.next_rest {
                (self.hits, self.next_rest) = (0, (self.next_rest / 2).max(REST_MIN));
            }
        } else {
            self.score = self.score.saturating_sub(1);
        }
        if self.score == 0 {
            self.next_rest = (self.next_rest * 2).min(REST_MAX);
            (self.rest, self.hits) = (self.next_rest, 0);
        }
    }
}

#[cfg(test)]
mod tests;
