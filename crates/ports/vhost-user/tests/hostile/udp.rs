//! Unsegmented UDP that cannot be, beside two machines on the same worker.

use crate::bed::{Bed, dropped};
use crate::common::{HOST_USO, LINUX, RING_PACKED, Vm, tcp, tso, udp, udp_v6, uso};

/// Where the UDP header begins.
const START: u16 = 34;

/// The frame is dropped, whether its sender said that it sends such or not.
fn refused(bed: &mut Bed, metadata: impl Fn(&Vm) -> Vec<u8>, frame: &[u8]) {
    for features in [LINUX | HOST_USO, LINUX | HOST_USO | RING_PACKED, LINUX] {
        dropped(bed, features, |vm| vm.send(&metadata(vm), frame, &[12], false));
    }
}

/// Metadata with another value of 16 bits at this place.
fn with(at: usize, value: u16) -> impl Fn(&Vm) -> Vec<u8> {
    move |vm| {
        let mut metadata = uso(vm, START, 1200);
        metadata[at..at + 2].copy_from_slice(&value.to_le_bytes());
        metadata
    }
}

#[test]
fn metadata_that_contradicts_the_datagram() {
    let bed = &mut Bed::new();
    // Segments of no size, and of hardly any.
    for size in [0, 1, 7] {
        refused(bed, with(4, size), &udp(4000));
    }
    // Checksums that begin or lie elsewhere, or that nobody has to complete.
    for (at, value) in [(6, 0), (6, 33), (6, 65_535), (8, 16), (8, 65_535), (0, 5 << 8)] {
        refused(bed, with(at, value), &udp(4000));
    }
}

#[test]
fn protocols_that_are_not_the_types() {
    let bed = &mut Bed::new();
    refused(bed, |vm| uso(vm, START, 1200), &tcp(4000));
    refused(bed, |vm| tso(vm, 1200), &udp(4000));
    // Over IPv6, with a place of the checksum that is IPv4's.
    refused(bed, |vm| uso(vm, START, 1200), &udp_v6(4000));
    let mut arp = udp(4000);
    arp[12..14].copy_from_slice(&[8, 6]);
    refused(bed, |vm| uso(vm, START, 1200), &arp);
    let mut fragment = udp(4000);
    fragment[20] = 0x20;
    refused(bed, |vm| uso(vm, START, 1200), &fragment);
}

#[test]
fn lengths_that_contradict_each_other() {
    let bed = &mut Bed::new();
    let set = |at: usize, value: u16| {
        let mut frame = udp(4000);
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        frame
    };
    // IP's: the frame that kills others, in its form for UDP.
    for len in [1, 20, 27, 28, 4027, 4029, 64_986, 65_535] {
        refused(bed, |vm| uso(vm, START, 1200), &set(16, len));
    }
    // UDP's.
    for len in [0, 7, 8, 4007, 4009, 65_535] {
        refused(bed, |vm| uso(vm, START, 1200), &set(38, len));
    }
    // Headers that are longer than the frame.
    for len in [20, 33, 34, 35, 41] {
        refused(bed, |vm| uso(vm, START, 1200), &udp(4000)[..len]);
    }
    let mut options = udp(0);
    options[14] = 0x4f;
    refused(bed, |vm| uso(vm, START, 1200), &options);
}
