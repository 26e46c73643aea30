//! Which queue's event follows a turn of another queue at once.
//!
//! A frame that is written to a device in a bridge can be read from another device of that bridge before the call returns. Where
//! this was so again and again, the worker reads there at once: one call less, to poll for events. The read takes one frame, and
//! not one more to find the end: the event was not taken, so the next poll for events tells whether there are more.

/// After so many times it is predicted.
const SURE: u16 = 8;
/// The most times it takes, after mispredictions.
const SURE_MAX: u16 = 1024;

/// What follows a queue's turns.
#[derive(Debug)]
pub(crate) struct Prediction {
    /// The slot of the queue that was heard of last.
    next: usize,
    /// How often in a row it alone was heard of, with a single frame.
    times: u16,
    /// How often that must be before it is predicted.
    sure: u16,
}

impl Default for Prediction {
    fn default() -> Self {
        Self { next: 0, times: 0, sure: SURE }
    }
}

impl Prediction {
    /// The slot of the queue that has a frame now.
    #[inline]
    pub(crate) fn next(&self) -> Option<usize> {
        (self.times >= self.sure).then_some(self.next)
    }

    /// After a turn, only the queue of this slot was heard of, or it was predicted, and it had `frames` frames.
    pub(crate) fn followed(&mut self, next: usize, frames: usize) {
        self.times = match (self.next == next, frames) {
            (true, 1) => self.sure.min(self.times + 1),
            (false, 1) => 1,
            _ => 0,
        };
        self.next = next;
    }

    /// It was mispredicted: there was no frame, or there were more.
    pub(crate) fn was_wrong(&mut self) {
        (self.times, self.sure) = (0, SURE_MAX.min(self.sure * 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_always_follows_is_predicted_and_errors_become_rare() {
        let mut prediction = Prediction::default();
        let mut wrong = 0;
        for _ in 0..10_000 {
            if prediction.next() == Some(7) {
                prediction.was_wrong();
                wrong += 1;
            } else {
                prediction.followed(7, 1);
            }
        }
        assert!((8..20).contains(&wrong), "{wrong}");
        (0..SURE_MAX).for_each(|_| prediction.followed(7, 1));
        assert_eq!(prediction.next(), Some(7));
        prediction.followed(7, 2);
        assert_eq!(prediction.next(), None);
    }

    #[test]
    fn neither_two_queues_in_turn_nor_batches_are_predicted() {
        let mut prediction = Prediction::default();
        for n in 0..100 {
            prediction.followed(n % 2, 1);
            assert_eq!(prediction.next(), None);
        }
        (0..100).for_each(|_| prediction.followed(1, 2));
        assert_eq!(prediction.next(), None);
    }
}
