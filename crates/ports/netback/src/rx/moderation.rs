//! When the guest is notified of the frames that were delivered.
//!
//! A guest that sleeps asks for one notification, at the next frame. It costs the guest and the worker a wake-up, so it may wait for
//! further frames.

use std::time::Duration;

use port::Coalescing;

/// By default a notification is held back only if the one before it was sent less than this ago: a frame after a pause is announced at
/// once, and so is each frame of a series of round trips.
const PACE: Duration = Duration::from_micros(20);
/// By default a notification is not held back for more bytes, two of the longest frames: the guest takes them while the worker
/// copies the next.
const BYTES: u64 = 128 * 1024;
/// The same for frames.
const FRAMES: u32 = 16;

/// The notifications of a guest.
#[derive(Debug)]
pub(super) struct Moderation {
    /// None: the default, which costs a single frame nothing.
    coalescing: Option<Coalescing>,
    /// The guest asked for a notification and has not got it.
    ///
    /// It stays set whatever the ring says of later frames: the ring reports only once that the guest waits.
    is_owed: bool,
    /// Frames since then, and their bytes.
    frames: u32,
    bytes: u64,
    /// When it must be sent.
    due: Duration,
    /// When the last one was sent.
    sent: Option<Duration>,
}

impl Moderation {
    pub(super) fn new(coalescing: Option<Coalescing>) -> Self {
        Self { coalescing, is_owed: false, frames: 0, bytes: 0, due: Duration::ZERO, sent: None }
    }

    /// Other rules for the notifications from now on. One that is held back stays due when it was.
    pub(super) fn set(&mut self, coalescing: Option<Coalescing>) {
        self.coalescing = coalescing;
    }

    /// Whether a notification may be held back at all.
    pub(super) fn holds(&self) -> bool {
        self.coalescing != Some(Coalescing::OFF)
    }

    /// Whether a merged frame counts as those that it was merged from: where the operator says how many frames are announced together. By
    /// default the bytes of long frames count.
    pub(super) fn counts_merged(&self) -> bool {
        self.coalescing.is_some()
    }

    /// `frames` frames of `bytes` bytes were published. `asked`: the guest wants a notification for them. Returns whether it gets
    /// one now.
    #[must_use = "a guest that asked for a notification and gets none sleeps for ever"]
    #[inline]
    pub(super) fn published(
        &mut self,
        asked: bool,
        delivered: impl FnOnce() -> (u32, u64),
        now: Duration,
    ) -> bool {
        self.is_owed |= asked;
        if !self.is_owed {
            return false;
        }
        let (frames, bytes) = delivered();
        // Responses that end no frame count as one: a part of a long frame waits for the buffers that the guest posts once it is notified.
        self.frames += frames.max(1);
        self.bytes += bytes;
        let is_enough = match self.coalescing {
            Some(Coalescing { frames, after }) => {
                self.due = now + after;
                self.frames >= frames
            }
            None => {
                self.due = self.sent.map_or(now, |sent| sent + PACE);
                self.frames >= FRAMES || self.bytes >= BYTES || now >= self.due
            }
        };
        is_enough && self.send(now)
    }

    /// Whether a notification that is held back must be sent now. `is_idle`: no more frames come at once.
    #[must_use = "a guest that asked for a notification and gets none sleeps for ever"]
    pub(super) fn flush(&mut self, now: Duration, is_idle: bool) -> bool {
        let is_due = now >= self.due || (is_idle && self.coalescing.is_none());
        self.is_owed && is_due && self.send(now)
    }

    /// When a notification that is held back is due.
    pub(super) fn due(&self) -> Option<Duration> {
        self.is_owed.then_some(self.due)
    }

    fn send(&mut self, now: Duration) -> bool {
        (self.is_owed, self.frames, self.bytes, self.sent) = (false, 0, 0, Some(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);
    const START: Duration = Duration::from_secs(1);

    fn explicit(frames: u32, micros: u32) -> Moderation {
        Moderation::new(Some(Coalescing { frames, after: MICROSECOND * micros }))
    }

    fn frame(moderation: &mut Moderation, asked: bool, now: Duration) -> bool {
        moderation.published(asked, || (1, 100), now)
    }

    #[test]
    fn a_frame_after_a_pause_is_announced_at_once() {
        let mut moderation = Moderation::new(None);
        for n in 0..10 {
            assert!(frame(&mut moderation, true, START + PACE * n));
            assert_eq!(moderation.due(), None);
        }
    }

    #[test]
    fn a_part_of_a_frame_is_announced_without_coalescing() {
        let mut moderation = Moderation::new(Some(Coalescing::OFF));
        assert!(
            moderation.published(true, || (0, 0), START),
            "the guest has to post buffers for the rest"
        );
    }

    #[test]
    fn frames_in_a_row_are_announced_together() {
        let mut moderation = Moderation::new(None);
        assert!(frame(&mut moderation, true, START));
        let now = START + MICROSECOND;
        // The guest has gone to sleep again, and says so once.
        assert!(!frame(&mut moderation, true, now));
        assert!(!frame(&mut moderation, false, now));
        assert_eq!(moderation.due(), Some(START + PACE));
        assert!(!moderation.flush(now, false));
        assert!(moderation.flush(now, true), "the worker has nothing else to do");
        assert!(!moderation.flush(now, true), "once");
        // Many frames, or many bytes, do not wait.
        assert!(moderation.published(true, || (FRAMES, 100), now));
        assert!(moderation.published(true, || (1, BYTES), now));
    }

    #[test]
    fn a_number_and_a_time_are_kept() {
        let mut moderation = explicit(3, 20);
        assert!(!frame(&mut moderation, true, START));
        let later = START + MICROSECOND * 15;
        assert!(!frame(&mut moderation, false, later));
        assert_eq!(moderation.due(), Some(later + MICROSECOND * 20), "after the last one");
        assert!(
            !moderation.flush(later, true) && !moderation.flush(START + MICROSECOND * 20, false)
        );
        assert!(frame(&mut moderation, false, later));
        assert!(!frame(&mut moderation, true, later));
        assert!(moderation.flush(later + MICROSECOND * 20, false));
    }

    #[test]
    fn a_guest_that_does_not_ask_is_not_notified() {
        for mut moderation in [Moderation::new(None), explicit(1, 0), explicit(2, 5)] {
            for n in 0..100 {
                assert!(!frame(&mut moderation, false, START + MICROSECOND * n));
                assert_eq!(moderation.due(), None);
            }
        }
    }

    #[test]
    fn a_notification_that_is_held_back_when_the_rules_change_is_sent() {
        let mut moderation = explicit(8, 50);
        assert!(!frame(&mut moderation, true, START));
        let due = moderation.due().unwrap();
        moderation.set(Some(Coalescing::OFF));
        assert_eq!(moderation.due(), Some(due), "its worker still has it to flush");
        assert!(moderation.flush(due, false));
        moderation.set(Some(Coalescing { frames: 8, after: MICROSECOND * 50 }));
        assert!(!frame(&mut moderation, true, START));
        moderation.set(Some(Coalescing::OFF));
        assert!(frame(&mut moderation, false, START), "with the next frame at the latest");
    }

    #[test]
    fn without_coalescing_each_request_is_served_at_once() {
        let mut moderation = Moderation::new(Some(Coalescing::OFF));
        assert!(!moderation.holds());
        assert!((0..10).all(|_| frame(&mut moderation, true, START)));
    }

    proptest! {
        /// A guest that sleeps is woken up, at the latest when the number or the time is reached, whatever comes in between.
        #[test]
        fn no_notification_is_lost(
            settings in prop::option::of((1u32..=64, 1u32..50)),
            steps in prop::collection::vec((0u32..40, 1u32..5, any::<bool>(), any::<bool>()), 1..300),
        ) {
            let coalescing = settings.map(|(frames, micros)| Coalescing { frames, after: MICROSECOND * micros });
            let mut moderation = Moderation::new(coalescing);
            let (mut now, mut asleep, mut unseen) = (START, true, 0);
            for (pause, frames, sleeps, is_idle) in steps {
                // The worker comes back when a notification is due.
                let next = now + MICROSECOND * pause;
                if let Some(due) = moderation.due().filter(|due| *due <= next) {
                    prop_assert!(moderation.flush(due.max(now), false));
                    (asleep, unseen) = (false, 0);
                }
                now = next;
                // The ring says once that the guest sleeps.
                let asked = asleep && unseen == 0;
                unseen += frames;
                let woken = moderation.published(asked, || (frames, 100), now) || moderation.flush(now, is_idle);
                prop_assert!(woken || !asleep || moderation.due().is_some(), "a sleeping guest is forgotten");
                if let (Some(Coalescing { frames, after }), true, false) = (coalescing, asleep, woken) {
                    prop_assert!(unseen < frames && moderation.due() == Some(now + after));
                }
                if woken {
                    prop_assert!(asleep, "it was not asked for");
                    asleep = false;
                }
                if !asleep {
                    (asleep, unseen) = (sleeps, 0);
                }
            }
        }
    }
}
