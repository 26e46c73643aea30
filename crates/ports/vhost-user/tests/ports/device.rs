//! What a front-end may ask of the device beside its rings.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use port::Outcome;
use shm::PageSize;
use vhost_user::Link;
use virtqueue::driver::Driver;

use crate::common::{
    FrontEnd, GUEST, LIMIT, LINUX, RING_PACKED, SIZE, Served, USER, Vm, message, pass, plain,
    ring_at, tcp,
};

/// `VIRTIO_F_RING_RESET`, which QEMU takes from a back-end that offers it, executes itself, and does not pass on.
const RING_RESET: u64 = 1 << 40;
/// A message's flags: version 1, and an answer wanted.
const NEED_REPLY: u32 = 1 | 1 << 3;

fn negotiate(front: &mut FrontEnd) {
    front.send_u64(message::SET_FEATURES, LINUX);
    let offered = front.ask_u64(message::GET_PROTOCOL_FEATURES);
    front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
}

/// Sends a message that wants an answer. Returns the answer.
fn acknowledged(front: &mut FrontEnd, request: u32, value: u64) -> u64 {
    let header = [request, NEED_REPLY, 8].map(u32::to_le_bytes).concat();
    front.raw(&[header, value.to_le_bytes().to_vec()].concat(), &[]);
    u64::from_le_bytes(front.reply().try_into().unwrap())
}

fn config(front: &mut FrontEnd) -> Vec<u8> {
    let payload = [[0, 24, 0].map(u32::to_le_bytes).concat(), vec![0; 24]].concat();
    front.send(message::GET_CONFIG, &payload, &[]);
    front.reply()[12..].to_vec()
}

#[test]
fn the_configuration_space_has_address_link_queues_and_mtu() {
    let (served, link) = (Arc::<Served>::default(), Arc::<Link>::default());
    let mut front = FrontEnd::of(4, served.clone(), served, link.clone());
    negotiate(&mut front);
    let mtu = |mtu: u16| mtu.to_le_bytes();
    assert_eq!(config(&mut front)[..10], [2, 0, 0, 0, 0, 9, 1, 0, 4, 0]);
    assert_eq!(config(&mut front)[10..12], mtu(1500));
    assert_eq!(acknowledged(&mut front, message::NET_SET_MTU, 9000), 0);
    assert_eq!(config(&mut front)[10..12], mtu(9000));
    // The front-end hears that the link goes down.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(LIMIT)).unwrap();
    front.send(message::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    front.sync();
    link.set(false);
    let mut change = [0; 12];
    ours.read_exact(&mut change).unwrap();
    assert_eq!(change.to_vec(), [2, 1, 0].map(u32::to_le_bytes).concat());
    assert_eq!(config(&mut front)[6], 0);
    // A front-end that does not read them blocks nobody.
    (0..100_000).for_each(|n| link.set(n % 2 == 0));
    // A driver may write its address and nothing else.
    let write = |offset: u32, len: u32| {
        [[offset, len, 0].map(u32::to_le_bytes).concat(), vec![7; len as usize]].concat()
    };
    front.send(message::SET_CONFIG, &write(0, 6), &[]);
    assert_eq!(config(&mut front)[..6], [2, 0, 0, 0, 0, 9]);
    front.send(message::SET_CONFIG, &write(6, 2), &[]);
    assert!(front.ended().contains("a read-only part of the configuration space"));
}

#[test]
fn the_status_is_kept_and_zero_stops_the_rings() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let mut vm = Vm::boot(features);
        let queue = vm.served(1);
        vm.front.served.put(vec![queue]);
        let offered = vm.front.ask_u64(message::GET_PROTOCOL_FEATURES);
        vm.front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
        assert_eq!(acknowledged(&mut vm.front, message::SET_STATUS, 15), 0);
        assert_eq!(vm.front.ask_u64(message::GET_STATUS), 15);
        vm.front.send_u64(message::SET_STATUS, 0);
        assert_eq!(vm.front.ask_u64(message::GET_STATUS), 0);
        assert_eq!(vm.front.served.stops(), ["the guest's driver reset the device"]);
        std::thread::sleep(Duration::from_millis(10));
        vm.front.sync();
        assert_eq!(vm.front.served.starts(), 1, "a reset device serves nothing");
    }
}

#[test]
fn messages_of_the_device_that_cannot_be_end_the_session() {
    for (request, payload) in [
        (message::NET_SET_MTU, 67u64.to_le_bytes().to_vec()),
        (message::NET_SET_MTU, 65_536u64.to_le_bytes().to_vec()),
        (message::NET_SET_MTU, vec![0; 4]),
        (message::SEND_RARP, vec![0xff; 8]),
        (message::SEND_RARP, vec![0; 8]),
        (message::SET_STATUS, 256u64.to_le_bytes().to_vec()),
        (message::SET_STATUS, vec![]),
        (message::GET_STATUS, vec![0; 8]),
        (message::SET_BACKEND_REQ_FD, vec![]),
    ] {
        let mut front = FrontEnd::new(1);
        negotiate(&mut front);
        front.send(request, &payload, &[]);
        let _ = front.socket.shutdown(std::net::Shutdown::Write);
        assert_ne!(front.ended(), "the front-end is gone", "{request} {payload:?}");
    }
}

#[test]
fn a_guest_that_moved_here_is_announced_in_its_place() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(8, 1526);
    let mac = [2, 0, 0, 0, 0, 2, 0, 0];
    red.front.send_u64(message::SEND_RARP, u64::from_le_bytes(mac));
    red.front.sync();
    red.send(&plain(&red), &tcp(6), &[12], false);
    let (received, outcomes) = pass(&mut from, &mut to).unwrap();
    assert_eq!((received.fresh, outcomes), (2, vec![Outcome::Delivered; 2]));
    let (_, rarp) = blue.receive().unwrap();
    assert_eq!(rarp[..6], [0xff; 6]);
    assert_eq!(
        (&rarp[6..12], &rarp[12..22]),
        (&mac[..6], &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3][..])
    );
    assert_eq!((&rarp[22..28], &rarp[32..38], rarp.len()), (&mac[..6], &mac[..6], 60));
    assert_eq!(blue.receive().unwrap().1, tcp(6), "the guest's own frame");
    assert!(blue.receive().is_none());
    assert_eq!(std::iter::from_fn(|| red.tx.take()).count(), 1, "chains that the guest offered");
    // Once.
    assert_eq!(pass(&mut from, &mut to).unwrap().0.fresh, 0);
    // Also if it sends nothing itself.
    red.front.send_u64(message::SEND_RARP, u64::from_le_bytes(mac));
    red.front.sync();
    assert_eq!(pass(&mut from, &mut to).unwrap().0.fresh, 1);
}

#[test]
fn a_ring_is_stopped_and_described_anew_alone() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(features), Vm::boot(LINUX));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        assert_eq!(red.front.ask_u64(message::GET_FEATURES) & RING_RESET, 0);
        blue.post(64, 1526);
        for n in 0..5 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1.len(), 5);
        red.front.served.put(vec![from]);
        red.front.send_state(message::GET_VRING_BASE, 1, 0);
        red.front.reply();
        // The driver makes the ring anew, and the other one stays.
        let start = usize::try_from(ring_at(0, 1).descriptors).unwrap();
        red.memory.zero(start, 0x8000).unwrap();
        red.tx = Driver::new(&red.memory, ring_at(0, 1), SIZE, crate::common::options(features));
        let base = if features & RING_PACKED != 0 { 0x8000 } else { 0 };
        red.front.ring(1, SIZE.into(), ring_at(USER, 1), base);
        red.front.doorbell(message::SET_VRING_KICK, 1, &red.kicks[1]);
        let mut from = red.served(2);
        red.send(&plain(&red), &tcp(100), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
        let last = std::iter::from_fn(|| blue.receive()).last().unwrap();
        assert_eq!(last.1, tcp(100));
    }
}

#[test]
fn memory_is_plugged_and_unplugged_under_traffic() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    let offered = red.front.ask_u64(message::GET_PROTOCOL_FEATURES);
    red.front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
    blue.post(64, 1526);
    for round in 0..8u64 {
        let more = shm::create_memfd("more", 16, PageSize::Small).unwrap();
        let at = (round + 1) << 33;
        let region = [0, GUEST + at, 16 * 4096, USER + at, 0].map(u64::to_le_bytes).concat();
        red.front.served.put(vec![from]);
        let (request, descriptors) = match round % 2 {
            0 => (message::ADD_MEM_REG, vec![more.as_fd()]),
            _ => (message::REM_MEM_REG, vec![]),
        };
        let at = round << 33;
        let before = [0, GUEST + at, 16 * 4096, USER + at, 0].map(u64::to_le_bytes).concat();
        red.front.send(request, if round % 2 == 0 { &region } else { &before }, &descriptors);
        from = red.served(usize::try_from(round).unwrap() + 2);
        red.send(&plain(&red), &tcp(6), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered], "{round}");
    }
    assert_eq!(std::iter::from_fn(|| blue.receive()).count(), 8);
}
