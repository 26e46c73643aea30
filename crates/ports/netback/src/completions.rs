//! When the guest is notified that frames which it sent are done.
//!
//! A notification costs this side a system call, and the guest an interrupt that only frees the frame's memory. A guest that sends again frees it
//! then, and asks for no notification of answers that it has found: Linux's netfront does so in each transmission. So the notification of a lone
//! frame's answer is held back a little.

use std::time::{Duration, Instant};

/// Answers of up to this many slots are those of a lone frame. The sender may wait for more of them before it sends again.
const LONE: u32 = 4;
/// After a held answer that the guest did not find before it was notified, at most this many lone frames are announced at once.
const PENALTY_MAX: u32 = 64;

/// The notifications of answers to a guest's frames.
#[derive(Debug)]
pub(crate) struct Completions {
    delay: Option<Duration>,
    held: Option<Held>,
    /// How many more lone frames are announced at once, before an answer is held back again.
    penalty: u32,
    /// The penalty after the next answer that the guest does not find before it is notified.
    next_penalty: u32,
}

/// Answers that the guest asked to be notified of, and was not.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// What was published before them.
    since: u32,
    /// When the guest must be notified. The clock is read when there is nothing else to do.
    due: Option<Instant>,
}

impl Completions {
    pub(crate) fn new(delay: Option<Duration>) -> Self {
        Self { delay, held: None, penalty: 0, next_penalty: 1 }
    }

    /// Answers up to `end` were published; before it was `start`. `is_asked`: the guest wants a notification. `is_last`: no frame of it is in hand.
    /// Returns whether it gets one now.
    #[must_use = "a guest that asked for a notification and gets none sleeps for ever"]
    pub(crate) fn published(
        &mut self,
        start: u32,
        end: u32,
        is_asked: bool,
        is_last: bool,
    ) -> bool {
        // The ring says once that the guest waits.
        let is_owed = is_asked || self.held.is_some();
        if !is_owed {
            return false;
        }
        let since = self.held.map_or(start, |held| held.since);
        let is_lone = is_last && end.wrapping_sub(since) <= LONE;
        if self.delay.is_none() || !is_lone || self.penalty > 0 {
            self.penalty = self.penalty.saturating_sub(1);
            self.held = None;
            return true;
        }
        let due = self.held.and_then(|held| held.due);
        self.held = Some(Held { since, due });
        false
    }

    /// Since when answers are held back, if some are.
    pub(crate) fn held_since(&self) -> Option<u32> {
        self.held.map(|held| held.since)
    }

    /// The guest has found the answers that were held back.
    pub(crate) fn were_seen(&mut self) {
        (self.held, self.next_penalty) = (None, 1);
    }

    /// When the guest must be notified of what is held back; none if now.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        let (held, delay) = (self.held.as_mut()?, self.delay?);
        let due = *held.due.get_or_insert(now + delay);
        if now < due {
            return Some(due);
        }
        self.held = None;
        self.penalty = self.next_penalty;
        self.next_penalty = (self.next_penalty * 2).min(PENALTY_MAX);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DELAY: Duration = Duration::from_millis(1);

    /// A lone frame of one slot, behind `start`.
    fn lone(completions: &mut Completions, start: u32) -> bool {
        completions.published(start, start.wrapping_add(1), true, true)
    }

    #[test]
    fn a_guest_that_sends_again_is_not_notified() {
        let mut completions = Completions::new(Some(DELAY));
        for start in 0..10 {
            assert!(!lone(&mut completions, start));
            assert_eq!(completions.held_since(), Some(start));
            let now = Instant::now();
            assert_eq!(completions.due(now), Some(now + DELAY));
            completions.were_seen();
            assert_eq!(completions.held_since(), None);
        }
    }

    #[test]
    fn a_guest_that_does_not_poll_is_notified_in_time_and_then_at_once() {
        let mut completions = Completions::new(Some(DELAY));
        let now = Instant::now();
        let mut at_once = Vec::new();
        for _ in 0..9 {
            assert!(!lone(&mut completions, 7));
            let due = completions.due(now).unwrap();
            assert_eq!(completions.due(now + DELAY / 2), Some(due), "it does not move");
            assert_eq!(completions.due(due), None);
            assert_eq!(completions.held_since(), None);
            at_once.push((0..).take_while(|_| lone(&mut completions, 8)).count());
            completions = Completions { held: None, ..completions };
        }
        assert_eq!(at_once, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert!(!lone(&mut completions, 9));
        completions.were_seen();
        assert!(!lone(&mut completions, 10));
        assert_eq!(completions.due(now), Some(now + DELAY));
        assert_eq!(completions.due(now + DELAY), None);
        assert_eq!((0..).take_while(|_| lone(&mut completions, 11)).count(), 1, "forgiven");
    }

    #[test]
    fn many_frames_a_long_one_and_one_of_several_are_announced_at_once() {
        let new = || Completions::new(Some(DELAY));
        assert!(new().published(0, LONE + 1, true, true));
        assert!(new().published(0, 1, true, false), "others are in hand");
        let mut completions = new();
        assert!(!completions.published(0, 3, true, true));
        assert!(completions.published(3, 5, false, true), "five since the guest polled");
        assert!(!new().published(0, 20, false, true), "it did not ask");
        assert!(Completions::new(None).published(0, 1, true, true));
    }

    proptest! {
        /// A guest that waits is notified, at the latest when the time is over.
        #[test]
        fn no_notification_is_lost(steps in prop::collection::vec((1u32..8, any::<bool>(), any::<bool>(), 0u32..1500), 1..200)) {
            let mut completions = Completions::new(Some(DELAY));
            let (mut now, mut end) = (Instant::now(), u32::MAX - 20);
            let (mut waits, mut since) = (true, None);
            for (slots, is_last, polls, micros) in steps {
                let start = end;
                end = end.wrapping_add(slots);
                let asked = std::mem::take(&mut waits);
                if asked {
                    since = Some(now);
                }
                if completions.published(start, end, asked, is_last) {
                    prop_assert!(since.take().is_some(), "nobody waits");
                    waits = true;
                }
                if polls && since.take().is_some() {
                    completions.were_seen();
                    waits = true;
                }
                prop_assert_eq!(since.is_some(), completions.held_since().is_some());
                if since.is_some() {
                    // Its worker arms the queue, and comes back at that time.
                    let due = completions.due(now);
                    now += Duration::from_micros(micros.into());
                    if due.is_none_or(|due| now >= due) && (due.is_none() || completions.due(now).is_none()) {
                        since = None;
                        waits = true;
                    }
                    prop_assert!(since.is_none_or(|since| now < since + DELAY), "it waits too long");
                }
            }
        }
    }
}
