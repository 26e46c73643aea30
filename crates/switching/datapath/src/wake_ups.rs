//! How often frames that come in wake a worker.

use std::time::{Duration, Instant};

use port::Coalescing;

/// The bursts of a queue, and when its worker polls again.
///
/// A worker cannot know how many frames wait in a tap. So it does not listen for the time in which, at the rate of the last burst,
/// the wanted frames come. A frame that comes alone wakes it at once.
#[derive(Debug)]
pub(crate) struct WakeUps {
    coalescing: Coalescing,
    /// Frames since the last pause, or since the last sleep.
    frames: u32,
    since: Instant,
}

impl WakeUps {
    /// None if each frame wakes a worker that sleeps.
    pub(crate) fn new(coalescing: Option<Coalescing>, now: Instant) -> Option<Self> {
        let coalescing = coalescing.filter(|coalescing| *coalescing != Coalescing::OFF)?;
        Some(Self { coalescing, frames: 0, since: now })
    }

    /// Frames came.
    pub(crate) fn worked(&mut self, frames: usize) {
        self.frames = self.frames.saturating_add(u32::try_from(frames).unwrap_or(u32::MAX));
    }

    /// There are no more frames. Returns for how long the worker pauses; none if the next frame wakes it.
    pub(crate) fn pause(&mut self, now: Instant) -> Option<Duration> {
        let frames = std::mem::take(&mut self.frames);
        let took = now.saturating_duration_since(std::mem::replace(&mut self.since, now));
        let Coalescing { frames: wanted, after } = self.coalescing;
        let each = took.checked_div(frames)?;
        // Fewer than two: the one that came would only have waited.
        (each * 2 <= after).then(|| (each * wanted).min(after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    fn wake_ups(frames: u32, after: u32) -> (WakeUps, Instant) {
        let now = Instant::now();
        let coalescing = Coalescing { frames, after: MICROSECOND * after };
        (WakeUps::new(Some(coalescing), now).unwrap(), now)
    }

    #[test]
    fn a_frame_that_comes_alone_wakes() {
        let (mut wake_ups, mut now) = wake_ups(64, 50);
        for pause in [1_000_000, 1000, 50, 26] {
            now += MICROSECOND * pause;
            wake_ups.worked(1);
            assert_eq!(wake_ups.pause(now), None);
        }
        // An event without a frame.
        assert_eq!(wake_ups.pause(now + MICROSECOND), None);
    }

    #[test]
    fn a_pause_is_as_long_as_the_wanted_frames_need() {
        for (wanted, rate, pause) in [(6, 1, 6), (16, 1, 16), (64, 1, 50), (8, 4, 32), (64, 20, 50)]
        {
            let (mut wake_ups, now) = wake_ups(wanted, 50);
            wake_ups.worked(10);
            assert_eq!(wake_ups.pause(now + MICROSECOND * rate * 10), Some(MICROSECOND * pause));
        }
    }

    proptest! {
        /// Frames at any pace: a worker that polls at the end of each pause, and otherwise at each frame, has taken every
        /// frame after the longest pause.
        #[test]
        fn no_frame_waits_for_longer_than_the_time(
            wanted in 2u32..=64,
            after in 1u32..100,
            gaps in prop::collection::vec(0u32..120, 1..500),
        ) {
            let (mut wake_ups, begin) = wake_ups(wanted, after);
            let mut arrivals: Vec<Instant> = Vec::new();
            for gap in gaps {
                arrivals.push(arrivals.last().copied().unwrap_or(begin) + MICROSECOND * gap);
            }
            let (mut taken, mut paused_until) = (0, begin);
            while taken < arrivals.len() {
                let now = arrivals[taken].max(paused_until);
                prop_assert!(now - arrivals[taken] <= MICROSECOND * after);
                let frames = arrivals[taken..].iter().take_while(|at| **at <= now).count();
                taken += frames;
                wake_ups.worked(frames);
                paused_until = now + wake_ups.pause(now).unwrap_or_default();
            }
        }
    }
}
