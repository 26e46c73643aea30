//! A port of the switch against a card that checks every descriptor.

use std::sync::Arc;
use std::time::Duration;

use cdna::layout::features;
use cdna::{Direction, Enable, Flags, Status};
use cdnafront::{Config, ContextEgress, ContextIngress, open_port};
use hypervisor::{
    Counted, GrantRef, Granted, GrantedMemory, Guest, Hypervisor, Metered, PAGE_SIZE, PeerMemory,
};
use machine::{DRIVER_DOMAIN, Machine, MachineGuest, MemorySize};
use offload::{Checksum, Gso, GsoKind};
use port::{
    Armed, Body, Budget, DropReason, Egress, Fragment, Frame, HEADER_MAX, Ingress, Offer, Outcome,
    Outcomes, Received, WINDOW, linearise,
};
use port_testing::{frame, segments, tcp};
use shm::Region;
use wire::headers::Headers;

use crate::model::{Card, PROTECTIONS, Protection, card};

const DELIVERED: Outcomes = [Outcome::Delivered; WINDOW];

fn platform() -> Metered<Machine> {
    let platform = Metered::new(Machine::new());
    platform.meter().switch(true);
    platform
}

/// A port whose card has these features.
fn opened(protection: Protection, features: u32) -> (Card, ContextIngress, ContextEgress) {
    let (mut card, mut context) = card(protection, u32::MAX - 100);
    context.features = features;
    let config = Config { promiscuous: true, ..Config::default() };
    let (interface, ingress, egress) = open_port(context, &config, platform().meter().clone());
    card.interface = Some(interface);
    card.take_events();
    assert!(card.is_enabled(Enable::PROMISCUOUS));
    (card, ingress, egress)
}

const ALL: u32 = features::CHECKSUM | features::SCATTER_GATHER | features::TSO;

/// Takes frames. Returns how many are new, and how many packets were malformed.
fn take(ingress: &mut ContextIngress) -> (usize, u64) {
    let mut received = Received::default();
    ingress.receive(&mut Budget::default(), &mut received).unwrap();
    (received.fresh, received.malformed)
}

/// The bytes of a frame in hand.
fn whole(ingress: &ContextIngress, slot: u8) -> Vec<u8> {
    let frame = ingress.window().frame(slot);
    let mut bytes = vec![0; frame.len as usize];
    ingress.with_body(&mut |body| {
        linearise(frame, body, &mut bytes).unwrap();
    });
    bytes
}

#[test]
fn received_frames_lie_where_the_card_wrote_them() {
    for protection in PROTECTIONS {
        let (mut card, mut ingress, _) = opened(protection, ALL);
        assert!(!ingress.has_back_pressure());
        let frames = [0, 10, 1400, 4042, 4043, 60_000].map(tcp);
        for frame in &frames {
            assert!(card.receive(frame, Flags::CSUM_BLANK, 0));
        }
        assert_eq!(take(&mut ingress), (6, 0));
        for (slot, bytes) in ingress.window().order().iter().zip(&frames) {
            assert_eq!(whole(&ingress, *slot), *bytes);
            let frame = ingress.window().frame(*slot);
            assert_eq!((frame.checksum, frame.gso), (Checksum::Partial, None));
            assert_eq!(frame.header(), &bytes[..bytes.len().min(HEADER_MAX)]);
        }
        ingress.finish(&DELIVERED);
        assert!(ingress.window().is_empty());
        assert_eq!(ingress.arm().unwrap(), Armed::Asleep);
    }
}

#[test]
fn a_page_is_not_posted_again_while_its_frame_is_in_hand() {
    let (mut card, mut ingress, _) = opened(Protection::MapEach, ALL);
    let held = tcp(9000);
    assert!(card.receive(&held, Flags::NONE, 0));
    assert_eq!(take(&mut ingress), (1, 0));
    let slot = ingress.window().order()[0];
    let mut outcomes = DELIVERED;
    outcomes[usize::from(slot)] = Outcome::Waiting;
    for n in 0..3000 {
        assert!(card.receive(&tcp(n % 9000), Flags::NONE, 0));
        assert_eq!(take(&mut ingress), (1, 0));
        ingress.finish(&outcomes);
    }
    assert_eq!(whole(&ingress, slot), held);
    ingress.finish(&DELIVERED);
    assert!(ingress.window().is_empty());
}

#[test]
fn malformed_frames_cost_budget_and_no_pages() {
    let (mut card, mut ingress, _) = opened(Protection::None, ALL);
    for _ in 0..3000 {
        // IPv4 without a header.
        assert!(card.receive(&tcp(0)[..20], Flags::NONE, 0));
        assert_eq!(take(&mut ingress), (0, 1));
        ingress.finish(&DELIVERED);
    }
    assert!(card.receive(&tcp(5), Flags::NONE, 0));
    assert_eq!(take(&mut ingress), (1, 0));
}

#[test]
fn a_full_window_and_a_spent_budget_end_a_turn() {
    let (mut card, mut ingress, _) = opened(Protection::None, ALL);
    for _ in 0..100 {
        assert!(card.receive(&tcp(0), Flags::NONE, 0));
    }
    let mut received = Received::default();
    ingress.receive(&mut Budget::new(10, u64::MAX), &mut received).unwrap();
    assert_eq!(received.fresh, 10);
    assert_eq!(take(&mut ingress), (WINDOW - 10, 0));
    assert_eq!(ingress.arm().unwrap(), Armed::Asleep, "nothing can be taken");
    ingress.finish(&DELIVERED);
    assert_eq!(ingress.arm().unwrap(), Armed::Ready);
}

#[test]
fn a_card_that_lies_or_goes_breaks_the_port() {
    let (card, mut ingress, _) = opened(Protection::None, ALL);
    card.set_consumer(Direction::Rx, 7);
    let mut received = Received::default();
    assert!(ingress.receive(&mut Budget::default(), &mut received).is_err());
    for status in [Status::Down, Status::Faulted, Status::Revoked] {
        let (card, mut ingress, _) = opened(Protection::None, ALL);
        assert_eq!(ingress.arm().unwrap(), Armed::Asleep);
        card.set_status(status);
        assert!(ingress.arm().is_err());
    }
    let (card, mut ingress, _) = opened(Protection::None, ALL);
    card.set_status(Status::Down);
    assert_eq!(ingress.arm().unwrap(), Armed::Asleep, "it was not up yet");
}

/// A frame whose body lies in `region`.
fn in_region(bytes: &[u8], gso: Option<Gso>) -> (Frame, Arc<[Region]>) {
    let mut frame = Frame { checksum: Checksum::Partial, gso, ..frame(bytes) };
    let region = Region::anonymous(65_536).unwrap();
    let body = &bytes[frame.header().len()..];
    region.copy_in(0, body).unwrap();
    for (n, part) in body.chunks(PAGE_SIZE).enumerate() {
        let len = u16::try_from(part.len()).unwrap();
        frame.fragments.push(Fragment::in_region(0, (n * PAGE_SIZE) as u64, len));
    }
    (frame, [region].into())
}

/// Offers frames once. Returns their outcomes.
fn deliver(
    egress: &mut ContextEgress,
    body: Body<'_>,
    frames: &[&Frame],
    now: u64,
) -> Vec<Outcome> {
    let mut offers: Vec<_> = frames.iter().map(|frame| Offer::new(frame)).collect();
    egress.deliver(body, &mut offers, Duration::from_millis(now)).unwrap();
    offers.iter().map(|offer| offer.outcome).collect()
}

fn tso() -> Gso {
    Gso { kind: GsoKind::TcpV4, size: 1448 }
}

/// Does what a descriptor asks the card for.
fn finish((flags, _, mut bytes): (Flags, u64, Vec<u8>)) -> Vec<u8> {
    if flags.contains(Flags::CSUM_BLANK) {
        let headers = Headers::parse(&bytes).unwrap();
        offload::complete_checksum(&mut bytes, &headers).unwrap();
    }
    bytes
}

#[test]
fn frames_are_sent_as_they_are_if_the_card_can_take_them() {
    for protection in PROTECTIONS {
        let (mut card, _, mut egress) = opened(protection, ALL);
        for (payload, gso) in [(0, None), (500, None), (1446, None), (60_000, Some(tso()))] {
            let bytes = tcp(payload);
            let (frame, regions) = in_region(&bytes, gso);
            let outcomes = deliver(&mut egress, Body::Regions(&regions), &[&frame; 3], 0);
            assert_eq!(outcomes, [Outcome::Delivered; 3]);
            let sent = card.send(usize::MAX);
            assert_eq!(sent.len(), 3);
            assert!(sent.iter().all(|(flags, _, sent)| {
                flags.contains(Flags::CSUM_BLANK)
                    && flags.contains(Flags::GSO) == gso.is_some()
                    && *sent == bytes
            }));
        }
    }
}

#[test]
fn what_the_card_lacks_is_done_here() {
    let (sg, sum) = (features::SCATTER_GATHER, features::CHECKSUM);
    for features in [0, sg, sum, sg | sum] {
        let (mut card, _, mut egress) = opened(Protection::Hypervisor, features);
        let bytes = tcp(8000);
        let (frame, regions) = in_region(&bytes, Some(tso()));
        let outcomes = deliver(&mut egress, Body::Regions(&regions), &[&frame], 0);
        assert_eq!(outcomes, [Outcome::Delivered]);
        let sent: Vec<_> = card.send(usize::MAX).into_iter().map(finish).collect();
        assert_eq!(sent, segments(&bytes, tso()), "{features}");
        let bytes = tcp(1000);
        let (frame, regions) = in_region(&bytes, None);
        deliver(&mut egress, Body::Regions(&regions), &[&frame], 0);
        let sent: Vec<_> = card.send(usize::MAX).into_iter().map(finish).collect();
        let summed = finish((Flags::CSUM_BLANK, 0, bytes));
        assert_eq!(sent, [summed], "{features}");
    }
}

#[test]
fn granted_pages_are_copied_once() {
    let platform = platform();
    let domain = platform.create(MemorySize::default()).unwrap();
    let inside = MachineGuest::inside(&platform, &domain).unwrap();
    let (pages, grants) = inside.share(DRIVER_DOMAIN, 2).unwrap();
    let bytes = tcp(6000);
    pages.copy_in(0, &bytes[HEADER_MAX..]).unwrap();
    let (mut frame, _) = in_region(&bytes, None);
    for (fragment, gref) in frame.fragments.iter_mut().zip(grants) {
        *fragment = Fragment::granted(Granted { gref, offset: 0, mapped: None }, fragment.len);
    }
    let (hypervisor, peer) = (platform.clone(), platform.peer(domain.id()).unwrap());
    let memory: Arc<dyn GrantedMemory> = Arc::new(PeerMemory { hypervisor, peer });
    let (mut card, context) = card(Protection::None, 0);
    let meter = platform.meter().clone();
    let (_interface, _, mut egress) = open_port(context, &Config::default(), meter.clone());
    let body = Body::Granted { memory: &memory, mapped: None };
    assert_eq!(deliver(&mut egress, body, &[&frame], 0), [Outcome::Delivered]);
    assert_eq!(card.send(1)[0].2, bytes);
    assert_eq!(meter.count(Counted::DriverBytes), (bytes.len() - HEADER_MAX) as u64);
    frame.fragments[1] = Fragment::granted(
        Granted { gref: GrantRef(4000), offset: 0, mapped: None },
        frame.fragments[1].len,
    );
    assert_eq!(deliver(&mut egress, body, &[&frame], 0), [Outcome::SourceFault]);
    assert!(card.send(1).is_empty());
}

#[test]
fn frames_wait_for_room_and_not_for_a_card_that_takes_nothing() {
    let (mut card, _, mut egress) = opened(Protection::None, ALL);
    let (frame, regions) = in_region(&tcp(100), None);
    let body = Body::Regions(&regions);
    let outcomes = deliver(&mut egress, body, &[&frame; 300], 0);
    let taken = outcomes.iter().filter(|outcome| **outcome == Outcome::Delivered).count();
    assert!((250..=256).contains(&taken));
    assert!(outcomes[taken..].iter().all(|outcome| *outcome == Outcome::Waiting));
    card.armed[Direction::Tx as usize] = None;
    card.take_events();
    let before = card.interrupts;
    assert_eq!(card.send(10).len(), 10);
    assert_eq!(card.interrupts, before + 1, "room is announced");
    assert_eq!(deliver(&mut egress, body, &[&frame; 8], 100), [Outcome::Delivered; 8]);

    let stalled = Outcome::Dropped(DropReason::Stalled);
    while deliver(&mut egress, body, &[&frame], 200) == [Outcome::Delivered] {}
    assert!(!egress.is_stalled());
    assert_eq!(deliver(&mut egress, body, &[&frame], 350), [Outcome::Waiting]);
    assert_eq!(deliver(&mut egress, body, &[&frame; 2], 450), [stalled; 2]);
    assert!(egress.is_stalled());
    card.send(usize::MAX);
    assert_eq!(deliver(&mut egress, body, &[&frame], 500), [Outcome::Delivered]);
    assert!(!egress.is_stalled());
    while deliver(&mut egress, body, &[&frame], 600) == [Outcome::Delivered] {}
    card.set_status(Status::Down);
    assert_eq!(deliver(&mut egress, body, &[&frame], 601), [stalled], "at once");
}

#[test]
fn frames_do_not_wait_for_a_card_that_sends_one_now_and_then() {
    let (mut card, _, mut egress) = opened(Protection::None, ALL);
    let (frame, regions) = in_region(&tcp(100), None);
    let body = Body::Regions(&regions);
    while deliver(&mut egress, body, &[&frame], 0) == [Outcome::Delivered] {}
    for n in 1..10 {
        assert_eq!(card.send(1).len(), 1);
        let outcomes = deliver(&mut egress, body, &[&frame; 2], n * 50);
        assert_eq!(outcomes[0], Outcome::Delivered);
        let behind = if n < 5 { Outcome::Waiting } else { Outcome::Dropped(DropReason::Stalled) };
        assert_eq!(outcomes[1], behind, "after {n} frames");
    }
}

/// At 100 Mb/s a frame of 60 kB takes 5 ms.
#[test]
fn large_frames_wait_for_a_slow_card() {
    let (mut card, _, mut egress) = opened(Protection::None, ALL);
    let bytes = tcp(60_000);
    let gso = Gso { kind: GsoKind::TcpV4, size: 1448 };
    let (frame, regions) = in_region(&bytes, Some(gso));
    let body = Body::Regions(&regions);
    while deliver(&mut egress, body, &[&frame], 0) == [Outcome::Delivered] {}
    for n in 1..2000 {
        card.send(1);
        let outcomes = deliver(&mut egress, body, &[&frame; 2], n * 5);
        assert!(!outcomes.contains(&Outcome::Dropped(DropReason::Stalled)), "after {n} frames");
    }
}

#[test]
fn segments_of_any_size_fit_or_wait() {
    let (mut card, _, mut egress) = opened(Protection::None, features::CHECKSUM);
    for size in [400, 1448, 5000, 40_000] {
        let bytes = tcp(60_000);
        let (frame, regions) = in_region(&bytes, Some(Gso { kind: GsoKind::TcpV4, size }));
        for now in 0..10 {
            let mut outcome = deliver(&mut egress, Body::Regions(&regions), &[&frame], now);
            if outcome == [Outcome::Waiting] {
                card.send(usize::MAX);
                outcome = deliver(&mut egress, Body::Regions(&regions), &[&frame], now);
            }
            assert_eq!(outcome, [Outcome::Delivered], "{size}");
        }
        card.send(usize::MAX);
    }
    let (frame, regions) = in_region(&tcp(9000), Some(Gso { kind: GsoKind::TcpV4, size: 1 }));
    let outcomes = deliver(&mut egress, Body::Regions(&regions), &[&frame], 0);
    assert_eq!(outcomes, [Outcome::Dropped(DropReason::TooLarge)]);
}
