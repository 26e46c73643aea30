//! The log of inflight descriptors, as front-ends ask for it and bring it back.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use port::{Outcome, Queue};
use virtqueue::driver::Driver;

use crate::common::{
    FrontEnd, LINUX, RING_PACKED, SIZE, Vm, message, options, pass, plain, ring_at, tcp,
};

/// Asks for the memory of a log. Returns the message that brings it back, and the file.
fn ask(front: &mut FrontEnd) -> (Vec<u8>, OwnedFd) {
    let wanted = [&[0; 16][..], &2u16.to_le_bytes(), &SIZE.to_le_bytes(), &[0; 4]].concat();
    front.send(message::GET_INFLIGHT_FD, &wanted, &[]);
    let (reply, mut descriptors) = front.reply_with_descriptors();
    assert_eq!(descriptors.len(), 1);
    (reply, descriptors.remove(0))
}

fn protocol(front: &mut FrontEnd) {
    let offered = front.ask_u64(message::GET_PROTOCOL_FEATURES);
    assert_ne!(offered & 1 << 12, 0, "INFLIGHT_SHMFD");
    front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
}

/// A machine whose front-end keeps a log.
fn boot(features: u64) -> (Vm, Queue, Vec<u8>, OwnedFd) {
    let mut vm = Vm::boot(features);
    let queue = vm.served(1);
    protocol(&mut vm.front);
    let (payload, file) = ask(&mut vm.front);
    vm.front.served.put(vec![queue]);
    vm.front.send(message::SET_INFLIGHT_FD, &payload, &[file.as_fd()]);
    let queue = vm.served(2);
    (vm, queue, payload, file)
}

/// A new session of the same machine, whose front-end knows only where the rings were at first.
fn again(vm: &mut Vm, payload: &[u8], file: &OwnedFd) -> Queue {
    let gone = std::mem::replace(&mut vm.front, FrontEnd::new(1));
    gone.end();
    vm.front.send_u64(message::SET_FEATURES, vm.features);
    protocol(&mut vm.front);
    vm.front.send(message::SET_INFLIGHT_FD, payload, &[file.as_fd()]);
    vm.send_memory();
    vm.start([0; 2].map(|_| if vm.features & RING_PACKED != 0 { 0x8000 } else { 0 }));
    vm.served(1)
}

#[test]
fn a_ring_is_continued_from_the_log_after_its_device_was_killed() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut from, payload, file) = boot(features);
        let (mut blue, mut to, blue_payload, blue_file) = boot(features);
        blue.post(64, 1526);
        for n in 0..5 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered; 5]);
        // Two frames are taken and not answered when both processes are killed.
        for n in 5..7 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        let mut received = port::Received::default();
        from.ingress.receive(&mut port::Budget::default(), &mut received).unwrap();
        assert_eq!(received.fresh, 2);
        // A killed process leaves no position behind.
        std::mem::forget((from, to));
        let mut from = again(&mut red, &payload, &file);
        let mut to = again(&mut blue, &blue_payload, &blue_file);
        red.send(&plain(&red), &tcp(7), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered; 3], "{features:#x}");
        for n in 0..8 {
            assert_eq!(blue.receive().unwrap().1, tcp(n), "{features:#x}");
        }
        assert!(blue.receive().is_none());
        assert_eq!(std::iter::from_fn(|| red.tx.take()).count(), 8);
    }
}

#[test]
fn a_ring_that_the_front_end_stopped_starts_where_it_says() {
    let (mut red, from, payload, file) = boot(LINUX | RING_PACKED);
    red.front.served.put(vec![from]);
    for index in 0..2 {
        red.front.send_state(message::GET_VRING_BASE, index, 0);
        red.front.reply();
    }
    let gone = std::mem::replace(&mut red.front, FrontEnd::new(1));
    gone.end();
    red.front.send_u64(message::SET_FEATURES, red.features);
    protocol(&mut red.front);
    red.front.send(message::SET_INFLIGHT_FD, &payload, &[file.as_fd()]);
    red.send_memory();
    red.start([0x8003; 2]);
    let queue = red.served(1);
    red.front.served.put(vec![queue]);
    red.front.send_state(message::GET_VRING_BASE, 1, 0);
    let reply = red.front.reply();
    assert_eq!(reply[4..], [3, 0x80, 3, 0x80]);
}

/// Each message that resets a device, whose driver then makes its rings anew.
#[test]
fn a_device_that_was_reset_begins_anew() {
    let features = LINUX | RING_PACKED;
    for (request, payload) in [
        (message::RESET_OWNER, &[][..]),
        (message::RESET_DEVICE, &[]),
        (message::SET_STATUS, &[0; 8]),
    ] {
        let (mut red, mut from, ..) = boot(features);
        let (mut blue, mut to, ..) = boot(LINUX);
        blue.post(64, 1526);
        for n in 0..5 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered; 5]);
        red.front.served.put(vec![from]);
        red.front.send(request, payload, &[]);
        red.front.sync();
        let stops = red.front.served.stops();
        assert!(stops.last().unwrap().contains("reset the device"), "{stops:?}");
        for ring in 0..2 {
            let start = usize::try_from(ring_at(0, ring).descriptors).unwrap();
            red.memory.zero(start, 0x8000).unwrap();
        }
        red.tx = Driver::new(&red.memory, ring_at(0, 1), SIZE, options(features));
        red.start([0x8000; 2]);
        let mut from = red.served(3);
        red.send(&plain(&red), &tcp(100), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered], "{request}");
        assert_eq!(std::iter::from_fn(|| blue.receive()).last().unwrap().1, tcp(100));
    }
}

#[test]
fn logs_that_cannot_be_end_the_session() {
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    let small = shm::create_memfd("log", 1, shm::PageSize::Small).unwrap();
    let payload = |len: u64, offset: u64, rings: u16, size: u16| {
        let numbers = [len, offset].map(u64::to_le_bytes).concat();
        [numbers, rings.to_le_bytes().to_vec(), size.to_le_bytes().to_vec(), vec![0; 4]].concat()
    };
    for (request, payload, file) in [
        (message::SET_INFLIGHT_FD, payload(1 << 20, 0, 2, 256), Some(&null)),
        (message::SET_INFLIGHT_FD, payload(1 << 20, 0, 2, 256), Some(&small)),
        (message::SET_INFLIGHT_FD, payload(4096, 0, 2, 32_768), Some(&small)),
        (message::SET_INFLIGHT_FD, payload(4096, 0, u16::MAX, u16::MAX), Some(&small)),
        (message::SET_INFLIGHT_FD, payload(4096, u64::MAX - 7, 1, 16), Some(&small)),
        (message::SET_INFLIGHT_FD, payload(4096, 0, 0, 0), Some(&small)),
        (message::SET_INFLIGHT_FD, payload(4096, 0, 1, 16), None),
        (message::GET_INFLIGHT_FD, payload(0, 0, 3, 256), None),
        (message::GET_INFLIGHT_FD, payload(0, 0, u16::MAX, u16::MAX), None),
    ] {
        let mut front = FrontEnd::new(1);
        front.send_u64(message::SET_FEATURES, LINUX);
        protocol(&mut front);
        let descriptors: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        front.send(request, &payload, &descriptors);
        let why = front.ended();
        assert!(!why.is_empty(), "{payload:?}: {why}");
    }
}
