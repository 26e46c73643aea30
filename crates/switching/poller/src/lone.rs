//! Whether a thread polls on for the answer to a lone frame.
//!
//! An echo, or a question to a name server, is one frame after a long pause and an answer some hundred microseconds later. By then all threads on the way of
//! both have slept and been woken up. A thread that polls meanwhile takes the answer at once. Polling pays where answers come: each wait after a lone frame,
//! polled or slept, tells whether one came in time.

use std::time::{Duration, Instant};

/// A wait of at least this is a pause: the frame that ends it is lone.
const PAUSE: Duration = Duration::from_millis(2);
/// An answer in time comes within this, while the thread sleeps.
const SLEPT: Duration = Duration::from_micros(1500);
/// How long the thread polls on: half as long again as answers took lately, within these bounds. A thread in the middle of the way waits for two
/// wake-ups of other CPUs; the first one on the way waits for all of them.
const POLL_MIN: Duration = Duration::from_micros(100);
const POLL_MAX: Duration = Duration::from_millis(1);
/// Polling after lone frames may take one part in this many of the time.
const PART: u32 = 100;
/// The most that is saved up, for some lone frames soon after each other.
const SAVED_MAX: Duration = Duration::from_millis(4);
/// Answers in time after which the thread polls on. It counts no more of them, so this many answers that do not come end it.
const START: u8 = 2;
const SCORE_MAX: u8 = 4;

/// The waits after lone frames.
#[derive(Clone, Debug)]
pub(crate) struct Lone {
    /// How long polling on may still take, and when that was counted.
    saved: Duration,
    counted: Instant,
    /// When the present wait began, and whether it is one after a lone frame.
    since: Option<Instant>,
    is_candidate: bool,
    /// Whether it polls on now, and for how long in this wait.
    polls: bool,
    limit: Duration,
    /// How long answers took lately.
    answer: Duration,
    /// Whether the last wait was a pause.
    was_pause: bool,
    /// Answers in time, less those that did not come.
    score: u8,
}

impl Lone {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            saved: Duration::ZERO,
            counted: now,
            since: None,
            is_candidate: false,
            polls: false,
            limit: POLL_MIN,
            answer: POLL_MIN,
            was_pause: false,
            score: 0,
        }
    }

    /// A wait begins. `may` says whether the work before it was small, and polling is wanted at all.
    #[inline]
    pub(crate) fn begin_wait(&mut self, now: Instant, may: bool) {
        self.since = Some(now);
        self.is_candidate = may && std::mem::take(&mut self.was_pause);
        if !self.is_candidate {
            return;
        }
        self.saved =
            (self.saved + now.saturating_duration_since(self.counted) / PART).min(SAVED_MAX);
        self.counted = now;
        self.limit = (self.answer * 3 / 2).clamp(POLL_MIN, POLL_MAX);
        self.polls = self.score >= START && self.saved >= self.limit;
    }

    /// The thread polled and found nothing. Returns whether it should poll again.
    #[inline]
    pub(crate) fn polls_on(&mut self, now: Instant) -> bool {
        if !self.polls {
            return false;
        }
        let took = self.since.map_or(self.limit, |since| now.saturating_duration_since(since));
        if took >= self.limit {
            self.stop(took);
        }
        self.polls
    }

    /// The wait ends with work.
    #[inline]
    pub(crate) fn end_wait(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let took = now.saturating_duration_since(since);
        self.was_pause = took >= PAUSE;
        if !std::mem::take(&mut self.is_candidate) {
            return;
        }
        if self.polls {
            self.stop(took);
        }
        if took < SLEPT {
            self.score = (self.score + 1).min(SCORE_MAX);
            self.answer = (self.answer * 3 + took) / 4;
        } else {
            self.score = self.score.saturating_sub(1);
        }
    }

    /// Polling on has taken this time.
    fn stop(&mut self, took: Duration) {
        self.polls = false;
        self.saved = self.saved.saturating_sub(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{POLL, Poller};

    const MICROSECOND: Duration = Duration::from_micros(1);
    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A thread that polls once per microsecond.
    struct Thread {
        poller: Poller,
        now: Instant,
        polled: Duration,
    }

    impl Thread {
        fn new(poller: Poller) -> Self {
            Self { poller, now: Instant::now(), polled: Duration::ZERO }
        }

        /// A frame, and then a wait. Returns whether it was polled to its end.
        fn wait(&mut self, wait: Duration) -> bool {
            self.poller.worked(1, 100, || self.now);
            let (began, end) = (self.now, self.now + wait);
            while self.now < end && self.poller.is_worth_polling(self.now) {
                self.now += MICROSECOND;
            }
            self.polled += self.now - began;
            let is_polled = self.now >= end;
            self.now = end;
            is_polled
        }

        /// Echoes: a frame, its answer after this time, and a pause. Returns for how many answers it polled on.
        fn echoes(&mut self, count: usize, answer: Duration, pause: Duration) -> usize {
            let echo = |_: &usize| {
                let polled = self.wait(answer);
                self.wait(pause);
                polled
            };
            (0..count).filter(echo).count()
        }

        /// The part of the time that it polled since the start.
        fn part(&self, began: Instant) -> f64 {
            self.polled.as_secs_f64() / (self.now - began).as_secs_f64()
        }
    }

    /// `ping -i 0.2`
    #[test]
    fn answers_of_lone_frames_find_the_thread_awake() {
        for answer in [50, 300, 600, 900] {
            let mut thread = Thread::new(Poller::new(POLL));
            let began = thread.now;
            let found = thread.echoes(100, MICROSECOND * answer, MILLISECOND * 200);
            assert!(found >= 90, "{answer} µs: {found}");
            let part = thread.part(began);
            assert!(part < 0.01, "{part}");
        }
    }

    #[test]
    fn frames_without_answers_are_not_polled_for() {
        for pause in [MILLISECOND * 3, MILLISECOND * 200] {
            let mut thread = Thread::new(Poller::new(POLL));
            thread.echoes(100, pause, pause);
            assert_eq!(thread.polled, Duration::ZERO, "{pause:?}");
            // It was so, and is no more.
            thread.echoes(20, MICROSECOND * 300, MILLISECOND * 200);
            thread.polled = Duration::ZERO;
            thread.echoes(100, pause, pause);
            assert!(thread.polled <= POLL_MAX * u32::from(SCORE_MAX), "{:?}", thread.polled);
        }
    }

    #[test]
    fn polling_on_takes_a_hundredth_of_the_time_however_many_echoes_there_are() {
        for pause in [3, 5, 10, 20, 100].map(|n| MILLISECOND * n) {
            let mut thread = Thread::new(Poller::new(POLL));
            let began = thread.now;
            thread.echoes(2000, MICROSECOND * 390, pause);
            assert!(thread.polled > Duration::ZERO);
            let part = thread.part(began);
            assert!(part <= 0.0101, "{pause:?}: {part}");
        }
    }

    #[test]
    fn one_that_never_polls_does_not_poll_on() {
        let mut thread = Thread::new(Poller::new(Duration::ZERO));
        assert_eq!(thread.echoes(100, MICROSECOND * 300, MILLISECOND * 200), 0);
        assert_eq!(thread.polled, Duration::ZERO);
    }

    #[test]
    fn one_that_always_polls_never_sleeps() {
        let mut thread = Thread::new(Poller::always());
        for wait in [MICROSECOND, MILLISECOND * 5, MILLISECOND * 50] {
            assert!(thread.wait(wait), "{wait:?}");
        }
    }
}
