//! The turn that a queue has because of another one's ([`prediction`](crate::prediction)).

use rustix::event::epoll;

use super::Worker;
use crate::slot::Slot;

/// A slot that has its turn because of another one's.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    slot: usize,
    /// The slot that had its turn before.
    after: usize,
    /// Whether its turn comes before its event was polled for. Otherwise its event was the only one.
    is_predicted: bool,
}

impl Worker {
    /// Whether the turn of slot `index` comes before its event was polled for.
    #[inline]
    pub(super) fn is_predicted(&self, index: usize) -> bool {
        self.expected.is_some_and(|expected| expected.is_predicted && expected.slot == index)
    }

    /// With nothing left to do: gives a queue a turn that always has a frame after the last turn. Returns whether there is one.
    pub(super) fn predicts(&mut self) -> bool {
        let Some(last) = self.last else { return false };
        let next = self.slots[last].as_ref().and_then(|slot| slot.prediction.next());
        let Some(next) = next.filter(|next| *next != last) else { return false };
        let has_turn =
            self.slots.get_mut(next).and_then(Option::as_mut).is_some_and(Slot::activate_predicted);
        let expected = Expected { slot: next, after: last, is_predicted: true };
        self.expected = has_turn.then_some(expected);
        has_turn
    }

    /// The queue of slot `index` had a turn with this many frames: the slot that had its turn before learns from it.
    #[inline]
    pub(super) fn learn(&mut self, index: usize, frames: usize) {
        let Some(Expected { after, is_predicted, .. }) =
            self.expected.filter(|expected| expected.slot == index)
        else {
            return;
        };
        // What was predicted is kept until the next poll for events: one of this slot tells of more frames.
        self.expected = self.expected.filter(|_| is_predicted);
        if let Some(Some(slot)) = self.slots.get_mut(after) {
            if is_predicted && frames != 1 {
                slot.prediction.was_wrong();
            } else {
                slot.prediction.followed(index, frames);
            }
        }
    }

    /// Notes what these events say of the turns before them.
    pub(super) fn expect(&mut self, events: &[epoll::Event]) {
        let slot = |event: &epoll::Event| Slot::of_token(event.data.u64());
        if let Some(expected) = self.expected.take().filter(|expected| expected.is_predicted)
            && events.iter().any(|event| slot(event) == expected.slot)
            && let Some(Some(slot)) = self.slots.get_mut(expected.after)
        {
            slot.prediction.was_wrong();
        }
        let ([event], Some(after)) = (events, self.last) else { return };
        let next = slot(event);
        let follower = self.slots.get(next).and_then(Option::as_ref);
        let has_frames = follower.is_some_and(|slot| slot.is_of_frames(event.data.u64()));
        if has_frames && next != after {
            self.expected = Some(Expected { slot: next, after, is_predicted: false });
        }
    }
}
