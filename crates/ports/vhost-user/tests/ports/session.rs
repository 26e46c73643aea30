//! Sessions: the messages of front-ends, in order and out of order.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use port::Outcome;
use shm::PageSize;

use crate::common::{
    FrontEnd, GUEST, LEN, LINUX, MQ, PROTOCOL_MEM_SLOTS, PROTOCOL_REPLY_ACK, RING_PACKED, USER, Vm,
    message, new_eventfd, pass, plain, ring_at, tcp,
};

fn memfd(pages: usize) -> File {
    shm::create_memfd("test", pages, PageSize::Small).unwrap().into()
}

#[test]
fn what_is_offered_is_what_is_there() {
    let mut front = FrontEnd::new(4);
    let features = front.ask_u64(message::GET_FEATURES);
    assert_eq!(features & (LINUX | RING_PACKED), LINUX | RING_PACKED);
    front.send_u64(message::SET_FEATURES, LINUX);
    let protocol = front.ask_u64(message::GET_PROTOCOL_FEATURES);
    front.send_u64(message::SET_PROTOCOL_FEATURES, protocol);
    assert_eq!(front.ask_u64(message::GET_QUEUE_NUM), 4);
    assert_eq!(front.ask_u64(message::GET_MAX_MEM_SLOTS), 64);
    assert_eq!(front.end(), "the front-end is gone");
}

/// docs/kvm.md says why. `VIRTIO_NET_F_CTRL_GUEST_OFFLOADS`, `VIRTIO_F_ACCESS_PLATFORM`, `VIRTIO_NET_F_HASH_REPORT`, `VIRTIO_NET_F_RSS`;
/// `VHOST_USER_PROTOCOL_F_PAGEFAULT`, `VHOST_USER_PROTOCOL_F_DEVICE_STATE`.
#[test]
fn what_cannot_work_is_not_offered() {
    let mut front = FrontEnd::new(4);
    let features = front.ask_u64(message::GET_FEATURES);
    assert_eq!(features & (1 << 2 | 1 << 33 | 1 << 57 | 1 << 60), 0, "{features:#x}");
    let protocol = front.ask_u64(message::GET_PROTOCOL_FEATURES);
    assert_eq!(protocol & (1 << 8 | 1 << 19), 0, "{protocol:#x}");
    front.send_u64(message::SET_FEATURES, LINUX | 1 << 60);
    assert!(front.ended().contains("were not offered"));
}

/// As QEMU does when a guest says in the control queue how many pairs of rings it uses.
#[test]
fn pairs_of_rings_are_served_while_they_are_enabled() {
    let front = FrontEnd::new(2);
    let file = memfd(LEN / 4096);
    front.send_u64(message::SET_FEATURES, LINUX | MQ);
    front.memory(&[[GUEST, LEN as u64, USER, 0]], &[file.as_fd()]);
    let (kick, call) = (new_eventfd(), new_eventfd());
    for index in 0..4u32 {
        front.ring(index, 256, ring_at(USER + (u64::from(index) << 16), 0), 0);
        front.doorbell(message::SET_VRING_CALL, index.into(), &call);
        front.doorbell(message::SET_VRING_KICK, index.into(), &kick);
    }
    let rings = [(0, 1, 1), (2, 1, 2), (2, 0, 1), (2, 1, 2)];
    for (times, (first, state, pairs)) in (1..).zip(rings) {
        for ring in [first, first + 1] {
            front.send_state(message::SET_VRING_ENABLE, ring, state);
        }
        let queues = front.served.started(times);
        assert_eq!(queues.len(), pairs, "{times}");
        front.served.put(queues);
    }
    assert_eq!(front.end(), "the front-end is gone");
}

/// What DPDK's front-ends do first when a back-end comes back.
#[test]
fn rings_may_be_stopped_before_features_are_named() {
    let mut front = FrontEnd::new(1);
    for index in 0..2 {
        front.send_state(message::SET_VRING_ENABLE, index, 0);
    }
    for index in 0..2 {
        front.send_state(message::GET_VRING_BASE, index, 0);
        assert_eq!(front.reply()[4..], [0; 4]);
    }
    let features = front.ask_u64(message::GET_FEATURES);
    assert_eq!(features & LINUX, LINUX);
    assert_eq!(front.end(), "the front-end is gone");
}

/// As QEMU does it: the rings are enabled when the device is plugged, and features come when a driver accepts them.
#[test]
fn rings_may_be_enabled_before_features_are_accepted() {
    for needs_reply in [false, true] {
        let mut front = FrontEnd::new(2);
        front.send(message::SET_OWNER, &[], &[]);
        front.ask_u64(message::GET_FEATURES);
        front.send_u64(message::SET_PROTOCOL_FEATURES, PROTOCOL_REPLY_ACK);
        for ring in 0..2 {
            let flags = if needs_reply { 9 } else { 1 };
            front.raw(&[18, flags, 8, ring, 1].map(u32::to_le_bytes).concat(), &[]);
            if needs_reply {
                assert_eq!(front.reply(), [0; 8]);
            }
        }
        front.send_u64(message::SET_FEATURES, LINUX);
        front.sync();
        front.send_state(message::SET_VRING_ENABLE, 1, 0);
        front.sync();
    }
    for (words, said) in [
        ([18, 1, 8, 2, 1], "ring 2 of 2"),
        ([18, 1, 8, 0, 2], "state 2 of ring 0"),
        ([18, 5, 8, 0, 1], "a SET_VRING_ENABLE of 8 bytes"),
    ] {
        let front = FrontEnd::new(1);
        front.raw(&words.map(u32::to_le_bytes).concat(), &[]);
        let why = front.ended();
        assert!(why.contains(said), "{why}");
    }
}

/// As QEMU 7 does it for a device with several pairs of rings: once for each of them.
#[test]
fn memory_may_be_added_and_removed_twice() {
    let mut front = FrontEnd::new(2);
    front.send_u64(message::SET_FEATURES, LINUX);
    front.send_u64(message::SET_PROTOCOL_FEATURES, PROTOCOL_MEM_SLOTS);
    let file = memfd(16);
    let part =
        |guest: u64, user: u64| [0, guest, 16 * 4096, user, 0].map(u64::to_le_bytes).concat();
    let (one, other) = (part(0, USER), part(4096, USER + (1 << 30)));
    for _ in 0..3 {
        for _ in 0..2 {
            front.send(message::ADD_MEM_REG, &one, &[file.as_fd()]);
        }
        // One of the two removals comes after a part that overlaps the removed one.
        front.send(message::REM_MEM_REG, &one, &[]);
        front.send(message::ADD_MEM_REG, &other, &[file.as_fd()]);
        front.send(message::REM_MEM_REG, &one, &[]);
        for _ in 0..2 {
            front.send(message::REM_MEM_REG, &other, &[]);
        }
        front.sync();
    }
    front.send(message::REM_MEM_REG, &part(1 << 40, USER), &[]);
    assert_eq!(front.ended(), "no memory at 0x10000000000 to be removed");
}

#[test]
fn rings_are_stopped_and_continued_where_they_were() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(features), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(32, 1526);
        for n in 0..5 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1.len(), 5);
        for n in 5..8 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        red.front.served.put(vec![from]);
        let positions = [0, 1].map(|index| {
            red.front.send_state(message::GET_VRING_BASE, index, 0);
            let reply = red.front.reply();
            u32::from_le_bytes(reply[4..].try_into().unwrap())
        });
        assert_eq!(red.front.served.stops().len(), 1);
        // Chains of two descriptors each, and a packed ring counts descriptors.
        let taken = if features & RING_PACKED != 0 { 10 } else { 5 };
        assert_eq!(positions[1] & 0x7fff, taken, "the rest is taken later");
        red.start(positions);
        let mut from = red.served(2);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered; 3]);
        for n in 0..8 {
            assert_eq!(blue.receive().unwrap().1, tcp(n));
        }
        assert!(blue.receive().is_none());
        assert_eq!(std::iter::from_fn(|| red.tx.take()).count(), 8);
    }
}

#[test]
fn a_front_end_that_comes_again_continues_its_rings() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(32, 1526);
    red.send(&plain(&red), &tcp(1), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    // A frame is taken and not answered when the session ends.
    red.send(&plain(&red), &tcp(2), &[12], false);
    let mut received = port::Received::default();
    from.ingress.receive(&mut port::Budget::default(), &mut received).unwrap();
    assert_eq!(received.fresh, 1);
    drop(from);
    let gone = std::mem::replace(&mut red.front, FrontEnd::new(1));
    gone.end();
    red.front.send_u64(message::SET_FEATURES, LINUX);
    red.send_memory();
    red.start([0; 2]);
    let mut from = red.served(1);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    assert_eq!([blue.receive(), blue.receive()].map(|frame| frame.unwrap().1), [tcp(1), tcp(2)]);
}

#[test]
fn memory_changes_under_traffic() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(32, 1526);
    red.send(&plain(&red), &tcp(1000), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    // A second region comes, then it goes.
    let more = memfd(16);
    let whole = [GUEST, LEN as u64, USER, 0];
    let added = [GUEST + (1 << 33), 16 * 4096, USER + (1 << 33), 0];
    red.front.served.put(vec![from]);
    red.front.memory(&[whole, added], &[red.file.as_fd(), more.as_fd()]);
    let mut from = red.served(2);
    red.send(&plain(&red), &tcp(1001), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    red.front.served.put(vec![from]);
    red.send_memory();
    let mut from = red.served(3);
    red.send(&plain(&red), &tcp(1002), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    let seen = [(); 3].map(|()| blue.receive().unwrap().1.len());
    assert_eq!(seen, [1054, 1055, 1056]);
    // Without the ring's own memory, the rings cannot be served.
    red.front.served.put(vec![from]);
    red.front.memory(&[added], &[more.as_fd()]);
    let why = red.front.ended();
    assert!(why.contains("ring 0: the descriptor table of the ring"), "{why}");
}

#[test]
fn memory_that_cannot_be_ends_the_session() {
    let file = memfd(16);
    let fd = file.as_fd();
    let null = File::open("/dev/null").unwrap();
    let len = 16 * 4096;
    for (parts, fds, said) in [
        (vec![[0, len, 0, 0], [4096, len, 1 << 40, 0]], vec![fd, fd], "overlap"),
        (vec![[0, len, 0, 0], [1 << 40, len, 4096, 0]], vec![fd, fd], "overlap"),
        (vec![[0, len + 4096, 0, 0]], vec![fd], "a file of 65536 bytes"),
        (vec![[0, len, 0, 4096]], vec![fd], "a file of 65536 bytes"),
        (vec![[0, 100, 0, 0]], vec![fd], "a range of 100 bytes"),
        (vec![[0, len, 0, 0]], vec![null.as_fd()], "no memfd"),
        (vec![[0, len, 0, 0]], vec![], ""),
        (vec![[0, len, 0, 0]], vec![fd, fd], ""),
        (vec![[u64::MAX - 4095, len, 0, 0]], vec![fd], ""),
        (vec![[0, 0, 0, 0]], vec![fd], ""),
    ] {
        let front = FrontEnd::new(1);
        front.memory(&parts, &fds);
        let why = front.ended();
        assert!(why.contains(said), "{parts:?}: {why}");
    }
}

type Send<'a> = &'a dyn Fn(&FrontEnd);

#[test]
fn messages_that_cannot_be_end_the_session() {
    let call = new_eventfd();
    let null = File::open("/dev/null").unwrap();
    let cases: [(&str, Send<'_>); 12] = [
        ("a ring that is not there", &|f| f.send_state(message::SET_VRING_NUM, 2, 256)),
        ("its index wraps", &|f| f.send_state(message::GET_VRING_BASE, u32::MAX, 0)),
        ("features not offered", &|f| f.send_u64(message::SET_FEATURES, 1 << 5)),
        ("an unknown message", &|f| f.send(9999, &[], &[])),
        ("message 0", &|f| f.send(0, &[], &[])),
        ("a payload of the wrong size", &|f| f.send(message::SET_FEATURES, &[0; 7], &[])),
        ("a payload that is too long", &|f| {
            f.raw(&[2, 1, 0x00ff_ffff].map(u32::to_le_bytes).concat(), &[]);
        }),
        ("another version", &|f| f.raw(&[2, 2, 8].map(u32::to_le_bytes).concat(), &[])),
        ("no eventfd", &|f| f.doorbell(message::SET_VRING_CALL, 0, &null)),
        ("a doorbell without descriptor", &|f| f.send_u64(message::SET_VRING_KICK, 0)),
        ("descriptors that nobody wants", &|f| {
            f.send(message::SET_FEATURES, &0u64.to_le_bytes(), &[call.as_fd(), call.as_fd()]);
        }),
        ("memory to be removed that is not there", &|f| {
            f.send_u64(message::SET_FEATURES, LINUX);
            f.send_u64(message::SET_PROTOCOL_FEATURES, 1 << 15);
            f.send(message::REM_MEM_REG, &[0, 0, 4096, 0, 0].map(u64::to_le_bytes).concat(), &[]);
        }),
    ];
    for (name, send) in cases {
        let front = FrontEnd::new(1);
        send(&front);
        let _ = front.socket.shutdown(std::net::Shutdown::Write);
        let why = front.ended();
        assert!(!why.is_empty() && why != "the front-end is gone", "{name}: {why}");
    }
}

#[test]
fn rings_that_cannot_be_end_the_session_when_they_start() {
    let start = |size: u32, at| {
        let front = FrontEnd::new(1);
        let file = memfd(LEN / 4096);
        front.send_u64(message::SET_FEATURES, LINUX);
        front.memory(&[[GUEST, LEN as u64, USER, 0]], &[file.as_fd()]);
        let (kick, call) = (new_eventfd(), new_eventfd());
        for index in 0..2 {
            front.ring(index, size, at, 0);
            front.doorbell(message::SET_VRING_CALL, index.into(), &call);
            front.doorbell(message::SET_VRING_KICK, index.into(), &kick);
            front.send_state(message::SET_VRING_ENABLE, index, 1);
        }
        front.ended()
    };
    for size in [0, 100, 65_536, u32::MAX] {
        let why = start(size, ring_at(USER, 0));
        assert!(why.contains("a split ring of"), "{why}");
    }
    for base in [0, USER + LEN as u64 - 64, (u64::MAX - (1 << 20)) & !4095] {
        let why = start(256, ring_at(base, 0));
        assert!(why.contains("ring 0"), "{why}");
    }
    // Nothing is started before everything is described.
    let mut front = FrontEnd::new(1);
    front.send_u64(message::SET_FEATURES, LINUX);
    for index in 0..2 {
        front.doorbell(message::SET_VRING_KICK, index, new_eventfd());
        front.send_state(message::SET_VRING_ENABLE, u32::try_from(index).unwrap(), 1);
    }
    std::thread::sleep(Duration::from_millis(20));
    front.sync();
    assert_eq!(front.served.starts(), 0);
}

#[test]
fn a_message_in_parts_is_accepted() {
    let mut front = FrontEnd::new(1);
    let file = memfd(LEN / 4096);
    let size = 40u32;
    let header = [message::SET_MEM_TABLE, 1, size].map(u32::to_le_bytes).concat();
    let table = [1, GUEST, LEN as u64, USER, 0].map(u64::to_le_bytes).concat();
    let bytes = [header, table].concat();
    front.raw(&bytes[..1], &[file.as_fd()]);
    for byte in &bytes[1..] {
        front.raw(&[*byte], &[]);
    }
    // A pause between header and payload, and inside of both.
    let request = [message::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat();
    let request = [request, LINUX.to_le_bytes().to_vec()].concat();
    for part in [&request[..5], &request[5..12], &request[12..15], &request[15..]] {
        front.raw(part, &[]);
        std::thread::sleep(Duration::from_millis(20));
    }
    front.sync();
    assert_eq!(front.end(), "the front-end is gone");
}

#[test]
fn a_message_whose_rest_does_not_come_ends_the_session() {
    let sessions = [1, 11, 12, 15].map(|len| {
        let front = FrontEnd::new(1);
        let request = [message::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat();
        front.raw(&[request, vec![0; 8]].concat()[..len], &[]);
        front
    });
    for front in sessions {
        assert_eq!(front.ended(), "a message that was not whole after 2 s");
    }
}

#[test]
fn replies_that_nobody_reads_end_the_session() {
    let front = FrontEnd::new(1);
    front.socket.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    // Until both directions are full.
    let request = [message::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
    while std::io::Write::write_all(&mut &front.socket, &request).is_ok() {}
    assert_eq!(front.ended(), "the front-end does not read its replies");
}
