//! When a context is interrupted for what was completed: by number of frames, by time, or both.

/// The interrupts of one direction of a context. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coalescer {
    /// Frames after which to interrupt; 0: not by number.
    frames: u32,
    /// Time after the first frame after which to interrupt; 0: not by time.
    delay: u64,
    /// The time counts from the last interrupt instead, so a frame after a pause waits for nothing.
    is_adaptive: bool,
    /// When the last interrupt was.
    interrupted: Option<u64>,
    /// Frames that no interrupt has announced, and when the first of them was completed.
    pending: u32,
    since: u64,
    is_one_shot: bool,
    /// In one-shot mode: an interrupt is wanted.
    is_armed: bool,
    /// In one-shot mode: the interrupt is for what is completed after this index.
    after: u32,
}

/// Whether an index comes after another one. Both run freely.
#[inline]
fn is_past(index: u32, other: u32) -> bool {
    index.wrapping_sub(other).cast_signed() > 0
}

impl Coalescer {
    /// Nothing is completed; the first index is `start`.
    pub(crate) fn new(start: u32) -> Self {
        Self { after: start, ..Self::default() }
    }

    pub(crate) fn set_frames(&mut self, frames: u32) {
        self.frames = frames;
    }

    pub(crate) fn set_micros(&mut self, micros: u32) {
        self.delay = u64::from(micros) * 1000;
    }

    pub(crate) fn set_adaptive(&mut self, is_adaptive: bool) {
        self.is_adaptive = is_adaptive;
    }

    /// Changes the mode. One-shot mode begins armed.
    pub(crate) fn set_one_shot(&mut self, is_one_shot: bool) {
        if self.is_one_shot != is_one_shot {
            (self.is_one_shot, self.is_armed) = (is_one_shot, true);
        }
    }

    /// The guest wants an interrupt for what is completed after the index `after`. `published` is the index that it can see.
    ///
    /// If `published` is past `after` already, the guest polled too early: an earlier interrupt may have announced what it
    /// did not see. So that counts again, as one frame.
    pub(crate) fn arm(&mut self, after: u32, published: u32, now: u64) {
        (self.is_armed, self.after) = (true, after);
        match (is_past(published, after), self.pending) {
            (false, _) => self.pending = 0,
            (true, 0) => (self.pending, self.since) = (1, now),
            (true, _) => {}
        }
    }

    /// This many frames were completed. The consumer index is `index` now.
    #[inline]
    pub(crate) fn note(&mut self, frames: u32, index: u32, now: u64) {
        if self.is_one_shot && !is_past(index, self.after) {
            return;
        }
        if self.pending == 0 {
            self.since = now;
        }
        self.pending = self.pending.saturating_add(frames);
    }

    /// Whether there are completions to be announced, now or later.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending > 0 && (self.is_armed || !self.is_one_shot)
    }

    /// Whether an interrupt is due.
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let by_frames = self.frames > 0 && self.pending >= self.frames;
        let by_time = self.limit().is_some_and(|limit| now >= limit);
        let at_once = self.frames == 0 && self.delay == 0;
        self.is_pending() && (by_frames || by_time || at_once)
    }

    /// When an interrupt becomes due if nothing more is completed.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.limit().filter(|_| self.is_pending())
    }

    /// Until when a frame may wait; none without a limit.
    #[inline]
    fn limit(&self) -> Option<u64> {
        match self.is_adaptive {
            true => Some(self.interrupted.map_or(self.since, |last| last + self.delay)),
            false => (self.delay > 0).then_some(self.since + self.delay),
        }
    }

    /// All completions were announced, by an interrupt at this time.
    #[inline]
    pub(crate) fn announced(&mut self, now: u64) {
        (self.pending, self.is_armed, self.interrupted) = (0, false, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The times of frames that were completed, in order, since the last interrupt.
    #[derive(Default)]
    struct Naive {
        waiting: Vec<u64>,
    }

    impl Naive {
        fn is_due(&self, frames: usize, delay: u64, now: u64) -> bool {
            let Some(first) = self.waiting.first() else { return false };
            match (frames, delay) {
                (0, 0) => true,
                (0, _) => now - first >= delay,
                (_, 0) => self.waiting.len() >= frames,
                _ => self.waiting.len() >= frames || now - first >= delay,
            }
        }
    }

    proptest! {
        #[test]
        fn interrupts_come_exactly_when_due(
            frames in 0u32..5,
            micros in 0u32..4,
            steps in prop::collection::vec((0u64..2500, 0u32..4), 1..300),
        ) {
            let mut coalescer = Coalescer::default();
            coalescer.set_frames(frames);
            coalescer.set_micros(micros);
            let (mut naive, mut now) = (Naive::default(), 0);
            for (wait, completed) in steps {
                let next = now + wait;
                // The card comes back at the deadline.
                let deadline = coalescer.deadline().filter(|at| *at < next);
                for at in deadline.into_iter().chain([next]) {
                    now = at;
                    if now == next && completed > 0 {
                        coalescer.note(completed, 0, now);
                        naive.waiting.extend((0..completed).map(|_| now));
                    }
                    let is_due = naive.is_due(frames as usize, u64::from(micros) * 1000, now);
                    prop_assert_eq!(coalescer.is_due(now), is_due);
                    if is_due {
                        coalescer.announced(now);
                        naive.waiting.clear();
                    }
                }
            }
        }
    }

    /// The driver's default: after `frames` frames, or `micros` after the last interrupt.
    fn adaptive(frames: u32, micros: u32) -> Coalescer {
        let mut coalescer = Coalescer::default();
        coalescer.set_adaptive(true);
        coalescer.set_frames(frames);
        coalescer.set_micros(micros);
        coalescer
    }

    #[test]
    fn a_frame_after_a_pause_interrupts_at_once() {
        let mut coalescer = adaptive(32, 50);
        for n in 1..=10 {
            let now = n * 50_000;
            coalescer.note(1, 0, now);
            assert!(coalescer.is_due(now), "frame {n}");
            coalescer.announced(now);
            assert_eq!(coalescer.deadline(), None);
        }
    }

    #[test]
    fn frames_in_a_row_share_an_interrupt() {
        let mut coalescer = adaptive(32, 50);
        coalescer.note(1, 0, 1000);
        coalescer.announced(1000);
        coalescer.note(1, 0, 2000);
        coalescer.note(1, 0, 40_000);
        assert!(!coalescer.is_due(40_000));
        assert_eq!(coalescer.deadline(), Some(51_000), "after the last interrupt");
        assert!(coalescer.is_due(51_000));
        coalescer.announced(51_000);
        coalescer.note(31, 0, 51_001);
        assert!(!coalescer.is_due(51_001));
        coalescer.note(1, 0, 51_002);
        assert!(coalescer.is_due(51_002), "many frames do not wait");
    }

    proptest! {
        /// No frame waits longer than with a time that counts from the first frame, and interrupts are never closer than the
        /// limits say.
        #[test]
        fn adaptive_interrupts_are_in_time_and_far_apart(
            frames in 0u32..6,
            micros in 0u32..40,
            steps in prop::collection::vec((0u64..60_000, 1u32..4), 1..300),
        ) {
            let mut coalescer = adaptive(frames, micros);
            let delay = u64::from(micros) * 1000;
            // When the oldest frame came that waits, how many wait, and when the last interrupt was.
            let (mut oldest, mut waiting, mut last) = (None::<u64>, 0, None::<u64>);
            let mut now = 0;
            for (pause, completed) in steps {
                let next = now + pause;
                // The card comes back at the deadline.
                let deadline = coalescer.deadline().filter(|at| *at < next);
                for at in deadline.into_iter().chain([next]) {
                    now = at;
                    if now == next {
                        coalescer.note(completed, 0, now);
                        oldest = oldest.or(Some(now));
                        waiting += completed;
                    }
                    let is_paused = last.is_none_or(|last| now >= last + delay);
                    let is_due = waiting > 0 && (is_paused || (frames > 0 && waiting >= frames));
                    prop_assert_eq!(coalescer.is_due(now), is_due);
                    if is_due {
                        prop_assert!(oldest.is_some_and(|oldest| now - oldest <= delay));
                        coalescer.announced(now);
                        (oldest, waiting, last) = (None, 0, Some(now));
                    } else {
                        prop_assert!(coalescer.deadline().is_some() || waiting == 0);
                    }
                }
            }
        }
    }

    #[test]
    fn one_shot_interrupts_once_until_it_is_armed() {
        let mut coalescer = Coalescer::default();
        coalescer.set_one_shot(true);
        coalescer.note(1, 1, 0);
        assert!(coalescer.is_due(0), "it begins armed");
        coalescer.announced(0);
        coalescer.note(3, 4, 5);
        assert!(!coalescer.is_due(100) && coalescer.deadline().is_none());
        coalescer.arm(4, 4, 100);
        assert!(!coalescer.is_due(100), "the guest has seen all");
        coalescer.note(1, 5, 110);
        assert!(coalescer.is_due(110));
        coalescer.announced(110);
        coalescer.arm(4, 5, 120);
        assert!(coalescer.is_due(120), "the guest polled too early");
        coalescer.announced(120);
        coalescer.set_one_shot(true);
        coalescer.note(1, 6, 130);
        assert!(!coalescer.is_due(130), "the same mode again does not arm");
        coalescer.set_one_shot(false);
        assert!(coalescer.is_due(130));
    }

    proptest! {
        /// The limits count from the index on that the guest has named, also when indices wrap.
        #[test]
        fn what_comes_before_the_index_interrupts_nobody(
            start: u32,
            ahead in 0u32..300,
            frames in 0u32..5,
            micros in 0u32..4,
        ) {
            let mut coalescer = Coalescer::new(start);
            coalescer.set_one_shot(true);
            coalescer.set_frames(frames);
            coalescer.set_micros(micros);
            coalescer.arm(start.wrapping_add(ahead), start, 0);
            let mut naive = Naive::default();
            for done in 1..=ahead + 10 {
                let now = u64::from(done) * 700;
                coalescer.note(1, start.wrapping_add(done), now);
                if done > ahead {
                    naive.waiting.push(now);
                }
                let is_due = naive.is_due(frames as usize, u64::from(micros) * 1000, now);
                prop_assert_eq!(coalescer.is_due(now), is_due);
            }
        }
    }
}
