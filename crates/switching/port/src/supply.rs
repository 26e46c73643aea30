//! Whether the other side takes frames fast enough for frames to wait for it.

use std::time::Duration;

use frame::{DropReason, Outcome};

/// Frames that wait block their sender's ring. So they do not wait for a receiver that has kept frames waiting for this long without
/// paying for it: single buffers far apart must not keep them waiting for ever (XSA-392).
const STALL: Duration = Duration::from_millis(200);
/// The time of waiting that a buffer pays for. A guest that takes 500 frames in a second may be as slow as that for ever, however few
/// buffers it has: iPXE has 18, and a burst of frames is longer. Its sender's ring of 256 frames, and the window, may then wait for 0.64 s.
const PER_BUFFER: Duration = Duration::from_millis(2);
/// A frame that waits is offered again after half of this time. If none was offered for longer, and buffers were given meanwhile, there are two
/// cases. No frame waited: the last one was dropped, as broadcasts are at once, and this side does not learn it. Or this process had no processor,
/// which is not the other side's fault: iPXE beside a busy driver domain gives its 18 buffers back at once, and waits.
const OFFERED_AGAIN: Duration = Duration::from_millis(100);

/// Whether the other side has enough room for frames: a guest posts buffers, a back-end takes frames off its ring, a NIC sends
/// them.
///
/// Time in which frames wait is a debt. Each buffer that is given pays for a part of it, and so does time in which no frame waits. Too much
/// of it is a stall, which ends when all is paid. A port counts the buffers that it was given or those that it has used: in the end they are
/// the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferSupply {
    /// Whether the last frame found no room.
    waits: bool,
    is_stalled: bool,
    /// The time that is not paid for.
    debt: Duration,
    /// When that was.
    at: Duration,
    /// Buffers given until then.
    given: u64,
}

impl BufferSupply {
    /// Whether frames no longer wait.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Frames were delivered, or found nothing to wait for; `given` buffers have been given by now.
    #[inline]
    pub fn delivered(&mut self, given: u64, now: Duration) {
        if self.waits || !self.debt.is_zero() {
            self.settle(given, now);
        }
    }

    /// Ends the wait, if a buffer was given since it began.
    #[cold]
    fn settle(&mut self, given: u64, now: Duration) {
        if given != self.given || !self.waits {
            self.reckon(given, now);
            self.waits = false;
        }
    }

    /// There are too few buffers for a frame, of the `given` ones until now. Returns what becomes of it.
    pub fn without_room(&mut self, given: u64, now: Duration) -> Outcome {
        self.reckon(given, now);
        self.waits = true;
        match self.is_stalled {
            true => Outcome::Dropped(DropReason::Stalled),
            false => Outcome::Waiting,
        }
    }

    /// Adds what has happened since the last time.
    fn reckon(&mut self, given: u64, now: Duration) {
        let passed = now.saturating_sub(self.at);
        // More than this pays for any debt.
        let buffers = given.wrapping_sub(self.given).min(1000);
        let paid = PER_BUFFER.saturating_mul(u32::try_from(buffers).unwrap_or(u32::MAX));
        let debt = match self.waits {
            true if buffers > 0 && passed > OFFERED_AGAIN => self.debt,
            true => self.debt.saturating_add(passed),
            false => self.debt.saturating_sub(passed),
        };
        let debt = debt.saturating_sub(paid);
        self.is_stalled = debt > STALL || (self.is_stalled && !debt.is_zero());
        // Debt beyond this is forgiven, so that a receiver that takes frames again soon leaves the stall.
        self.debt = debt.min(STALL);
        (self.at, self.given) = (now, given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALLED: Outcome = Outcome::Dropped(DropReason::Stalled);

    /// A guest with `ring` buffers that refills all of them after each `period`, while more frames are there than it has buffers.
    fn refills(ring: u64, period: Duration) -> bool {
        let mut supply = BufferSupply::default();
        let (mut used, mut now) = (0, Duration::from_secs(9));
        for _ in 0..1000 {
            used += ring;
            // Frames are offered while it is busy, too.
            for part in 0..4 {
                if supply.without_room(used, now + period * part / 4) == STALLED {
                    return false;
                }
            }
            now += period;
            supply.delivered(used, now);
        }
        true
    }

    #[test]
    fn a_guest_with_few_buffers_that_takes_frames_never_stalls() {
        let ms = Duration::from_millis;
        assert!(refills(18, ms(20)) && refills(18, ms(36)));
        assert!(refills(32, ms(20)) && refills(64, ms(20)) && refills(1, ms(2)));
        assert!(!refills(1, ms(10)) && !refills(1, ms(1000)) && !refills(18, ms(100)));
        assert!(!refills(256, ms(1500)));
    }

    #[test]
    fn a_buffer_now_and_then_is_no_supply() {
        let mut supply = BufferSupply::default();
        let ms = Duration::from_millis;
        let mut waited = 0;
        // A dripper stays stalled: its buffers never pay for the time.
        for n in 1..1000 {
            let outcome = supply.without_room(n, ms(n * 10));
            waited += u32::from(outcome == Outcome::Waiting);
            assert_eq!(outcome == STALLED, supply.is_stalled());
            supply.delivered(n, ms(n * 10));
        }
        assert!((20..60).contains(&waited), "{waited}");
    }

    /// Broadcasts, and frames that have waited for too long, are dropped, and this side does not learn it.
    #[test]
    fn a_pause_after_frames_that_were_dropped_is_no_wait() {
        let ms = Duration::from_millis;
        for (ring, pause) in [(18, 268), (18, 1000), (256, 10_000), (1, 110)] {
            let mut supply = BufferSupply::default();
            for burst in 0..20 {
                let (used, at) = ((burst + 1) * ring, burst * pause);
                // All that it has posted meanwhile are used by a burst that is longer.
                supply.delivered(used, ms(at));
                assert!(!supply.is_stalled(), "a ring of {ring}");
                assert_eq!(supply.without_room(used, ms(at)), Outcome::Waiting, "{ring}");
            }
        }
        // It is no loophole: a frame that waits is offered meanwhile.
        for pause in [51, 100] {
            let mut supply = BufferSupply::default();
            let stalls = (0..100).map(|n| {
                supply.delivered(n, ms(n * pause));
                supply.without_room(n, ms(n * pause)) == STALLED
            });
            let stalls: Vec<_> = stalls.collect();
            assert!(stalls[5..].iter().all(|stalled| *stalled), "{pause}: {stalls:?}");
        }
    }

    #[test]
    fn idle_time_is_no_wait_and_pays() {
        let mut supply = BufferSupply::default();
        let ms = Duration::from_millis;
        for burst in 0..10 {
            let (used, at) = (burst * 28, burst * 1000);
            assert_eq!(supply.without_room(used + 18, ms(at)), Outcome::Waiting);
            supply.delivered(used + 28, ms(at + 1));
        }
        // One that took nothing for a while, and takes all again.
        assert_eq!(supply.without_room(280, ms(20_000)), Outcome::Waiting);
        assert_eq!(supply.without_room(280, ms(20_300)), STALLED);
        // Nobody is there: that is no better.
        supply.delivered(280, ms(20_600));
        assert_eq!(supply.without_room(280, ms(21_000)), STALLED);
        supply.delivered(370, ms(21_000));
        assert!(supply.is_stalled());
        supply.delivered(380, ms(21_001));
        assert!(!supply.is_stalled());
        assert_eq!(supply.without_room(380, ms(21_001)), Outcome::Waiting);
    }
}
