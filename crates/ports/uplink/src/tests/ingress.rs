//! Buffers of frames that are read from a device.

use std::time::Duration;

use offload::{Checksum, Features, Gso, GsoKind, vnet};
use port::{Body, Budget, Frame, Ingress, Outcome, Place, Received, WINDOW};
use wire::headers::Headers;
use wire::virtio_net::flags;

use super::egress::finish;
use super::network::{in_own_network, ip};
use super::*;
use crate::ingress::{LONE, UNCHECKED};
use crate::tap::{Tap, TapOffload, TapQueue};
use crate::{Macvtap, TapEgress, packet};

const LARGE: BufferOptions = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };

struct Receiver {
    platform: Platform,
    behind: UnixDatagram,
    ingress: TapIngress,
    received: Received,
}

impl Receiver {
    fn new(options: BufferOptions) -> Self {
        let (platform, (tap, behind)) = (platform(), tap());
        let buffers = Buffers::new(options).unwrap();
        let ingress = TapIngress::new(platform.meter().clone(), tap, buffers);
        Self { platform, behind, ingress, received: Received::default() }
    }

    /// Sends a frame as a stack does. Returns how many were received.
    fn send(&mut self, bytes: &[u8], gso: Option<Gso>) -> usize {
        let headers = Headers::parse(&bytes[..HEADER_MAX.min(bytes.len())]).unwrap();
        send(&self.behind, vnet::encode(&headers, Checksum::Partial, gso), bytes);
        self.received.clear();
        self.ingress.receive(&mut Budget::default(), &mut self.received).unwrap();
        self.received.fresh
    }

    /// The one frame in hand.
    fn frame(&self) -> &Frame {
        let [slot] = self.ingress.window().order() else { panic!("not one frame") };
        self.ingress.window().frame(*slot)
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_of(self.frame())
    }

    fn bytes_of(&self, frame: &Frame) -> Vec<u8> {
        whole(&self.ingress, frame)
    }

    /// Copies memory that frames are read into.
    fn copy_out(&self, start: usize, bytes: &mut [u8]) {
        self.ingress.with_body(&mut |body| {
            let Body::Regions(regions) = body else { panic!("read into our own memory") };
            regions[0].copy_out(start, bytes).unwrap();
        });
    }

    /// Where the frame's body begins.
    fn start(&self) -> u64 {
        let Place::Region { offset, .. } = self.frame().fragments[0].place else { panic!() };
        offset.get()
    }

    fn release(&mut self) {
        self.ingress.finish(&[Outcome::Delivered; WINDOW]);
    }

    fn zeroed(&self) -> u64 {
        self.platform.meter().count(Counted::PagesZeroed)
    }
}

#[test]
fn a_large_frame_is_whole_with_any_buffers() {
    let bytes = tcp(60_000);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let body = bytes.len() - HEADER_MAX;
    for (zeroed_pages, huge_pages, fragments) in
        [(false, false, 1), (true, false, body.div_ceil(4096)), (true, true, body.div_ceil(4096))]
    {
        let mut receiver = Receiver::new(BufferOptions { large: true, zeroed_pages, huge_pages });
        assert_eq!(receiver.send(&bytes, gso), 1);
        assert_eq!(receiver.frame().fragments.len(), fragments);
        assert!(fragments <= FRAGMENTS_MAX);
        assert_eq!((receiver.frame().gso, receiver.frame().checksum), (gso, Checksum::Partial));
        assert_eq!(receiver.bytes(), bytes);
    }
}

#[test]
fn a_page_tells_nothing_of_the_frame_before() {
    for large in [true, false] {
        let mut receiver = Receiver::new(BufferOptions { large, zeroed_pages: true, ..LARGE });
        let (long, short) = (tcp(1400), tcp(100));
        assert_eq!(receiver.send(&long, None), 1);
        assert_eq!(receiver.zeroed(), 0, "the kernel's pages are zero at first");
        let page = receiver.start();
        receiver.release();
        assert_eq!(receiver.send(&short, None), 1);
        assert_eq!((receiver.zeroed(), receiver.start()), (1, page));
        assert_eq!(receiver.bytes(), short);
        let mut rest = vec![0xff; 4096 - (short.len() - HEADER_MAX)];
        let start = usize::try_from(page).unwrap() + short.len() - HEADER_MAX;
        receiver.copy_out(start, &mut rest);
        assert!(rest.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn recycled_buffers_are_used_as_they_are() {
    let mut receiver = Receiver::new(LARGE);
    for frame in [tcp(1400), tcp(100), tcp(700)] {
        assert_eq!(receiver.send(&frame, None), 1);
        assert_eq!(receiver.bytes(), frame);
        receiver.release();
    }
    assert_eq!(receiver.zeroed(), 0);
}

#[test]
fn what_does_not_fit_is_dropped_not_cut_off() {
    for (zeroed_pages, room) in [(false, 2048), (true, 4096)] {
        let options = BufferOptions { large: false, zeroed_pages, huge_pages: false };
        let mut receiver = Receiver::new(options);
        let longest = HEADER_MAX + room - 1 - HEADERS;
        for (payload, received) in [(longest, 1), (longest + 1, 0), (longest + 5000, 0)] {
            assert_eq!(receiver.send(&tcp(payload), None), received, "{payload}");
            assert_eq!(receiver.received.malformed, 1 - received as u64);
            receiver.release();
        }
    }
}

#[test]
fn frames_in_hand_share_no_buffers() {
    for (large, zeroed_pages) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut receiver = Receiver::new(BufferOptions { large, zeroed_pages, ..LARGE });
        let frames: Vec<_> = (0..5).map(|n| tcp(1000 + n)).collect();
        let received: usize = frames.iter().map(|frame| receiver.send(frame, None)).sum();
        assert_eq!(received, frames.len());
        let window = receiver.ingress.window();
        for (slot, bytes) in window.order().iter().zip(&frames) {
            assert_eq!(&receiver.bytes_of(window.frame(*slot)), bytes);
        }
    }
}

/// Malformed frames are charged too: a remote sender of nothing else does not keep a worker busy.
#[test]
fn a_turn_ends_even_if_all_frames_are_malformed() {
    let mut receiver = Receiver::new(LARGE);
    let turn = Budget::TURN.work() / Budget::SYSTEM_CALL;
    for _ in 0..turn + 5 {
        send(&receiver.behind, VirtioNetHdr::default(), &[0; 5]);
    }
    receiver.ingress.receive(&mut Budget::default(), &mut receiver.received).unwrap();
    assert_eq!((receiver.received.malformed, receiver.received.fresh), (turn.into(), 0));
}

/// The tap's event tells of another frame, so a turn does not look for the end again and again.
#[test]
fn of_frames_that_came_one_by_one_for_long_a_turn_takes_one() {
    let (mut receiver, frame) = (Receiver::new(LARGE), tcp(100));
    let mut turn = |frames| {
        (0..frames).for_each(|_| send(&receiver.behind, VirtioNetHdr::default(), &frame));
        receiver.received.clear();
        receiver.ingress.receive(&mut Budget::default(), &mut receiver.received).unwrap();
        receiver.release();
        assert!(receiver.ingress.is_drained());
        receiver.received.fresh
    };
    // After so many turns with one frame each, how many of two.
    let mut taken_after = |turns: u8| {
        (0..turns).for_each(|_| assert_eq!(turn(1), 1));
        let taken = turn(2);
        assert_eq!(turn(0), 2 - taken);
        taken
    };
    assert_eq!(taken_after(LONE - 1), 2);
    assert_eq!(taken_after(LONE), 1);
    // Now and then one looks: the last two turns had one frame too.
    assert_eq!(taken_after(UNCHECKED - 1), 2);
    assert_eq!(taken_after(LONE - 1), 2);
}

/// TCP behind a label, which the parser does not know, from a tap to another one.
#[test]
fn a_checksum_behind_unknown_headers_is_finished() {
    let mut mpls = tcp(500);
    mpls.splice(12..14, [0x88, 0x47, 0, 0, 0x11, 64]);
    let header = |start: u16, offset: u16| VirtioNetHdr {
        flags: flags::NEEDS_CSUM,
        csum_start: start.into(),
        csum_offset: offset.into(),
        ..VirtioNetHdr::default()
    };
    let mut receiver = Receiver::new(LARGE);
    for (start, offset, is_taken) in
        [(38, 16, true), (38, 89, false), (600, 0, false), (65_535, 1, false), (6, 0, false)]
    {
        send(&receiver.behind, header(start, offset), &mpls);
        receiver.received.clear();
        receiver.ingress.receive(&mut Budget::default(), &mut receiver.received).unwrap();
        let counts = (receiver.received.fresh, receiver.received.malformed);
        assert_eq!(counts, if is_taken { (1, 0) } else { (0, 1) }, "{start} {offset}");
        if !is_taken {
            continue;
        }
        let (tap, behind) = tap();
        let mut egress = TapEgress::new(receiver.platform.meter().clone(), tap, Features::ALL);
        receiver.ingress.with_body(&mut |body| {
            let outcome = offer(&mut egress, body, receiver.frame(), Duration::ZERO);
            assert_eq!(outcome, Ok(Outcome::Delivered));
        });
        let (metadata, arrived) = super::receive(&behind).unwrap();
        assert!(metadata == VirtioNetHdr::default());
        assert!(arrived == finish((header(38, 16), mpls.clone())));
        assert!(arrived != mpls);
        receiver.release();
    }
}

/// A queue of each kind on `nic0`.
fn queues() -> Vec<TapQueue> {
    ip("link add nic0 type veth peer name pv0");
    let mut queues = packet::open("nic0", 1).unwrap();
    ip("link add link nic0 name mv0 type macvtap mode passthru");
    queues.extend(Macvtap::open("mv0", 1, TapOffload::ALL).unwrap());
    queues.extend(Tap::open("tap0", 1, TapOffload::ALL).unwrap());
    queues
}

#[test]
fn every_kind_of_queue_tells_a_deleted_interface_from_one_that_is_down() {
    in_own_network(|| {
        let queues = queues();
        let deleted = || queues.iter().map(TapQueue::is_deleted).collect::<Vec<_>>();
        for state in ["up", "down"] {
            ["nic0", "mv0", "tap0"].iter().for_each(|name| ip(&format!("link set {name} {state}")));
            assert_eq!(deleted(), [false; 3], "{state}");
        }
        ["nic0", "tap0"].iter().for_each(|name| ip(&format!("link delete {name}")));
        assert_eq!(deleted(), [true; 3]);
    });
}
