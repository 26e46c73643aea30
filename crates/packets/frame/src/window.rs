//! The frames an ingress queue has in hand.

use arrayvec::ArrayVec;

use crate::{Frame, Outcome};

/// How many frames a queue may have in hand: taken off its ring and not yet answered.
///
/// This bounds how much of a sender's ring one stalled destination can hold back.
pub const WINDOW: usize = 64;

/// What became of each frame of a window, by slot.
pub type Outcomes = [Outcome; WINDOW];

/// A fixed arena of frames and the order in which they arrived.
///
/// A frame keeps its slot until it is [released](Self::retain), so a queue can keep data
/// about it (request ids) in an array of the same size.
#[derive(Debug)]
pub struct Window {
    frames: Box<[Frame]>,
    order: ArrayVec<u8, WINDOW>,
    free: ArrayVec<u8, WINDOW>,
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Window {
    /// An empty window. Nothing is allocated after this.
    #[must_use]
    pub fn new() -> Self {
        Self {
            frames: vec![Frame::empty(); WINDOW].into(),
            order: ArrayVec::new(),
            free: (0..WINDOW).rev().map(slot).collect(),
        }
    }

    /// How many frames are in hand.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no frame is in hand.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether another frame would not fit.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// A free slot's number and frame, now the last in order.
    #[inline]
    pub fn push(&mut self) -> Option<(usize, &mut Frame)> {
        let slot = self.free.pop()?;
        self.order.push(slot);
        Some((slot.into(), &mut self.frames[usize::from(slot)]))
    }

    /// Gives back the slot that [`push`](Self::push) gave last.
    pub fn undo_push(&mut self) {
        self.free.extend(self.order.pop());
    }

    /// The slots in hand, in order of arrival.
    #[inline]
    #[must_use]
    pub fn order(&self) -> &[u8] {
        &self.order
    }

    /// The frame in a slot.
    #[inline]
    #[must_use]
    pub fn frame(&self, slot: u8) -> &Frame {
        &self.frames[usize::from(slot)]
    }

    /// The frames of all slots, in hand or not.
    #[inline]
    pub fn slots_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }

    /// The frames of the slots in `set`, a bit for each slot, in the order of the slots.
    #[inline]
    pub fn in_slots(&mut self, mut set: u64) -> impl Iterator<Item = (u8, &mut Frame)> {
        // From bit to bit: most turns have one or two frames.
        let (mut frames, mut next) = (self.frames.iter_mut(), 0);
        std::iter::from_fn(move || {
            let number = set.trailing_zeros() as usize;
            set &= set.wrapping_sub(1);
            let frame = frames.nth(number - next)?;
            next = number + 1;
            Some((slot(number), frame))
        })
    }

    /// Releases the frames for which `keep` returns false. It is called in order of arrival.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(u8, &Frame) -> bool) {
        let mut kept = 0;
        for n in 0..self.order.len() {
            let slot = self.order[n];
            if keep(slot, &self.frames[usize::from(slot)]) {
                self.order[kept] = slot;
                kept += 1;
            } else {
                self.free.push(slot);
            }
        }
        self.order.truncate(kept);
    }
}

fn slot(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_slots_are_used_again_and_order_is_kept() {
        let mut window = Window::new();
        for n in 0..WINDOW {
            let (_, frame) = window.push().unwrap();
            frame.len = u32::try_from(n).unwrap();
        }
        assert!(window.is_full());
        assert!(window.push().is_none());
        window.retain(|_, frame| frame.len % 3 == 0);
        let order: Vec<_> = window.order().iter().map(|s| window.frame(*s).len).collect();
        assert!(order.is_sorted());
        assert_eq!(order.len(), WINDOW.div_ceil(3));
        let (slot, _) = window.push().unwrap();
        window.undo_push();
        assert_eq!(window.push().unwrap().0, slot);
        window.retain(|_, _| false);
        assert!(window.is_empty());
        assert_eq!(window.free.len(), WINDOW);
    }
}
