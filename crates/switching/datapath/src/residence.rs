//! How long the batches of an ingress queue are in the daemon.
//!
//! A worker reads no clock for this. It learns when a turn ended from the next reading of the clock that it takes in any case: after the
//! turn if it has several queues with work, and otherwise when its next round begins.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use port::{WINDOW, Window};

/// The batches of one queue whose time is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Residence {
    /// Whether a batch came and ended in the last turn.
    has_whole: bool,
    /// When those were taken that came before the last turn and ended in it.
    ended: ArrayVec<Instant, WINDOW>,
    /// Those with frames in the window. Each has at least one, so they fit.
    waiting: ArrayVec<Waiting, WINDOW>,
}

/// A batch with frames that wait for room or for a device.
#[derive(Debug)]
struct Waiting {
    /// A bit for each slot of the window with a frame of it.
    slots: u64,
    taken: Instant,
}

impl Residence {
    /// A turn that began at `began` has left these frames in hand. It took a batch if `is_fresh`.
    #[inline]
    pub(crate) fn turn(&mut self, window: &Window, is_fresh: bool, began: Instant) {
        if window.is_empty() && self.waiting.is_empty() {
            self.has_whole = is_fresh;
        } else {
            self.turn_with_waiting(window, is_fresh, began);
        }
    }

    fn turn_with_waiting(&mut self, window: &Window, is_fresh: bool, began: Instant) {
        let in_hand = window.order().iter().fold(0, |slots, slot| slots | 1 << slot);
        let Self { has_whole, ended, waiting } = self;
        let mut older = 0;
        waiting.retain(|batch| {
            batch.slots &= in_hand;
            older |= batch.slots;
            if batch.slots == 0 {
                // It fits: each had a frame in the window.
                let _ = ended.try_push(batch.taken);
            }
            batch.slots != 0
        });
        let slots = in_hand & !older;
        *has_whole = is_fresh && slots == 0;
        if is_fresh && slots != 0 {
            let _ = waiting.try_push(Waiting { slots, taken: began });
        }
    }

    /// Records the last turn's duration and end. Calls `each` with the time of each batch that ended in it.
    #[inline]
    pub(crate) fn turn_ended(
        &mut self,
        took: Duration,
        end: Instant,
        mut each: impl FnMut(Duration),
    ) {
        if std::mem::take(&mut self.has_whole) {
            each(took);
        }
        for taken in self.ended.drain(..) {
            each(end - taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A queue's window, and what became of its batches.
    struct Bed {
        window: Window,
        residence: Residence,
        start: Instant,
    }

    impl Bed {
        fn new() -> Self {
            let (window, residence) = (Window::new(), Residence::default());
            Self { window, residence, start: Instant::now() }
        }

        /// A turn of a millisecond that begins at `at` milliseconds: takes `fresh` frames, and keeps those in hand whose numbers
        /// in order of arrival are in `kept`. Returns the times of the batches that ended, in milliseconds.
        fn turn(&mut self, at: u32, fresh: usize, kept: &[usize]) -> Vec<u128> {
            (0..fresh).for_each(|_| assert!(self.window.push().is_some()));
            let mut number = 0..;
            self.window.retain(|_, _| kept.contains(&number.next().unwrap()));
            let began = self.start + MILLISECOND * at;
            self.residence.turn(&self.window, fresh > 0, began);
            let mut times = Vec::new();
            let end = began + MILLISECOND;
            self.residence.turn_ended(MILLISECOND, end, |time| times.push(time.as_millis()));
            times
        }
    }

    #[test]
    fn a_batch_that_does_not_wait_takes_its_turn() {
        let mut bed = Bed::new();
        assert_eq!(bed.turn(0, 64, &[]), [1]);
        assert_eq!(bed.turn(5, 1, &[]), [1]);
        assert_eq!(bed.turn(9, 0, &[]), [0; 0]);
    }

    #[test]
    fn a_batch_ends_with_its_last_frame() {
        let mut bed = Bed::new();
        assert_eq!(bed.turn(0, 10, &[3, 7]), [0; 0]);
        // One of two is done with, and its slot is taken by a frame of the next batch, which does not wait.
        assert_eq!(bed.turn(10, 4, &[1]), [1]);
        assert_eq!(bed.turn(20, 0, &[0]), [0; 0]);
        assert_eq!(bed.turn(30, 4, &[]), [1, 31]);
    }

    #[test]
    fn many_batches_wait_at_a_time() {
        let mut bed = Bed::new();
        let all: Vec<_> = (0..WINDOW).collect();
        for turn in 0..64 {
            assert_eq!(bed.turn(turn, 1, &all), [0; 0]);
        }
        assert_eq!(bed.turn(100, 0, &all[1..]), [101]);
        let rest: Vec<_> = (1..64).map(|taken| 201 - taken).collect();
        assert_eq!(bed.turn(200, 0, &[]), rest);
        assert_eq!(bed.turn(300, 64, &[]), [1]);
    }

    /// Later frames overtake: the slots of those that went are used again while older ones wait.
    #[test]
    fn a_frame_in_a_slot_used_again_belongs_to_its_own_batch() {
        let mut bed = Bed::new();
        assert_eq!(bed.turn(0, 64, &[63]), [0; 0]);
        assert_eq!(bed.turn(10, 63, &[0, 62]), [0; 0]);
        assert_eq!(bed.turn(20, 62, &[1]), [1, 21]);
        assert_eq!(bed.turn(30, 0, &[]), [21]);
    }

    proptest! {
        /// Against a list of the frames in hand, each with the number of its batch.
        #[test]
        fn each_batch_ends_once_and_with_its_last_frame(
            turns in prop::collection::vec((0usize..64, any::<u64>()), 1..60),
        ) {
            let mut bed = Bed::new();
            let mut frames: Vec<u32> = Vec::new();
            for (at, (fresh, kept)) in (0u32..).zip(turns.into_iter().chain([(0, 0)])) {
                let fresh = fresh.min(WINDOW - frames.len());
                let mut present = frames.clone();
                present.dedup();
                present.extend((fresh > 0).then_some(at));
                frames.extend((0..fresh).map(|_| at));
                let kept: Vec<_> = (0..frames.len()).filter(|n| kept >> n & 1 == 1).collect();
                frames = kept.iter().map(|n| frames[*n]).collect();
                let mut ended = bed.turn(at, fresh, &kept);
                ended.sort_unstable();
                present.retain(|batch| !frames.contains(batch));
                let expected = present.iter().rev().map(|taken| u128::from(at + 1 - taken));
                prop_assert_eq!(ended, expected.collect::<Vec<_>>());
            }
        }
    }
}
