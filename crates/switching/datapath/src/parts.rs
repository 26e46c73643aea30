//! What is known of the frames of one ingress queue from offers before: how many segments an egress queue has sent, and whether
//! their checksums are right.

use port::{WINDOW, Window};

/// How far the frames are that are sent in parts.
///
/// Only the egress queue that began a frame goes on with it. If the switch moves the destination to
/// another port between two parts, or the port is detached and the frame flooded, others get the whole
/// frame: TCP drops the segments that come twice.
pub(crate) struct Parts {
    /// A bit for each slot of the window whose frame has been begun.
    slots: u64,
    of: [Part; WINDOW],
    /// A bit for each slot whose frame's payload was summed, and for each of them whose checksum is right.
    summed: u64,
    right: u64,
}

/// What an egress queue has sent of a frame.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The [serial number](crate::Port::serial) of its port.
    serial: u64,
    queue: usize,
    segments: u16,
}

impl Default for Parts {
    fn default() -> Self {
        Self { slots: 0, of: [Part::default(); WINDOW], summed: 0, right: 0 }
    }
}

impl Parts {
    /// Whether anything is known of any frame.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        (self.slots | self.summed) != 0
    }

    /// How many segments of a frame an egress queue has sent.
    pub(crate) fn sent(&self, slot: u8, serial: u64, queue: usize) -> u16 {
        let part = &self.of[usize::from(slot)];
        let is_begun = self.slots & (1 << slot) != 0;
        if is_begun && (part.serial, part.queue) == (serial, queue) { part.segments } else { 0 }
    }

    /// Notes how many segments of a frame an egress queue has sent.
    #[cold]
    pub(crate) fn note(&mut self, slot: u8, serial: u64, queue: usize, segments: u16) {
        self.slots |= 1 << slot;
        self.of[usize::from(slot)] = Part { serial, queue, segments };
    }

    /// Whether a frame's checksum is right, if its payload was summed.
    pub(crate) fn is_right(&self, slot: u8) -> Option<bool> {
        let has = |slots: u64| slots & (1 << slot) != 0;
        has(self.summed).then(|| has(self.right))
    }

    /// Notes whether the checksum of a frame that waits is right.
    #[cold]
    pub(crate) fn note_sum(&mut self, slot: u8, is_right: bool) {
        self.summed |= 1 << slot;
        self.right = self.right & !(1 << slot) | u64::from(is_right) << slot;
    }

    /// The turn's frames have their outcomes; `window` has those that stay.
    #[inline]
    pub(crate) fn end(&mut self, window: &Window) {
        if self.are_any() {
            let kept = window.order().iter().fold(0, |slots, slot| slots | 1 << slot);
            self.slots &= kept;
            self.summed &= kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_queue_that_began_a_frame_goes_on_with_it() {
        let (mut parts, mut window) = (Parts::default(), Window::new());
        let [first, second] = [(); 2].map(|()| u8::try_from(window.push().unwrap().0).unwrap());
        assert!(!parts.are_any());
        parts.note(first, 7, 1, 64);
        parts.note(second, 8, 0, 10);
        assert_eq!((parts.sent(first, 7, 1), parts.sent(second, 8, 0)), (64, 10));
        // Another port, another queue, and another port with the same number.
        let others =
            [(8, 1), (7, 0), (9, 1)].map(|(serial, queue)| parts.sent(first, serial, queue));
        assert_eq!(others, [0; 3]);
        parts.note(first, 7, 1, 128);
        parts.end(&window);
        assert_eq!(parts.sent(first, 7, 1), 128);
    }

    #[test]
    fn a_slot_that_is_used_again_begins_anew() {
        let (mut parts, mut window) = (Parts::default(), Window::new());
        let [left, stays] = [(); 2].map(|()| u8::try_from(window.push().unwrap().0).unwrap());
        parts.note(left, 7, 0, 64);
        parts.note(stays, 7, 0, 64);
        parts.note_sum(left, true);
        parts.note_sum(stays, true);
        window.retain(|slot, _| slot == stays);
        parts.end(&window);
        assert_eq!(window.push().map(|(slot, _)| slot), Some(left.into()));
        assert_eq!((parts.sent(left, 7, 0), parts.sent(stays, 7, 0)), (0, 64));
        assert_eq!((parts.is_right(left), parts.is_right(stays)), (None, Some(true)));
        parts.note_sum(left, false);
        assert_eq!(parts.is_right(left), Some(false));
        window.retain(|_, _| false);
        parts.end(&window);
        assert!(!parts.are_any());
    }
}
