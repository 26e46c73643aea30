//! Malformed frames: truncated, split, with forged lengths and forged addresses.

use netfront::Config;
use offload::Features;
use wire::netif::extra::Extra;
use wire::netif::tx_flags::{CSUM_BLANK, DATA_VALIDATED, EXTRA_INFO, MORE_DATA};
use wire::netif::{GsoKind, TxRequest, status};

use crate::common::{Guest, frame, receive, send, wait_until};
use crate::raw::{self, slot_of};
use crate::{A, ALL, B, World, await_frame};

const BLANK: u16 = CSUM_BLANK | DATA_VALIDATED;
const TCP_START: usize = 34;

/// A TCP segment over IPv4, from the hostile guest.
#[derive(Clone, Copy)]
pub struct Tcp {
    pub dst: [u8; 6],
    /// Bytes of the frame.
    pub len: usize,
    /// The false value in the IP header.
    pub total_len: Option<u16>,
    pub fragment: bool,
}

impl Default for Tcp {
    fn default() -> Self {
        Self { dst: B, len: 60, total_len: None, fragment: false }
    }
}

impl Tcp {
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = ip(self.dst, self.len, 6);
        bytes[TCP_START + 12] = 0x50;
        if let Some(total_len) = self.total_len {
            bytes[16..18].copy_from_slice(&total_len.to_be_bytes());
        }
        if self.fragment {
            bytes[20] = 0x20;
        }
        bytes
    }
}

pub fn udp(len: usize) -> Vec<u8> {
    let mut bytes = ip(B, len, 17);
    let datagram = u16::try_from(len - TCP_START).unwrap();
    bytes[38..40].copy_from_slice(&datagram.to_be_bytes());
    bytes
}

pub fn arp() -> Vec<u8> {
    let mut bytes = frame(B, raw::MAC, 60, 0);
    bytes[12..14].copy_from_slice(&[8, 6]);
    bytes
}

fn ip(dst: [u8; 6], len: usize, protocol: u8) -> Vec<u8> {
    let mut bytes = frame(dst, raw::MAC, len, 0);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let total = u16::try_from(len - 14).unwrap().to_be_bytes();
    bytes[14..TCP_START].copy_from_slice(&[
        0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    bytes
}

/// Puts a frame into the hostile guest's pages and returns its slots.
fn place(world: &World, bytes: &[u8], flags: u16) -> Vec<TxRequest> {
    let pages = bytes.chunks(4096).collect::<Vec<_>>();
    let count = pages.len();
    let slot = |(n, part): (usize, &&[u8])| {
        let page = u32::try_from(n).unwrap();
        world.h.memory.write(raw::DATA + page, 0, part);
        let size = if n == 0 { bytes.len() } else { part.len() };
        let more = if n + 1 < count { MORE_DATA } else { 0 };
        slot_of(page, 0, size.try_into().unwrap(), more | if n == 0 { flags } else { 0 })
    };
    pages.iter().enumerate().map(slot).collect()
}

/// As [`place`], with a GSO extra for segments of `size`.
fn place_gso(world: &World, bytes: &[u8], size: u16) -> Vec<TxRequest> {
    let mut slots = place(world, bytes, BLANK | EXTRA_INFO);
    let extra = Extra::Gso { size: size.try_into().unwrap(), kind: GsoKind::TcpV4, features: 0 };
    slots.insert(1, raw::extra(extra, false).to_tx_slot());
    slots
}

/// A third honest guest, without any offload, that the switch knows.
fn plain_guest(world: &mut World, sg: bool) -> (Guest, [u8; 6]) {
    let features = Features { sg, ..Features::NONE };
    let mac = [2, 0, 0, 0, 0, 0xc];
    let mut guest = world.host.guest("02:00:00:00:00:0c", Config { features, ..Config::default() });
    assert!(send(&mut guest.queues[0], &frame(ALL, mac, 60, 0)));
    for other in [&mut world.a, &mut world.b] {
        wait_until("the broadcast", || receive(&mut other.queues[0]).is_some());
    }
    (guest, mac)
}

#[test]
fn headers_split_over_many_tiny_slots_arrive_whole_xsa_423() {
    let mut world = World::new();
    for (count, size) in [(18, 4), (18, 8), (2, 50)] {
        let len = usize::from(count * size);
        let bytes = Tcp { len, ..Tcp::default() }.bytes();
        let slots = raw::chain(count, size);
        for (n, part) in bytes.chunks(size.into()).enumerate() {
            world.h.memory.write(raw::DATA + u32::try_from(n).unwrap(), 0, part);
        }
        world.h.send(&slots);
        let answers = world.h.await_answers(slots.len());
        assert!(answers.iter().all(|answer| answer.status == status::OKAY));
        await_frame(&mut world.b, &bytes);
    }
    world.all_live();
}

#[test]
fn truncated_protocol_headers_are_answered_with_errors_xsa_423() {
    let mut world = World::new();
    let whole = Tcp { len: 54, ..Tcp::default() }.bytes();
    for len in [15, 33, 34, 53] {
        let slots = place(&world, &whole[..len], 0);
        world.answered(&slots, status::ERROR);
    }
    // First the IP header's length is beyond the frame, then the TCP header's.
    for (at, value) in [(14, 0x4f), (TCP_START + 12, 0xf0)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        let slots = place(&world, &bytes, 0);
        world.answered(&slots, status::ERROR);
    }
    let slots = place(&world, &whole, 0);
    world.answered(&slots, status::OKAY);
}

#[test]
fn ipv6_extensions_that_hide_the_transport_are_carried_but_not_worked_on() {
    let mut world = World::new();
    let mut bytes = frame(B, raw::MAC, 400, 0);
    bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    bytes[18..21].copy_from_slice(&[1, 0x5a, 0]); // 346 bytes, hop-by-hop options
    // A chain of destination options that is longer than the copied header.
    (54..400 - 8).step_by(8).for_each(|at| bytes[at..at + 2].copy_from_slice(&[60, 0]));
    let slots = place(&world, &bytes, 0);
    world.answered(&slots, status::OKAY);
    // Nobody can say where its checksum would be.
    let slots = place(&world, &bytes, BLANK);
    world.answered(&slots, status::ERROR);
}

#[test]
fn a_forged_ip_length_is_dropped_before_it_harms_software() {
    let mut world = World::new();
    let (mut plain, mac) = plain_guest(&mut world, true);
    // The datapath completes the checksum for a guest that cannot.
    for total_len in [187, 1000, u16::MAX] {
        let forged = Tcp { dst: mac, len: 200, total_len: Some(total_len), ..Tcp::default() };
        let slots = place(&world, &forged.bytes(), BLANK);
        world.answered(&slots, status::DROPPED);
        let slots = place_gso(&world, &forged.bytes(), 50);
        world.answered(&slots, status::DROPPED);
    }
    let shorter = Tcp { dst: mac, len: 200, total_len: Some(60), ..Tcp::default() };
    let slots = place(&world, &shorter.bytes(), BLANK);
    world.answered(&slots, status::OKAY);
    wait_until("the frame", || receive(&mut plain.queues[0]).is_some_and(|got| got.len() == 200));
    assert!(receive(&mut plain.queues[0]).is_none());
}

#[test]
fn a_forged_udp_length_is_dropped_before_it_harms_software() {
    let mut world = World::new();
    let (_plain, mac) = plain_guest(&mut world, true);
    for len in [0u16, 7, 500, u16::MAX] {
        let mut bytes = udp(200);
        bytes[..6].copy_from_slice(&mac);
        bytes[38..40].copy_from_slice(&len.to_be_bytes());
        let slots = place(&world, &bytes, BLANK);
        world.answered(&slots, status::DROPPED);
    }
}

#[test]
fn segments_longer_than_a_page_take_the_buffers_they_need() {
    let mut world = World::new();
    let (mut plain, mac) = plain_guest(&mut world, true);
    for (len, size) in [(60_000, 5000), (60_000, 50_000), (20_000, 4100), (9000, u16::MAX)] {
        let bytes = Tcp { dst: mac, len, ..Tcp::default() }.bytes();
        let slots = place_gso(&world, &bytes, size);
        // Repeated, so that using a buffer too many would use one that was not posted.
        for _ in 0..100 {
            world.h.send(&slots);
            let mut answered = 0;
            let mut got = 0;
            let segments = (len - 54).div_ceil(size.into());
            wait_until("every segment", || {
                while let Some(segment) = receive(&mut plain.queues[0]) {
                    let from = 54 + got * usize::from(size);
                    let to = (from + usize::from(size)).min(len);
                    assert!(segment[54..] == bytes[from..to], "segment {got} differs");
                    got += 1;
                }
                answered += world.h.answers().len();
                got == segments && answered == slots.len()
            });
        }
    }
    world.all_live();
}

#[test]
fn segments_longer_than_a_page_are_dropped_where_pages_are_the_limit() {
    let mut world = World::new();
    let (mut plain, mac) = plain_guest(&mut world, false);
    let bytes = Tcp { dst: mac, len: 9000, ..Tcp::default() }.bytes();
    for size in [4043, 5000, u16::MAX] {
        let slots = place_gso(&world, &bytes, size);
        world.answered(&slots, status::DROPPED);
        assert!(receive(&mut plain.queues[0]).is_none());
    }
    let slots = place_gso(&world, &bytes, 4042);
    world.answered(&slots, status::OKAY);
    let mut lens = Vec::new();
    wait_until("three segments", || {
        lens.extend(receive(&mut plain.queues[0]).map(|got| got.len()));
        lens.len() == 3
    });
    assert_eq!(lens, [4096, 4096, 54 + 862]);
}

#[test]
fn a_frame_that_makes_too_many_segments_is_dropped() {
    let mut world = World::new();
    let (mut plain, mac) = plain_guest(&mut world, true);
    let bytes = Tcp { dst: mac, len: 60_000, ..Tcp::default() }.bytes();
    let slots = place_gso(&world, &bytes, 8);
    world.answered(&slots, status::DROPPED);
    assert!(receive(&mut plain.queues[0]).is_none());
}

#[test]
fn ten_thousand_source_addresses_displace_no_other_guest() {
    let mut world = World::new();
    let h = world.h.port.as_ref().unwrap().id();
    for first in (0..10_000u32).step_by(200) {
        let slots: Vec<_> = (0..200)
            .map(|n| {
                let [.., x, y] = (first + n).to_be_bytes();
                // Sent to this guest, so that no other one receives them.
                let bytes = frame(raw::MAC, [2, 0x66, 0, 0, x, y], 60, n);
                world.h.memory.write(raw::DATA + n, 0, &bytes);
                slot_of(n, 0, 60, 0)
            })
            .collect();
        world.h.send(&slots);
        world.h.await_answers(slots.len());
    }
    world.all_live();
    let addresses = world.host.datapath.addresses();
    let of = |mac| addresses.iter().find(|entry| entry.mac.0 == mac).unwrap().port;
    assert_eq!((of(A), of(B)), (world.a.port.id(), world.b.port.id()));
    assert!(addresses.iter().filter(|entry| entry.port == h).count() <= 1024);
}
