//! Frames of one ingress queue of which an egress queue has sent some segments.

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
        Self { slots: 0, of: [Part::default(); WINDOW] }
    }
}

impl Parts {
    /// Whether any frame has been begun.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.slots != 0
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

    /// The turn's frames have their outcomes; `window` has those that stay.
    #[inline]
    pub(crate) fn end(&mut self, window: &Window) {
        if self.slots != 0 {
            self.slots &= window.order().iter().fold(0, |slots, slot| slots | 1 << slot);
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
        window.retain(|slot, _| slot == stays);
        parts.end(&window);
        assert_eq!(window.push().map(|(slot, _)| slot), Some(left.into()));
        assert_eq!((parts.sent(left, 7, 0), parts.sent(stays, 7, 0)), (0, 64));
        window.retain(|_, _| false);
        parts.end(&window);
        assert!(!parts.are_any());
    }
}
