//! Hashes that a guest asks for over the control ring: what it can send, and what comes with its frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hypervisor::Hypervisor;
use machine::Machine;
use netback::{GrantReuse, Offered, Vif, VifChange};
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Egress, FlowHash, Fragment, Frame, HashInput, Outcome, Task};
use shm::Region;
use wire::netif::ctrl::status;
use wire::netif::{CtrlMessage, Extra, ExtraInfo, HashKind, RxResponse, rx_flags};
use wire::toeplitz::{MICROSOFT_KEY, Table};

use crate::common::guest::{
    CTRL_RING, DATA, LIST, OFFERED, PAGE, PAGES, PERSISTENT, REQ_PROD, RSP_PROD, RX_RING, Raw,
};
use crate::common::tampered::Tampered;
use crate::control::{PERMIT_READ, World, world};

const TOEPLITZ: CtrlMessage = CtrlMessage::SetHashAlgorithm { algorithm: 1 };
/// The hash of [`tcp_frame`]'s flow, and of its addresses: the first of Microsoft's vectors.
const FLOW: u32 = 0x51cc_c178;
const ADDRESSES: u32 = 0x323e_8fc2;

/// A guest with a control ring, whose frontend takes these features.
fn world_with(raw: Raw, mut vif: Vif<Machine>, features: Features) -> World<Machine> {
    raw.offer_control();
    let mut connection = raw.connect_all(&mut vif, features);
    let (queue, control) = (connection.queues.pop().unwrap(), connection.control.unwrap());
    World { raw: Arc::new(raw), vif, queue, control, asked: 0, sent: 0, rings: 0 }
}

/// Asks for these kinds of hash, with Microsoft's key.
fn switch_on<H: Hypervisor>(world: &mut World<H>, flags: u32) {
    assert_eq!(world.ask(TOEPLITZ).status, status::SUCCESS);
    assert_eq!(set_key(world), status::SUCCESS);
    assert_eq!(world.ask(CtrlMessage::SetHashFlags { flags }).status, status::SUCCESS);
}

fn set_key<H: Hypervisor>(world: &mut World<H>) -> u32 {
    world.raw.write(LIST, 0, MICROSOFT_KEY);
    world.ask(CtrlMessage::SetHashKey { gref: LIST, len: 40 }).status
}

/// A TCP segment with `len` bytes in all, of which all beyond the first 54 lie in a region.
fn tcp_frame(len: u32) -> Frame {
    let mut bytes = [0u8; 54];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34].copy_from_slice(&[
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80,
    ]);
    bytes[34..38].copy_from_slice(&[0x0a, 0xea, 0x06, 0xe6]);
    bytes[46] = 0x50;
    let mut frame = Frame::empty();
    frame.set_header(&bytes).unwrap();
    frame.len = len;
    let mut left = len - 54;
    while left > 0 {
        let part = left.min(4096);
        frame.fragments.push(Fragment::in_region(0, 0, u16::try_from(part).unwrap()));
        left -= part;
    }
    frame
}

/// Posts `count` buffers.
fn post(raw: &Raw, count: u32) {
    let posted = raw.read::<u32>(RX_RING, REQ_PROD);
    raw.post(posted..posted + count);
}

fn offer(queue: &mut dyn Egress, frame: &Frame) -> Outcome {
    let regions: Arc<[Region]> = [Region::anonymous(PAGE).unwrap()].into();
    port_testing::offer(queue, Body::Regions(&regions), frame, Duration::ZERO).unwrap()
}

/// The responses from index `from` on.
fn responses(raw: &Raw, from: u32) -> Vec<RxResponse> {
    let end = raw.read::<u32>(RX_RING, RSP_PROD);
    (from..end).map(|n| raw.response(n)).collect()
}

/// The extra in a response's slot, and whether another one follows.
fn extra(response: RxResponse) -> (Extra, bool) {
    let info: ExtraInfo = zerocopy::transmute!(response);
    (Extra::decode(&info).unwrap(), info.more())
}

fn hash_extra(kind: HashKind, value: u32) -> Extra {
    Extra::Hash { kind, algorithm: 1, value }
}

#[test]
fn a_hash_comes_in_a_slot_behind_the_first() {
    let mut world = world();
    switch_on(&mut world, 0xf);
    post(&world.raw, 20);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
    let [data, hash] = responses(&world.raw, 0)[..] else { panic!() };
    assert_eq!((data.status, data.flags), (54, rx_flags::EXTRA_INFO));
    assert_eq!(extra(hash), (hash_extra(HashKind::Ipv4Tcp, FLOW), false));
    // Behind the first page of three, and behind the extra of an unsegmented frame.
    let mut frame = tcp_frame(9000);
    frame.checksum = Checksum::Partial;
    frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    assert_eq!(offer(&mut world.queue.rx, &frame), Outcome::Delivered);
    let [first, gso, hash, second, last] = responses(&world.raw, 2)[..] else { panic!() };
    let more = |response: RxResponse| response.flags & rx_flags::MORE_DATA != 0;
    assert_eq!([first, second, last].map(more), [true, true, false]);
    assert!(matches!(extra(gso), (Extra::Gso { .. }, true)));
    assert_eq!(extra(hash), (hash_extra(HashKind::Ipv4Tcp, FLOW), false));
    // Only addresses are hashed where that is all that the guest wants, and nothing of other frames.
    assert_eq!(world.ask(CtrlMessage::SetHashFlags { flags: 1 }).status, status::SUCCESS);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
    let [_, hash] = responses(&world.raw, 7)[..] else { panic!() };
    assert_eq!(extra(hash), (hash_extra(HashKind::Ipv4, ADDRESSES), false));
    assert_eq!(world.ask(CtrlMessage::SetHashFlags { flags: 4 | 8 }).status, status::SUCCESS);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
    assert_eq!(responses(&world.raw, 9).len(), 1);
    assert_eq!(world.ask(CtrlMessage::SetHashAlgorithm { algorithm: 0 }).status, status::SUCCESS);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
    assert_eq!(responses(&world.raw, 10).len(), 1);
}

#[test]
fn a_frame_waits_until_there_is_a_slot_for_its_hash_too() {
    let mut world = world();
    switch_on(&mut world, 2);
    post(&world.raw, 1);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Waiting);
    assert_eq!(responses(&world.raw, 0), []);
    post(&world.raw, 1);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
    assert_eq!(responses(&world.raw, 0).len(), 2);
}

#[test]
fn each_segment_that_software_makes_has_the_hash() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let vif = raw.announce(machine.clone());
    // No scatter/gather either: a hash is no second page.
    let mut world = world_with(raw, vif, Features::NONE);
    switch_on(&mut world, 2);
    let mut frame = tcp_frame(54 + 3 * 1000);
    frame.checksum = Checksum::Partial;
    frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000 });
    post(&world.raw, 5);
    assert_eq!(offer(&mut world.queue.rx, &frame), Outcome::Waiting, "six slots are needed");
    post(&world.raw, 1);
    assert_eq!(offer(&mut world.queue.rx, &frame), Outcome::Delivered);
    let responses = responses(&world.raw, 0);
    for packet in responses.chunks(2) {
        assert_eq!((packet[0].status, packet[0].flags), (1054, rx_flags::EXTRA_INFO));
        assert_eq!(extra(packet[1]), (hash_extra(HashKind::Ipv4Tcp, FLOW), false));
    }
    assert_eq!(responses.len(), 6);
    // There are so many segments that their hashes have no room: they come without.
    frame = tcp_frame(54 + 120 * 500);
    frame.checksum = Checksum::Partial;
    frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 500 });
    post(&world.raw, 200);
    assert_eq!(offer(&mut world.queue.rx, &frame), Outcome::Delivered);
    let responses = self::responses(&world.raw, 6);
    assert!(responses.len() == 120 && responses.iter().all(|response| response.flags == 0));
}

/// How the guest's flows are spread, as the datapath sees it.
fn hash_of<H: Hypervisor>(world: &World<H>) -> Option<FlowHash> {
    let cell = world.queue.rx.steering().unwrap();
    cell.load().steering().and_then(|steering| steering.hash(&tcp_frame(54)))
}

#[test]
fn pages_that_are_not_granted_are_not_read() {
    let mut world = world();
    switch_on(&mut world, 2);
    let size = CtrlMessage::SetHashMappingSize { entries: 128 };
    assert_eq!(world.ask(size).status, status::SUCCESS);
    world.raw.grant(DATA + 1, 0, 0, DATA + 1);
    world.raw.grant(DATA + 2, 1, 7, DATA + 2);
    world.raw.grant(DATA + 3, 1, 0, PAGES + 100);
    for gref in [DATA + 1, DATA + 2, DATA + 3, PAGES + 600, u32::MAX] {
        let key = world.ask(CtrlMessage::SetHashKey { gref, len: 40 });
        let mapping = world.ask(CtrlMessage::SetHashMapping { gref, entries: 128, offset: 0 });
        assert_eq!([key.status, mapping.status], [status::INVALID_PARAMETER; 2], "{gref}");
        assert_eq!(hash_of(&world), Some(FlowHash { input: HashInput::Ipv4Tcp, value: FLOW }));
    }
    // It may be read-only: nothing is written to it.
    world.raw.grant(LIST, PERMIT_READ, 0, LIST);
    assert_eq!(set_key(&mut world), status::SUCCESS);
    // Nothing is mapped for any of this.
    assert_eq!(world.mapped(), 0);
}

#[test]
fn a_key_and_a_table_are_read_once() {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let mut world = World::new(&machine, hypervisor.clone());
    switch_on(&mut world, 2);
    let size = CtrlMessage::SetHashMappingSize { entries: 128 };
    assert_eq!(world.ask(size).status, status::SUCCESS);
    let (guest, reads) = (world.raw.clone(), Arc::new(AtomicU32::new(0)));
    let counted = reads.clone();
    // The page changes before and after each read of the backend.
    hypervisor.set(move || {
        let read = counted.fetch_add(1, Ordering::Relaxed);
        (0..10).for_each(|n| guest.write(LIST, n * 4, read));
    });
    let before = reads.load(Ordering::Relaxed);
    let answer = world.ask(CtrlMessage::SetHashKey { gref: LIST, len: 40 });
    hypervisor.set(|| ());
    assert_eq!(answer.status, status::SUCCESS);
    let seen = before..reads.load(Ordering::Relaxed);
    let keys = seen.map(|read| {
        let mut key = [0; 40];
        key.chunks_mut(4).for_each(|word| word.copy_from_slice(&read.to_ne_bytes()));
        let flow = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        Table::new(&key).hash(&flow)
    });
    let of_one_read: Vec<_> = keys.collect();
    assert!(of_one_read.contains(&hash_of(&world).unwrap().value), "a key of two reads");
    // Entries that are valid when they are read, and never else.
    let (guest, reads) = (world.raw.clone(), AtomicU32::new(0));
    hypervisor.set(move || {
        let bad = if reads.fetch_add(1, Ordering::Relaxed) % 2 == 0 { 0 } else { 9u32 };
        (0..128).for_each(|n| guest.write(LIST, n * 4, bad));
    });
    for _ in 0..50 {
        let message = CtrlMessage::SetHashMapping { gref: LIST, entries: 128, offset: 0 };
        let answer = world.ask(message).status;
        assert!([status::SUCCESS, status::INVALID_PARAMETER].contains(&answer));
        let cell = world.queue.rx.steering().unwrap();
        let steering = cell.load().steering().cloned().unwrap();
        for value in 0..128 {
            let hash = FlowHash { input: HashInput::Ipv4, value };
            assert_eq!(steering.queue_of(Some(hash), 16), 0, "a queue that there is not");
        }
    }
}

#[test]
fn a_flood_of_hash_messages_is_served_one_a_step() {
    let mut world = world();
    let machine_pages = world.rings;
    world.raw.write(LIST, 0, MICROSOFT_KEY);
    let ask = |n: u32| match n % 6 {
        0 => TOEPLITZ,
        1 => CtrlMessage::SetHashKey { gref: LIST, len: 40 },
        2 => CtrlMessage::SetHashFlags { flags: 0xf },
        3 => CtrlMessage::SetHashMappingSize { entries: 128 },
        4 => CtrlMessage::SetHashMapping { gref: DATA, entries: 128, offset: 0 },
        _ => CtrlMessage::SetHashFlags { flags: 0 },
    };
    (0..128).for_each(|n| world.put(ask(n).request(0)));
    for answered in 0..1000 {
        let now: u32 = world.raw.read(CTRL_RING, RSP_PROD);
        assert_eq!(now, answered, "more than a message, or none");
        assert!(world.control.step().unwrap());
        // Frames go on between two steps, with the hash of the moment.
        if answered % 16 == 0 {
            post(&world.raw, 2);
            let before: u32 = world.raw.read(RX_RING, RSP_PROD);
            assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
            let hash = hash_of(&world);
            assert_eq!(responses(&world.raw, before).len(), 1 + usize::from(hash.is_some()));
        }
        world.put(ask(world.asked).request(0));
    }
    assert_eq!(world.raw.domain.pinned(), machine_pages);
}

#[test]
fn the_next_backend_goes_on_with_the_hash() {
    let machine = Machine::new();
    let mut world = World::new(&machine, machine.clone());
    world.vif.connected().unwrap();
    switch_on(&mut world, 0xf);
    post(&world.raw, 4);
    assert_eq!(offer(&mut world.queue.rx, &tcp_frame(54)), Outcome::Delivered);
    let World { raw, queue, control, .. } = world;
    drop((queue, control));
    let offered = Offered { persistent_grants: PERSISTENT, ..OFFERED };
    let mut vif = raw.adopt(machine, offered);
    let VifChange::Connect(mut connection) = vif.frontend_changed().unwrap() else {
        panic!("the frontend is connected")
    };
    let mut queue = connection.queues.pop().unwrap();
    assert_eq!(offer(&mut queue.rx, &tcp_frame(54)), Outcome::Delivered);
    let [_, hash] = responses(&raw, 2)[..] else { panic!() };
    assert_eq!(extra(hash), (hash_extra(HashKind::Ipv4Tcp, FLOW), false));
}

#[test]
fn every_backend_has_a_control_ring_for_hashes() {
    let machine = Machine::new();
    let on_demand =
        Offered { persistent_grants: PERSISTENT, reuse: GrantReuse::OnDemand, ..OFFERED };
    for offered in [OFFERED, on_demand] {
        let raw = Raw::new(&machine);
        let vif = raw.announce_as(machine.clone(), offered);
        let mut world = world_with(raw, vif, Features::ALL);
        switch_on(&mut world, 2);
        assert_eq!(hash_of(&world).map(|hash| hash.value), Some(FLOW));
        let size = world.ask(CtrlMessage::GetGrefMappingSize { queue: 0 });
        assert_eq!(size.status, status::NOT_SUPPORTED);
    }
}
