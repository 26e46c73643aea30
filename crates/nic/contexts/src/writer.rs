//! Descriptors in a ring's memory, in the layout that the card announced.

use std::sync::atomic::{Ordering, fence};

use cdna::{Descriptor, Direction, Field, Layout, ring};
use shm::Region;
use zerocopy::{IntoBytes, transmute};

/// Writes descriptors.
///
/// A guest can move its producer index at any moment, so the card may read a descriptor while it is
/// written. Its sequence number is written last. The card must read that first: then it either finds the
/// old number, which is a fault, or all of the new descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Writer {
    /// [`Layout::OURS`], in two words.
    Words,
    /// Another one.
    Bytes(Layout),
}

impl Writer {
    /// Checks a layout: possible, and no larger than the rings have room for.
    pub(crate) fn new(layout: Layout) -> Option<Self> {
        if layout == Layout::OURS {
            return Some(Self::Words);
        }
        let fits = usize::from(layout.size) <= size_of::<Descriptor>();
        (layout.check().is_ok() && fits).then_some(Self::Bytes(layout))
    }

    /// Writes the descriptor of an index, whose sequence number it sets. The memory is as long as both
    /// rings.
    #[inline]
    pub(crate) fn write(
        self,
        memory: &Region,
        direction: Direction,
        index: u32,
        descriptor: Descriptor,
    ) {
        let descriptor = Descriptor { seq: ring::sequence(index), ..descriptor };
        match self {
            Self::Words => {
                let at = ring::offset(direction, index);
                let [first, second]: [u64; 2] = transmute!(descriptor);
                if let (Ok(address), Ok(rest)) = (memory.atomic_u64(at), memory.atomic_u64(at + 8))
                {
                    address.store(first, Ordering::Relaxed);
                    rest.store(second, Ordering::Release);
                }
            }
            Self::Bytes(layout) => write_bytes(layout, memory, direction, index, &descriptor),
        }
    }

    /// Writes a ring without descriptors, whose first will have the index `start`.
    pub(crate) fn clear(self, memory: &Region, direction: Direction, start: u32) {
        let stale = ring::initial(start);
        for (slot, descriptor) in stale.0.iter().enumerate() {
            match self {
                Self::Words => {
                    let at = direction.start() + slot * size_of::<Descriptor>();
                    let _ = memory.copy_in(at, descriptor.as_bytes());
                }
                Self::Bytes(layout) => {
                    write_bytes(layout, memory, direction, descriptor.seq, descriptor);
                }
            }
        }
    }
}

/// The bytes of all other fields first, then those of the sequence number one by one: a mixture of
/// two numbers is the new one only when it is complete.
#[cold]
fn write_bytes(
    layout: Layout,
    memory: &Region,
    direction: Direction,
    index: u32,
    descriptor: &Descriptor,
) {
    let size = usize::from(layout.size);
    let at = direction.start() + ring::slot(index) * size;
    let bytes = layout.encode(descriptor);
    let Field { offset, width } = layout.seq;
    let number = usize::from(offset)..usize::from(offset) + usize::from(width);
    let (others, numbers): (Vec<_>, Vec<_>) = (0..size).partition(|byte| !number.contains(byte));
    for place in others {
        let _ = memory.write(at + place, bytes[place]);
    }
    fence(Ordering::Release);
    for place in numbers {
        let _ = memory.write(at + place, bytes[place]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Layout = Layout {
        size: 16,
        seq: Field { offset: 0, width: 2 },
        addr: Field { offset: 2, width: 8 },
        len: Field { offset: 12, width: 2 },
        flags: Field { offset: 11, width: 1 },
        reserved: [0; 7],
    };

    fn written(writer: Writer, index: u32) -> [u8; 16] {
        let memory = Region::anonymous(ring::RINGS_LEN).unwrap();
        let descriptor = Descriptor { addr: 0x1122, len: 0x33, flags: 0x44, seq: 99 };
        writer.write(&memory, Direction::Rx, index, descriptor);
        let at = Direction::Rx.start() + ring::slot(index) * 16;
        memory.read(at).unwrap()
    }

    #[test]
    fn a_descriptor_is_written_in_the_cards_layout() {
        let expected = Descriptor { addr: 0x1122, len: 0x33, flags: 0x44, seq: 0x1_0005 };
        let ours = written(Writer::new(Layout::OURS).unwrap(), 0x1_0005);
        assert_eq!(ours, expected.as_bytes());
        let other = written(Writer::new(OTHER).unwrap(), 0x1_0005);
        assert_eq!(other, [5, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0x44, 0x33, 0, 0, 0]);
    }

    #[test]
    fn a_cleared_ring_has_stale_numbers() {
        for layout in [Layout::OURS, OTHER] {
            let memory = Region::anonymous(ring::RINGS_LEN).unwrap();
            let start = u32::MAX - 3;
            Writer::new(layout).unwrap().clear(&memory, Direction::Tx, start);
            for index in (0..ring::SLOTS).map(|n| start.wrapping_add(n)) {
                let at = ring::slot(index) * 16 + usize::from(layout.seq.offset);
                let number: u16 = memory.read(at).unwrap();
                let stale = index.wrapping_sub(ring::SLOTS);
                assert_eq!(number.to_le_bytes(), stale.to_le_bytes()[..2]);
            }
        }
    }

    #[test]
    fn layouts_that_do_not_fit_the_rings_are_refused() {
        assert!(Writer::new(Layout { size: 32, ..OTHER }).is_none());
        assert!(Writer::new(Layout { size: 3, ..OTHER }).is_none());
    }
}
