//! The TX ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use machine::Machine;
use netback::{RxChannel, TxChannel, VifQueue};
use offload::Features;
use port::{Ingress, Outcome, WINDOW};
use port_testing::{receive, with_body};
use proptest::prelude::*;
use wire::netif::extra::Extra;
use wire::netif::{GsoKind, TxRequest, TxResponse, header_channel, status, tx_flags};

use crate::common::guest::{DATA, HEADERS, PAGE, PAGES, REQ_PROD, RSP_PROD, Raw, TX_RING};
use crate::common::taker::{BEHIND, Taker, pass};
use crate::common::tampered::{Random, Tampered};
use crate::control::World;

/// The last byte of the destination address; the others do not change.
const DESTINATIONS: [u8; 2] = [0xa, 0xb];

/// How the backend reads the packets' headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Granted,
    Supplied,
    Mapped,
}

/// A hostile guest's transmit side, and its actions so far.
struct Sender {
    raw: Arc<Raw>,
    random: Random,
    /// The highest index it has published.
    published: Arc<AtomicU32>,
}

impl Sender {
    fn pages(&self) {
        let mut header = [0u8; 128];
        header[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 0x66, 8, 0]);
        header[14..34]
            .copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        header[46] = 0x50;
        (DATA..PAGES).for_each(|page| self.raw.write(page, 0, header));
        (0..256).for_each(|index| self.raw.write(HEADERS, header_channel::place(index), header));
    }

    /// A packet that nearly always follows the protocol. All ids are odd.
    fn packet(&mut self) -> Vec<TxRequest> {
        if self.random.one_in(2000) {
            return (0..1 + self.random.below(24)).map(|_| self.nonsense()).collect();
        }
        let count = if self.random.one_in(8) {
            1 + self.random.below16(19)
        } else {
            1 + self.random.below16(3)
        };
        let mut slots: Vec<_> = (0..count).map(|n| self.fragment(n + 1 < count)).collect();
        slots[0].offset = 0;
        slots[0].size = slots.iter().map(|slot| slot.size).sum();
        if self.random.one_in(2) {
            slots[0].flags |= tx_flags::CSUM_BLANK | tx_flags::DATA_VALIDATED;
            if self.random.one_in(2) {
                slots[0].flags |= tx_flags::EXTRA_INFO;
                slots.insert(1, self.extra());
            }
        }
        slots
    }

    fn fragment(&mut self, more: bool) -> TxRequest {
        let random = &mut self.random;
        let gref = match random.below(30) {
            0 => random.below(1 << 16),
            _ => DATA + random.below(PAGES - DATA),
        };
        let size = if random.one_in(20) { random.below16(60) } else { 54 + random.below16(2000) };
        let flags = if more { tx_flags::MORE_DATA } else { 0 };
        let offset = random.below16(2000);
        TxRequest { gref, offset, flags, id: random.below16(u16::MAX) | 1, size }
    }

    fn nonsense(&mut self) -> TxRequest {
        let random = &mut self.random;
        let [a, b, c] = [(); 3].map(|()| random.below16(u16::MAX));
        let gref = random.below(u32::MAX);
        TxRequest { gref, offset: a, flags: b % 16, id: random.below16(u16::MAX) | 1, size: c }
    }

    fn extra(&mut self) -> TxRequest {
        let random = &mut self.random;
        let most = if random.one_in(4) { 9000 } else { 1500 };
        let size = (8 + random.below16(most)).try_into().unwrap();
        let gso = Extra::Gso { size, kind: GsoKind::TcpV4, features: 0 };
        TxRequest { id: 1, ..gso.encode(false).unwrap().to_tx_slot() }
    }

    fn write_slot(&self, index: u32, slot: TxRequest) {
        self.raw.write(TX_RING, Raw::slot::<TxRequest>(index), slot);
    }

    /// Adds as many packets as fit the ring.
    fn fill(&mut self) {
        let end = self.raw.read::<u32>(TX_RING, RSP_PROD).wrapping_add(256);
        loop {
            let (index, packet) = (self.published.load(Ordering::Relaxed), self.packet());
            // An index that ran below 0 is near the greatest.
            let next = index.checked_add(u32::try_from(packet.len()).unwrap());
            let Some(next) = next.filter(|next| *next <= end) else { return };
            (index..).zip(packet).for_each(|(index, slot)| self.write_slot(index, slot));
            self.publish(next);
        }
    }

    fn publish(&self, index: u32) {
        self.published.fetch_max(index, Ordering::Relaxed);
        self.raw.write(TX_RING, REQ_PROD, index);
    }

    /// A random action, which a guest may take at any moment.
    fn act(&mut self) {
        let page = DATA + self.random.below(PAGES - DATA);
        match self.random.below(6) {
            0 if self.random.one_in(100) => {
                // Another page, another id, or a wholly different slot.
                let index = self.random.below(256);
                let at = Raw::slot::<TxRequest>(index);
                match self.random.below(40) {
                    0 => {
                        let slot = self.nonsense();
                        self.write_slot(index, slot);
                    }
                    n if n % 2 == 0 => self.raw.write(TX_RING, at, page),
                    _ => self.raw.write(TX_RING, at + 8, self.random.below16(u16::MAX) | 1),
                }
            }
            1 if self.random.one_in(2000) => {
                let published = self.published.load(Ordering::Relaxed);
                let index = published.wrapping_add(self.random.below(600)).wrapping_sub(300);
                self.publish(index);
            }
            2 | 3 => {
                let destination = DESTINATIONS[self.random.below(2) as usize];
                let index = self.random.below(256);
                self.raw.write(page, 5, destination);
                self.raw.write(HEADERS, header_channel::place(index) + 5, destination);
            }
            4 => {
                let byte = self.random.next().to_le_bytes()[0];
                // Beyond the addresses.
                self.raw.write(page, 60 + self.random.below(100) as usize, byte);
            }
            5 => {
                let flags = if self.random.one_in(16) { self.random.below16(16) } else { 1 };
                let frame = if self.random.one_in(16) { self.random.below(100) } else { page };
                self.raw.grant(page, flags, 0, frame);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_ring_content_harms_its_owner_only(
        seed in any::<u64>(),
        acts in any::<bool>(),
        offloads in any::<bool>(),
        way in prop::sample::select(vec![Way::Granted, Way::Supplied, Way::Mapped]),
    ) {
        let machine = Machine::new();
        let hypervisor = Tampered::new(&machine);
        let bystander = Raw::new(&machine);
        bystander.write(DATA, 0, [0x5au8; PAGE]);
        let before = bystander.snapshot();
        let features = if offloads { Features::ALL } else { Features { sg: true, ..Features::NONE } };
        let mut taker = Taker::new(&machine, hypervisor.clone(), features);

        let raw = Raw::new(&machine);
        if way == Way::Supplied {
            raw.supply_headers();
        }
        let tx = if way == Way::Mapped { TxChannel::Remap } else { TxChannel::Header };
        let mut vif = raw.announce_by(hypervisor.clone(), tx, RxChannel::Copy);
        let mut queue = raw.connect(&mut vif, Features::ALL);
        let published = Arc::new(AtomicU32::new(0));
        let raw = Arc::new(raw);
        let mut sender = Sender { raw: raw.clone(), random: Random(seed), published: published.clone() };
        sender.pages();
        let mut guest = Sender { raw: raw.clone(), random: Random(!seed), published: published.clone() };
        if acts {
            hypervisor.set(move || guest.act());
        }
        let mut answered = 0u32;
        for round in 0..60 {
            sender.fill();
            let result = pass(&mut queue, &mut taker, Duration::from_millis(round));
            let rsp_prod: u32 = raw.read(TX_RING, RSP_PROD);
            // Never more answers than requests, and only to real requests.
            let new = rsp_prod.wrapping_sub(answered);
            prop_assert!(new <= 256);
            prop_assert!(published.load(Ordering::Relaxed) >= rsp_prod);
            if !acts {
                for n in answered..rsp_prod {
                    let response: TxResponse = raw.read(TX_RING, Raw::slot::<TxRequest>(n));
                    prop_assert!(response.id % 2 == 1 || response.status == status::NULL);
                }
            }
            answered = rsp_prod;
            if result.is_err() {
                break;
            }
        }
        drop(queue);
        // No page of a detached guest stays mapped.
        prop_assert_eq!(raw.domain.pinned(), 0);
        prop_assert!(bystander.snapshot() == before);
        prop_assert!(taker.raw.snapshot()[BEHIND..].iter().all(|byte| *byte == 0xa5));
    }
}

/// The guest sees each answer at once, and replaces it with a packet that will be refused.
#[test]
fn packets_refused_without_end_do_not_hold_a_worker() {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let raw = Raw::new(&machine);
    let mut vif = raw.announce(hypervisor.clone());
    let mut queue = raw.connect(&mut vif, Features::ALL);
    // Too short for a frame. The answer overwrites the slot's reference.
    let short = TxRequest { gref: u32::MAX, offset: 0, flags: 0, id: 9, size: 0 };
    (0..256).for_each(|n| raw.write(TX_RING, Raw::slot::<TxRequest>(n), short));
    raw.write(TX_RING, REQ_PROD, 256u32);
    let mut answered = 0;
    hypervisor.set(move || {
        let slot = Raw::slot::<TxRequest>(answered);
        if raw.read::<u32>(TX_RING, slot) != u32::MAX {
            raw.write(TX_RING, slot, short);
            answered += 1;
            raw.write(TX_RING, REQ_PROD, answered + 256);
            assert!(answered < 100_000, "the worker is held");
        }
    });
    for _ in 0..100 {
        let received = receive(&mut queue.tx).unwrap();
        assert_eq!(received.fresh, 0);
        assert!(received.malformed > 0);
        queue.tx.finish(&[Outcome::Waiting; WINDOW]);
    }
}

/// The ring stays full of frames that no port takes.
#[test]
fn frames_in_hand_are_never_more_than_the_window() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce(machine.clone());
    let mut queue = raw.connect(&mut vif, Features::ALL);
    let slot = TxRequest { gref: DATA, offset: 0, flags: 0, id: 1, size: 60 };
    (0..256).for_each(|n| raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot));
    raw.write(TX_RING, REQ_PROD, 256u32);
    for _ in 0..10 {
        receive(&mut queue.tx).unwrap();
        assert_eq!(queue.tx.window().len(), WINDOW);
        queue.tx.finish(&[Outcome::Waiting; WINDOW]);
        assert_eq!(raw.read::<u32>(TX_RING, RSP_PROD), 0);
    }
}

/// A frame that is all header needs no page: it arrives without a grant.
#[test]
fn a_supplied_header_is_read_once_and_no_page_of_it() {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let mut taker = Taker::new(&machine, hypervisor.clone(), Features::ALL);
    let raw = Arc::new(Raw::new(&machine));
    raw.supply_headers();
    let mut vif = raw.announce(hypervisor.clone());
    let mut queue = raw.connect(&mut vif, Features::ALL);
    (DATA..PAGES).for_each(|page| raw.grant(page, 0, 0, 0));
    let slot = TxRequest { gref: DATA, offset: 4000, flags: 0, id: 1, size: 100 };
    (0..3).for_each(|n| {
        raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot);
        raw.write(HEADERS, header_channel::place(n), [0xc0u8; 100]);
    });
    raw.write(TX_RING, REQ_PROD, 3u32);
    // The memory changes after each read of the backend.
    let guest = raw.clone();
    let mut reads = 0u8;
    hypervisor.set(move || {
        reads = reads.wrapping_add(1);
        (0..3).for_each(|n| guest.write(HEADERS, header_channel::place(n), [reads; 100]));
    });
    assert_eq!(receive(&mut queue.tx).unwrap().fresh, 3);
    let seen = queue.tx.window().order().iter().map(|slot| {
        let header = queue.tx.window().frame(*slot).header();
        assert_eq!(header, [header[0]; 100], "two reads of one header");
        header[0]
    });
    assert_eq!(seen.collect::<std::collections::BTreeSet<_>>().len(), 3, "a read of each");
    pass(&mut queue, &mut taker, Duration::ZERO).unwrap();
    assert_eq!(raw.read::<u32>(TX_RING, RSP_PROD), 3);
}

/// No second copy fetches a body.
#[test]
fn a_short_packet_comes_whole_by_the_copy_of_its_header() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce(Tampered::new(&machine));
    let mut queue = raw.connect(&mut vif, Features::ALL);
    raw.write(DATA, 0, [0xc0u8; 256]);
    for (n, size) in [(0, 192), (1, 193)] {
        let slot = TxRequest { gref: DATA, offset: 0, flags: 0, id: 1, size };
        raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot);
    }
    raw.write(TX_RING, REQ_PROD, 2u32);
    assert_eq!(receive(&mut queue.tx).unwrap().fresh, 2);
    let shapes = queue.tx.window().order().iter().map(|slot| {
        let frame = queue.tx.window().frame(*slot);
        (frame.header().to_vec(), frame.fragments.iter().map(|fragment| fragment.len).collect())
    });
    let expected = [(vec![0xc0; 192], vec![]), (vec![0xc0; 128], vec![65])];
    assert_eq!(shapes.collect::<Vec<_>>(), expected);
}

/// A sender whose packets are mapped, and a receiver.
fn remapped() -> (Raw, VifQueue<Tampered>, Taker) {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let taker = Taker::new(&machine, hypervisor.clone(), Features::ALL);
    let raw = Raw::new(&machine);
    let mut vif = raw.announce_by(hypervisor, TxChannel::Remap, RxChannel::Copy);
    let queue = raw.connect(&mut vif, Features::ALL);
    (raw, queue, taker)
}

#[test]
fn mapped_packets_are_unmapped_before_they_are_answered() {
    let (raw, mut queue, mut taker) = remapped();
    let rings = raw.domain.pinned();
    let more = tx_flags::MORE_DATA;
    let request = |gref, flags, size| TxRequest { gref, offset: 0, flags, id: 1, size };
    let slots = [
        request(DATA, more, 3000),
        request(DATA + 1, more, 1000),
        request(DATA + 2, 0, 1000),
        // Half of it is not granted: it fails, and no page of it stays mapped.
        request(DATA, more, 2000),
        request(PAGES + 9, 0, 1000),
    ];
    (0..).zip(slots).for_each(|(n, slot)| raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot));
    raw.write(TX_RING, REQ_PROD, 5u32);
    assert_eq!(receive(&mut queue.tx).unwrap().fresh, 1);
    assert_eq!(raw.domain.pinned(), rings + 3);
    pass(&mut queue, &mut taker, Duration::ZERO).unwrap();
    assert_eq!(raw.domain.pinned(), rings);
    let status = |n| raw.read::<TxResponse>(TX_RING, Raw::slot::<TxRequest>(n)).status;
    // The frame that failed was answered first, on receipt.
    assert_eq!([0, 1, 2, 3, 4].map(status).iter().filter(|s| **s == status::OKAY).count(), 3);
    assert_eq!([0, 1, 2, 3, 4].map(status).iter().filter(|s| **s == status::ERROR).count(), 2);
}

/// Grants packets like Linux's frontend.
#[test]
fn pages_granted_read_only_are_mapped_too() {
    let (raw, mut queue, mut taker) = remapped();
    let read_only = 1 << 2;
    raw.grant(DATA, 1 | read_only, 0, DATA);
    let request = TxRequest { gref: DATA, offset: 0, flags: 0, id: 1, size: 600 };
    raw.write(TX_RING, Raw::slot::<TxRequest>(0), request);
    raw.write(TX_RING, REQ_PROD, 1u32);
    assert_eq!(receive(&mut queue.tx).unwrap().fresh, 1);
    pass(&mut queue, &mut taker, Duration::ZERO).unwrap();
    let answer: TxResponse = raw.read(TX_RING, Raw::slot::<TxRequest>(0));
    assert_ne!(answer.status, status::ERROR);
}

#[test]
fn headers_behind_the_private_header_are_carried_without_offloads() {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let mut taker = Taker::new(&machine, hypervisor.clone(), Features::ALL);
    let mut world = World::new(&machine, hypervisor);
    // IPv6 with destination options of 248 bytes, then UDP.
    let mut frame = [0u8; 400];
    frame[..15].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60]);
    frame[20] = 60;
    frame[54..56].copy_from_slice(&[17, 30]);
    world.raw.write(DATA, 0, frame);
    world.send(&[DATA], 400);
    pass(&mut world.queue, &mut taker, Duration::ZERO).unwrap();
    assert_eq!(world.last_answer(), status::OKAY);
    // Nobody could say where its checksum lies.
    let flags = tx_flags::CSUM_BLANK | tx_flags::DATA_VALIDATED;
    let unfinished = TxRequest { gref: DATA, offset: 0, flags, id: 1, size: 400 };
    world.raw.write(TX_RING, Raw::slot::<TxRequest>(world.sent), unfinished);
    world.sent += 1;
    world.raw.write(TX_RING, REQ_PROD, world.sent);
    pass(&mut world.queue, &mut taker, Duration::ZERO).unwrap();
    assert_eq!(world.last_answer(), status::ERROR);
}

/// A packet of TCP of `len` bytes that is to be segmented, whose headers take 66 bytes, over slots of which the first has `first` bytes.
fn post_segments(raw: &Raw, len: u16, first: u16) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 0x66, 8, 0]);
    bytes[14..34]
        .copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    bytes[46] = 0x80;
    let sizes = [first, 62, len - first - 62];
    let mut rest = &bytes[..];
    for (page, size) in (DATA..).zip(sizes) {
        let (part, after) = rest.split_at(size.into());
        part.iter().enumerate().for_each(|(n, byte)| raw.write(page, n, *byte));
        rest = after;
    }
    let blank = tx_flags::CSUM_BLANK | tx_flags::DATA_VALIDATED;
    let slot = |n: u16, flags, size| TxRequest {
        gref: DATA + u32::from(n),
        offset: 0,
        flags,
        id: 2 * n + 1,
        size,
    };
    let size = 1448.try_into().unwrap();
    let gso = Extra::Gso { size, kind: GsoKind::TcpV4, features: 0 }.encode(false).unwrap();
    let chain = [
        slot(0, tx_flags::EXTRA_INFO | tx_flags::MORE_DATA | blank, len),
        gso.to_tx_slot(),
        slot(1, tx_flags::MORE_DATA, sizes[1]),
        slot(2, 0, sizes[2]),
    ];
    let index: u32 = raw.read(TX_RING, REQ_PROD);
    (index..).zip(chain).for_each(|(n, slot)| raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot));
    raw.write(TX_RING, REQ_PROD, index + 4);
    bytes
}

#[test]
fn headers_of_segments_come_with_the_first_fragment_or_across_fragments() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce(Tampered::new(&machine));
    let mut queue = raw.connect(&mut vif, Features::ALL);
    for (len, first, private) in [
        (3000, 53, 128),
        // Not all of TCP's header.
        (3000, 54, 128),
        (3000, 65, 128),
        (3000, 66, 66),
        (3000, 127, 127),
        (3000, 128, 128),
        (3000, 700, 128),
        // They could come whole.
        (190, 66, 66),
        (190, 60, 128),
        (127, 60, 127),
    ] {
        let bytes = post_segments(&raw, len, first);
        assert_eq!(receive(&mut queue.tx).unwrap().fresh, 1);
        let window = queue.tx.window();
        let frame = window.frame(window.order()[0]);
        assert_eq!(
            usize::from(frame.header_len),
            private,
            "{len} bytes, {first} in the first fragment"
        );
        assert_eq!(frame.headers.payload_offset, 66);
        let mut whole = vec![0; bytes.len()];
        with_body(&queue.tx, |body| port::linearise(frame, body, &mut whole).unwrap());
        assert!(whole == bytes);
        queue.tx.finish(&[Outcome::Delivered; WINDOW]);
    }
    // The rest of the headers lies in a page that is not granted.
    post_segments(&raw, 3000, 60);
    raw.grant(DATA + 1, 0, 0, 0);
    let received = receive(&mut queue.tx).unwrap();
    assert_eq!((received.fresh, received.malformed), (0, 1));
    queue.tx.finish(&[Outcome::Delivered; WINDOW]);
    let last = raw.read::<u32>(TX_RING, RSP_PROD) - 4;
    let response: TxResponse = raw.read(TX_RING, Raw::slot::<TxRequest>(last));
    assert_eq!((response.id, response.status), (1, status::ERROR));
}
