//! A guest's rings that cannot be.

use crate::bed::Bed;
use crate::common::{LINUX, RING_PACKED, RINGS, SIZE};

/// What breaks a ring is tested in `virtqueue/tests/hostile.rs`.
#[test]
fn a_ring_that_cannot_be_ends_the_guests_own_port() {
    let bed = &mut Bed::new();
    let green = bed.green(LINUX);
    // The index and the first entry of what is available.
    green.memory.write(RINGS[1] + 0x4000 + 2, [1, SIZE]).unwrap();
    green.kick();
    assert_eq!(bed.failure(), "descriptor 256 of a table of 256");
    green.front.end();
    let green = bed.green(LINUX | RING_PACKED);
    // Available in the first lap.
    green.memory.write(RINGS[1] + 12, [SIZE, 1 << 7]).unwrap();
    green.kick();
    assert_eq!(bed.failure(), "buffer id 256 in a ring of 256");
}
