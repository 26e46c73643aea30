//! The RX ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use machine::Machine;
use netback::Offered;
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Coalescing, Egress, Fragment, Frame, HEADER_MAX, Offer, Outcome};
use port_testing::{offer, segments, tcp, udp};
use proptest::prelude::*;
use shm::Region;
use wire::headers::{Headers, Transport};
use wire::netif::{RxRequest, rx_flags};

use crate::common::guest::{DATA, OFFERED, PAGE, PAGES, REQ_PROD, RSP_PROD, RX_RING, Raw};
use crate::common::tampered::{Random, Tampered};

/// The bytes of frames.
const BODY: u8 = 0x77;

/// A valid frame of up to 64 KiB, as from an ingress port.
fn any_frame(random: &mut Random) -> Frame {
    let len = match random.below(4) {
        0 => 14 + random.below(50),
        1 => 60 + random.below(2000),
        _ => 60 + random.below(65_000),
    };
    let mut frame = Frame::empty();
    frame.len = len;
    let header_len = (len as usize).min(HEADER_MAX);
    frame.header_len = u8::try_from(header_len).unwrap();
    frame.bytes.fill(BODY);
    frame.bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    if len >= 54 && !random.one_in(3) {
        let protocol = if random.one_in(3) { 17 } else { 6 };
        frame.bytes[12..34].copy_from_slice(&[
            8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.bytes[46] = 0x50;
        if random.one_in(4) {
            let total_len = random.below16(u16::MAX).to_be_bytes();
            frame.bytes[16..18].copy_from_slice(&total_len);
        }
    }
    if let Ok(headers) = Headers::parse(frame.header()) {
        frame.headers = headers;
    } else {
        frame.bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame.headers = Headers::parse(frame.header()).unwrap();
    }
    let (mut left, mut offset) = (len - u32::from(frame.header_len), 0);
    while left > 0 {
        let part =
            if frame.fragments.len() == 16 { left } else { left.min(1 + random.below(8000)) };
        let part = part.min(u16::MAX.into());
        let len = u16::try_from(part).unwrap();
        frame.fragments.push(Fragment::in_region(0, offset.into(), len));
        (left, offset) = (left - part, offset + part);
    }
    // As one that was merged.
    if frame.fragments.len() > 1 && random.one_in(3) {
        let mut last = Frame::empty();
        last.header_len = u8::try_from((65_535 - len).min(random.below(60))).unwrap();
        last.bytes.fill(BODY);
        last.fragments.extend(frame.fragments.pop());
        frame.len -= u32::from(last.fragments[0].len);
        last.len = u32::from(last.header_len) + u32::from(last.fragments[0].len);
        assert!(frame.append(&last));
    }
    let transport = frame.headers.transport;
    if matches!(transport, Transport::Tcp | Transport::Udp) && random.one_in(2) {
        frame.checksum = Checksum::Partial;
        if random.one_in(2) {
            let most = if random.one_in(4) { 65_000 } else { 2000 };
            let size = 8 + random.below16(most);
            let is_tcp = transport == Transport::Tcp;
            let kind = if is_tcp { GsoKind::TcpV4 } else { GsoKind::UdpV4 };
            frame.gso = Some(Gso { kind, size });
            // Where it claims no other length, it is a datagram that can be cut.
            if !is_tcp && frame.bytes[16..18] == [0, 0] {
                let datagram = u16::try_from(len - 34).unwrap_or(u16::MAX).to_be_bytes();
                frame.bytes[38..40].copy_from_slice(&datagram);
            }
        }
    }
    frame
}

/// A hostile guest's receive side. Its buffers are the first half of its data pages.
struct Receiver {
    raw: Arc<Raw>,
    random: Random,
    /// The highest index it has published.
    published: Arc<AtomicU32>,
}

const BUFFERS: u32 = (PAGES - DATA) / 2;

impl Receiver {
    /// A slot that is often valid. All ids are odd.
    fn write_some_slot(&mut self) {
        let index = self.random.below(256);
        self.write_slot(index);
    }

    fn write_slot(&mut self, index: u32) {
        let random = &mut self.random;
        let gref = match random.below(12) {
            // Not its own rings: overwriting those is allowed, but this test does not model it.
            0 => PAGES + random.below(1 << 12),
            1 => random.below(8),
            _ => DATA + random.below(BUFFERS),
        };
        let request = RxRequest { id: random.below16(u16::MAX) | 1, pad: 0, gref };
        self.raw.write(RX_RING, Raw::slot::<RxRequest>(index), request);
    }

    fn advance(&mut self) {
        let answered: u32 = self.raw.read(RX_RING, RSP_PROD);
        let before: u32 = self.raw.read(RX_RING, REQ_PROD);
        let room = answered.wrapping_add(257).wrapping_sub(before).clamp(1, 256);
        let index = match self.random.below(64) {
            0 => answered + self.random.below(600),
            1 => before.saturating_sub(self.random.below(4)),
            _ => before + self.random.below(room),
        };
        self.publish(index);
    }

    fn publish(&self, index: u32) {
        self.published.fetch_max(index, Ordering::Relaxed);
        self.raw.write(RX_RING, REQ_PROD, index);
    }

    fn act(&mut self) {
        match self.random.below(6) {
            0 => self.write_some_slot(),
            1 => self.advance(),
            2 => {
                let page = DATA + self.random.below(BUFFERS);
                let flags = if self.random.one_in(6) { self.random.below16(16) } else { 1 };
                let frame = match self.random.below(12) {
                    0 => PAGES + self.random.below(100),
                    _ => DATA + self.random.below(BUFFERS),
                };
                self.raw.grant(page, flags, 0, frame);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_buffers_harm_their_owner_only(
        seed in any::<u64>(),
        acts in any::<bool>(),
        bits in 0u8..16,
        headroom in prop::sample::select(vec![0u32, 0, 0, 256, 2048, 4096, u32::MAX]),
    ) {
        let machine = Machine::new();
        let hypervisor = Tampered::new(&machine);
        let bystander = Raw::new(&machine);
        let before = bystander.snapshot();
        let body = Region::anonymous(1 << 16).unwrap();
        body.copy_in(0, &[BODY; 1 << 16]).unwrap();
        let body: Arc<[Region]> = [body].into();

        let raw = Raw::new(&machine);
        let behind = (DATA + BUFFERS) as usize * PAGE;
        (DATA + BUFFERS..PAGES).for_each(|page| {
            // Its own pages, but never posted as buffers.
            raw.grant(page, 0, 0, page);
            raw.write(page, 0, [0xa5u8; PAGE]);
        });
        raw.key("xdp-headroom", headroom);
        let mut vif = raw.announce(hypervisor.clone());
        let bit = |n: u8| bits >> n & 1 == 1;
        let features = Features { sg: bit(0), csum_v4: bit(1), tso_v4: bit(2), ..Features::NONE };
        let mut queue = raw.connect(&mut vif, features);
        let raw = Arc::new(raw);
        let published = Arc::new(AtomicU32::new(0));
        let mut receiver =
            Receiver { raw: raw.clone(), random: Random(seed), published: published.clone() };
        (0..256).for_each(|index| receiver.write_slot(index));
        receiver.publish(if bit(3) { 256 } else { 0 });
        let mut guest =
            Receiver { raw: raw.clone(), random: Random(!seed), published: published.clone() };
        if acts {
            hypervisor.set(move || guest.act());
        }
        let mut random = Random(seed ^ 1);
        let mut answered = 0u32;
        for round in 0..60u64 {
            let frames: Vec<_> = (0..1 + random.below(8)).map(|_| any_frame(&mut random)).collect();
            let mut offers: Vec<_> = frames.iter().map(Offer::new).collect();
            let now = Duration::from_millis(round * 10);
            let result = queue.rx.deliver(Body::Regions(&body), &mut offers, now);
            let rsp_prod: u32 = raw.read(RX_RING, RSP_PROD);
            let new = rsp_prod.wrapping_sub(answered);
            prop_assert!(new <= 256);
            prop_assert!(rsp_prod <= published.load(Ordering::Relaxed));
            if !acts {
                let mut extra = false;
                for n in answered..rsp_prod {
                    let response = raw.response(n);
                    if !std::mem::take(&mut extra) {
                        prop_assert!(response.id % 2 == 1, "{response:?}");
                        let end = i32::from(response.status) + i32::from(response.offset);
                        prop_assert!(end <= 4096, "{response:?}");
                        extra = response.flags & rx_flags::EXTRA_INFO != 0;
                    }
                }
                prop_assert!(!extra, "an extra was announced and did not come");
            }
            answered = rsp_prod;
            if result.is_err() {
                break;
            }
            (0..20).for_each(|_| receiver.write_some_slot());
            receiver.advance();
        }
        prop_assert!(bystander.snapshot() == before);
        prop_assert!(raw.snapshot()[behind..].iter().all(|byte| *byte == 0xa5));
    }
}

#[test]
fn a_merged_frame_counts_as_those_that_it_was_merged_from() {
    const COALESCING: Coalescing = Coalescing { frames: 3, after: Duration::from_secs(1) };
    let segment = port_testing::frame(&tcp(60));
    let mut merged = Frame::empty();
    merged.begin_merge(&segment);
    assert!(merged.append(&segment));
    merged.end_merge(Gso { kind: GsoKind::TcpV4, size: 60 });
    assert_eq!((segment.merged_from(), merged.merged_from()), (1, 2));

    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let offered = Offered { coalescing: Some(COALESCING), ..OFFERED };
    let mut vif = raw.announce_as(Tampered::new(&machine), offered);
    let mut queue = raw.connect(&mut vif, Features::ALL);
    raw.post(0..16);
    let none: Arc<[Region]> = Arc::new([]);
    for (frame, is_held) in [(&segment, true), (&merged, false)] {
        let outcome = offer(&mut queue.rx, Body::Regions(&none), frame, Duration::ZERO);
        assert_eq!(outcome, Ok(Outcome::Delivered));
        let due = queue.rx.flush(Duration::ZERO, false);
        assert_eq!(due.is_some(), is_held, "the notification of frame {frame:?}");
    }
}

/// A datagram for each segment of a frame that a virtual machine left unsegmented: netif cannot say so.
#[test]
fn unsegmented_udp_comes_in_datagrams() {
    let bytes = udp(3000);
    let gso = Gso { kind: GsoKind::UdpV4, size: 1200 };
    let mut frame = port_testing::frame(&bytes);
    (frame.checksum, frame.gso) = (Checksum::Partial, Some(gso));
    frame.fragments.push(Fragment::in_region(
        0,
        0,
        u16::try_from(bytes.len() - HEADER_MAX).unwrap(),
    ));
    let body = Region::anonymous(8192).unwrap();
    body.copy_in(0, &bytes[HEADER_MAX..]).unwrap();
    let body: Arc<[Region]> = [body].into();

    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce(Tampered::new(&machine));
    let mut queue = raw.connect(&mut vif, Features::ALL);
    raw.post(0..16);
    let outcome = offer(&mut queue.rx, Body::Regions(&body), &frame, Duration::ZERO);
    assert_eq!(outcome, Ok(Outcome::Delivered));

    let datagrams = segments(&bytes, gso);
    for (n, expected) in (0..).zip(&datagrams) {
        let response = raw.response(n);
        assert_eq!(response.flags & (rx_flags::EXTRA_INFO | rx_flags::MORE_DATA), 0);
        let got = raw.received(DATA + u32::from(response.id), response);
        assert!(got == *expected, "datagram {n}");
    }
    assert_eq!((raw.read::<u32>(RX_RING, RSP_PROD), datagrams.len()), (3, 3));
}
