//! Copies of frames in memory of this process, in which no thread sleeps.

use std::sync::Arc;

use port::{Body, Fragment, Frame, Lent, Linear};
use shm::Region;

/// Frames with their bodies.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    linear: Linear,
    /// The memory of `linear`, once there is any.
    regions: Arc<[Region]>,
    frames: Vec<Frame>,
}

impl Copies {
    /// Forgets the frames.
    pub(crate) fn clear(&mut self) {
        // A device may still read one of them.
        if Arc::get_mut(&mut self.regions).is_none() {
            *self = Self::default();
        }
        self.linear.clear();
        self.frames.clear();
    }

    /// Copies frames behind those that are there. Returns how many: none if a sender's memory cannot be read, if there is no [room](Self::has_room), or no
    /// memory.
    pub(crate) fn append<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a Frame> + Clone,
        body: Body<'_>,
    ) -> usize {
        if self.regions.is_empty() {
            let Ok(whole) = Region::anonymous(Linear::BYTES).map(Arc::new) else { return 0 };
            self.regions = whole.slice(0..Linear::BYTES).into_iter().collect();
            let give = move |len| Ok(whole.slice(0..len)?);
            self.linear = Linear::within(Arc::new(give));
        }
        let count = self.linear.append(frames.clone(), body);
        let first = self.frames.len();
        for (frame, place) in frames.zip(&self.linear.places()[first..]) {
            // Whoever borrowed buffers gives them back as soon as the frame is copied.
            let mut copy = Frame { lent: Lent::NONE, ..frame.clone() };
            copy.fragments.clear();
            copy.tail = None;
            let start = place.start + usize::from(frame.header_len);
            // At most the longest frame.
            let len = u16::try_from(place.end.saturating_sub(start)).unwrap_or(u16::MAX);
            if len > 0 {
                copy.fragments.push(Fragment::in_region(0, start as u64, len));
            }
            self.frames.push(copy);
        }
        count
    }

    /// Whether there is room for a frame behind those that are there.
    pub(crate) fn has_room(&self, frame: &Frame) -> bool {
        self.linear.has_room(frame)
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The memory in which the bodies lie.
    pub(crate) fn body(&self) -> Body<'_> {
        Body::Regions(&self.regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_lies_in_no_lent_buffer() {
        let region = Region::anonymous(4096).unwrap();
        region.copy_in(64, &[7; 100]).unwrap();
        let regions = Arc::from([region]);
        let mut frame = Frame { len: 160, header_len: 60, ..Frame::empty() };
        frame.fragments.push(Fragment::in_region(0, 64, 100));
        frame.lent.lender = 3;
        frame.lent.tokens.push(1);
        let mut copies = Copies::default();
        assert_eq!(copies.append(std::iter::once(&frame), Body::Regions(&regions)), 1);
        let [copy] = copies.frames() else { panic!("{copies:?}") };
        assert!(!copy.lent.is_any() && copy.len == 160);
        let mut bytes = [0; 160];
        port::linearise(copy, copies.body(), &mut bytes).unwrap();
        assert_eq!(bytes[60..], [7; 100]);
    }
}
