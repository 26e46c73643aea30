//! When a context is interrupted for what was completed: by number of frames, by time, or both.

/// The interrupts of one direction of a context. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coalescer {
    /// Interrupt after so many frames; 0: not by number.
    frames: u32,
    /// Interrupt so long after the first frame; 0: not by time.
    delay: u64,
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

    /// Changes the mode. One-shot mode begins armed.
    pub(crate) fn set_one_shot(&mut self, is_one_shot: bool) {
        if self.is_one_shot != is_one_shot {
            (self.is_one_shot, self.is_armed) = (is_one_shot, true);
        }
    }

    /// The guest wants an interrupt for what is completed after the index `after`. It can see what `published` says.
    ///
    /// If that is past the index already, an earlier interrupt may have announced it: the guest looked too early. So it
    /// counts again, as one frame.
    pub(crate) fn arm(&mut self, after: u32, published: u32, now: u64) {
        (self.is_armed, self.after) = (true, after);
        match (is_past(published, after), self.pending) {
            (false, _) => self.pending = 0,
            (true, 0) => (self.pending, self.since) = (1, now),
            (true, _) => {}
        }
    }

    /// So many frames were completed. The consumer index is `index` now.
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
        let by_time = self.delay > 0 && now.saturating_sub(self.since) >= self.delay;
        let at_once = self.frames == 0 && self.delay == 0;
        self.is_pending() && (by_frames || by_time || at_once)
    }

    /// When an interrupt becomes due if nothing more is completed.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<u64> {
        (self.is_pending() && self.delay > 0).then(|| self.since + self.delay)
    }

    /// All completions were announced.
    #[inline]
    pub(crate) fn announced(&mut self) {
        (self.pending, self.is_armed) = (0, false);
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
                        coalescer.announced();
                        naive.waiting.clear();
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
        coalescer.announced();
        coalescer.note(3, 4, 5);
        assert!(!coalescer.is_due(100) && coalescer.deadline().is_none());
        coalescer.arm(4, 4, 100);
        assert!(!coalescer.is_due(100), "the guest has seen all");
        coalescer.note(1, 5, 110);
        assert!(coalescer.is_due(110));
        coalescer.announced();
        coalescer.arm(4, 5, 120);
        assert!(coalescer.is_due(120), "the guest looked too early");
        coalescer.announced();
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
