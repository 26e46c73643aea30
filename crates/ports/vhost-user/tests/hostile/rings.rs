//! Rings and frames of a guest that means harm, beside two machines on the same worker.

use crate::bed::{Bed, DESCRIPTORS, Raw, describe, dropped, make_available, wait};
use crate::common::{GUEST, LEN, LINUX, RING_PACKED, SIZE, TABLES, TX_DATA, Vm, plain, tcp, tso};

const NEXT: u16 = 1;
const INDIRECT: u16 = 4;
const DATA: u64 = GUEST + TX_DATA as u64;

/// The reason for which the port of a split ring with these descriptors fails.
fn failed(bed: &mut Bed, descriptors: &[Raw], heads: &[u16], index: u16) -> String {
    let green = bed.green(LINUX);
    describe(&green, DESCRIPTORS, descriptors);
    make_available(&green, heads, index);
    let why = bed.failure();
    green.front.end();
    why
}

#[test]
fn a_small_gso_frame_with_a_long_ip_length() {
    let bed = &mut Bed::new();
    let mut frame = tcp(10);
    frame[16..18].copy_from_slice(&64_986u16.to_be_bytes());
    for features in [LINUX, LINUX | RING_PACKED] {
        dropped(bed, features, |vm| vm.send(&tso(vm, 1448), &frame, &[12], false));
    }
}

#[test]
fn a_loop_of_descriptors() {
    let bed = &mut Bed::new();
    let around = [(DATA, 64, NEXT, 1), (DATA, 64, NEXT, 0)];
    assert_eq!(failed(bed, &around, &[0], 1), "a chain of more than 256 descriptors");
    assert_eq!(
        failed(bed, &[(DATA, 64, NEXT, 0)], &[0], 1),
        "a chain of more than 256 descriptors"
    );
}

#[test]
fn a_chain_longer_than_the_ring() {
    let bed = &mut Bed::new();
    let chain: Vec<_> = (0..SIZE).map(|n| (DATA, 1, NEXT, (n + 1) % SIZE)).collect();
    assert_eq!(failed(bed, &chain, &[0], 1), "a chain of more than 256 descriptors");
    let green = bed.green(LINUX | RING_PACKED);
    // Of a packed ring: available, and each one goes on.
    let chain: Vec<_> = (0..SIZE).map(|n| (DATA, 1, n, NEXT | 1 << 7)).collect();
    describe(&green, DESCRIPTORS, &chain);
    green.kick();
    assert_eq!(bed.failure(), "a chain of more than 256 descriptors");
}

#[test]
fn descriptors_that_do_not_exist() {
    let bed = &mut Bed::new();
    assert_eq!(failed(bed, &[], &[SIZE], 1), "descriptor 256 of a table of 256");
    assert_eq!(
        failed(bed, &[(DATA, 64, NEXT, 9999)], &[0], 1),
        "descriptor 9999 of a table of 256"
    );
    let green = bed.green(LINUX | RING_PACKED);
    describe(&green, DESCRIPTORS, &[(DATA, 64, SIZE, 1 << 7)]);
    green.kick();
    assert_eq!(bed.failure(), "buffer id 256 in a ring of 256");
}

/// A chain of one descriptor, sent again and again.
fn one(address: u64, len: u32) -> impl Fn(&mut Vm) {
    move |vm| {
        let buffer = virtqueue::driver::Offered { address, len, writable: false };
        vm.tx.offer(&[buffer], None).unwrap();
        vm.tx.publish();
    }
}

#[test]
fn addresses_outside_of_or_straddling_regions() {
    let bed = &mut Bed::new();
    let end = GUEST + LEN as u64;
    for (address, len) in
        [(0, 64), (GUEST - 32, 64), (end - 32, 64), (end, 64), (u64::MAX - 16, 64), (u64::MAX, 1)]
    {
        dropped(bed, LINUX, one(address, len));
    }
    dropped(bed, LINUX | RING_PACKED, one(end - 32, 64));
}

#[test]
fn lengths_that_overflow() {
    let bed = &mut Bed::new();
    dropped(bed, LINUX, one(GUEST, u32::MAX));
    dropped(bed, LINUX, one(u64::MAX - 10, u32::MAX));
    dropped(bed, LINUX, |vm| {
        // The sum of all lengths does not fit 32 bits, nor do two of them.
        let buffer = virtqueue::driver::Offered { address: GUEST, len: u32::MAX, writable: false };
        vm.tx.offer(&[buffer; 16], None).unwrap();
        vm.tx.publish();
    });
    dropped(bed, LINUX, one(DATA, 0));
}

#[test]
fn nested_and_odd_indirect_tables() {
    let bed = &mut Bed::new();
    let table = GUEST + TABLES as u64;
    let mut with = |inside: &[Raw], len: u32, flags: u16| {
        let green = bed.green(LINUX);
        describe(&green, TABLES, inside);
        describe(&green, DESCRIPTORS, &[(table, len, flags, 0)]);
        make_available(&green, &[0], 1);
        let why = bed.failure();
        green.front.end();
        why
    };
    let nested = "an indirect table where none may be";
    assert_eq!(with(&[(table, 16, INDIRECT, 0)], 16, INDIRECT), nested);
    assert_eq!(with(&[(DATA, 64, 0, 0)], 16, INDIRECT | NEXT), nested);
    for len in [0, 1, 15, 17, u32::MAX, 16 * 32_769] {
        let odd = with(&[(DATA, 64, 0, 0)], len, INDIRECT);
        assert_eq!(odd, format!("an indirect table of {len} bytes"));
    }
    let around = with(&[(DATA, 64, NEXT, 1), (DATA, 64, NEXT, 0)], 32, INDIRECT);
    assert_eq!(around, "a chain of more than 2 descriptors");
    assert_eq!(with(&[(DATA, 64, NEXT, 7)], 32, INDIRECT), "descriptor 7 of a table of 2");
    // Outside, or over the end of the memory: the frame alone is lost.
    for at in [0, GUEST + LEN as u64 - 8, u64::MAX - 8] {
        let green = bed.green(LINUX);
        describe(&green, DESCRIPTORS, &[(at, 16, INDIRECT, 0)]);
        make_available(&green, &[0], 1);
        assert!(bed.is_whole());
        green.front.end();
    }
}

#[test]
fn an_available_index_that_jumps() {
    let bed = &mut Bed::new();
    let jump = failed(bed, &[(DATA, 64, 0, 0)], &[0], SIZE + 1);
    assert!(jump.contains("is more than 256 entries ahead"), "{jump}");
    let far = failed(bed, &[(DATA, 64, 0, 0)], &[0], u16::MAX);
    assert!(far.contains("is more than 256 entries ahead"), "{far}");
}

#[test]
fn wrap_counters_that_lie() {
    let mut bed = Bed::new();
    let green = bed.green(LINUX | RING_PACKED);
    // Available and used of every lap at once, without a header: each is at most one chain, and none is taken twice.
    for flags in [1 << 7, 1 << 15, 1 << 7 | 1 << 15, 0] {
        let ring: Vec<_> = (0..SIZE).map(|n| (DATA, 5, n, flags)).collect();
        describe(&green, DESCRIPTORS, &ring);
        green.kick();
        bed.carries();
    }
    assert!(bed.is_whole());
}

#[test]
fn headers_that_are_missing_or_split() {
    let bed = &mut Bed::new();
    for len in [1, 11, 12, 13, 25] {
        dropped(bed, LINUX, |vm| vm.send(&vec![0; len], &[], &[3], false));
    }
    // In as many pieces as there are bytes, the header is a header.
    let mut green = bed.green(LINUX);
    let cuts: Vec<_> = (1..12).collect();
    let mut frame = tcp(6);
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3]);
    green.send(&plain(&green), &frame, &cuts, false);
    green.kick();
    wait("the frame's buffer", || green.tx.take().is_some());
    assert!(bed.is_whole());
}

#[test]
fn metadata_that_points_outside() {
    let bed = &mut Bed::new();
    for (at, value) in [(4, 0u16), (6, 0), (6, 65_535), (8, 65_535)] {
        dropped(bed, LINUX, |vm| {
            let mut metadata = tso(vm, 1448);
            metadata[at..at + 2].copy_from_slice(&value.to_le_bytes());
            vm.send(&metadata, &tcp(4000), &[12], false);
        });
    }
}

#[test]
fn a_flood_of_refused_frames() {
    let mut bed = Bed::new();
    let mut green = bed.green(LINUX);
    for _ in 0..200 {
        for _ in 0..SIZE {
            let buffer = virtqueue::driver::Offered { address: 0, len: 64, writable: false };
            if green.tx.offer(&[buffer], None).is_none() {
                break;
            }
        }
        green.tx.publish();
        green.kick();
        while green.tx.take().is_some() {}
    }
    assert!(bed.is_whole());
}
