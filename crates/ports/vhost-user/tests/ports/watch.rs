//! What a session says that it has come to.

use std::os::fd::{AsFd, OwnedFd};

use shm::PageSize;
use vhost_user::Condition::{NoDriver, NoMemory, Served, Stopped};

use crate::common::{FrontEnd, GUEST, LEN, LINUX, RING_PACKED, USER, Vm, message};

const BOTH: [u64; 2] = [LINUX, LINUX | RING_PACKED];
/// `VHOST_USER_PROTOCOL_F_MQ`
const PROTOCOL_MQ: u64 = 1;

fn memfd() -> OwnedFd {
    shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap()
}

#[test]
fn a_session_without_a_driver_and_one_without_memory_are_distinguished() {
    let mut front = FrontEnd::new(1);
    front.sync();
    assert_eq!(front.served.settled(1), [NoDriver]);
    // As QEMU does without a memory backend: nothing of its memory has a descriptor.
    front.send_u64(message::SET_FEATURES, LINUX);
    assert_eq!(front.served.settled(2), [NoDriver, NoMemory]);
    let file = memfd();
    front.memory(&[[GUEST, LEN as u64, USER, 0]], &[file.as_fd()]);
    assert_eq!(front.served.settled(3), [NoDriver, NoMemory, NoDriver]);
}

#[test]
fn a_driver_that_stopped_is_reported() {
    let mut vm = Vm::boot(LINUX);
    let queue = vm.served(1);
    vm.front.served.put(vec![queue]);
    for ring in 0..2 {
        vm.front.send_state(message::GET_VRING_BASE, ring, 0);
        vm.front.reply();
    }
    assert_eq!(vm.front.served.settled(1), [Stopped]);
    assert_eq!(vm.front.end(), "the front-end is gone");
}

/// As QEMU does with a memory backend with `share=off`.
#[test]
fn memory_that_stands_still_while_the_guest_announces_chains_is_not_shared() {
    for features in BOTH {
        let front = FrontEnd::new(1);
        let mut vm = Vm::boot_apart(features, &memfd(), memfd(), front);
        let _queue = vm.served(1);
        vm.post(8, 1526);
        vm.kick();
        assert_eq!(vm.front.served.settled(1), [NoMemory], "{features:#x}");
    }
}

#[test]
fn memory_in_which_a_chain_arrives_is_shared_whatever_was_announced_before() {
    for features in BOTH {
        let mut vm = Vm::boot(features);
        let _queue = vm.served(1);
        vm.kick();
        assert_eq!(vm.front.served.settled(1), [NoMemory], "{features:#x}");
        vm.post(1, 1526);
        assert_eq!(vm.front.served.settled(2), [NoMemory, Served], "{features:#x}");
    }
}

/// As QEMU does with more queues than the port, or with a guest whose features are not offered any more.
#[test]
fn a_front_end_that_leaves_after_it_learnt_the_number_of_queues_was_turned_down() {
    let mut front = FrontEnd::new(2);
    front.sync();
    front.send_u64(message::SET_PROTOCOL_FEATURES, PROTOCOL_MQ);
    front.ask_u64(message::GET_QUEUE_NUM);
    front.send(message::SET_OWNER, &[], &[]);
    let why = front.end();
    assert!(why.contains("more queues than the port (2)"), "{why}");
    // One that has begun is gone, and nothing else.
    let mut front = FrontEnd::new(2);
    front.sync();
    front.send_u64(message::SET_PROTOCOL_FEATURES, PROTOCOL_MQ);
    front.ask_u64(message::GET_QUEUE_NUM);
    front.send_state(message::SET_VRING_ENABLE, 0, 1);
    assert_eq!(front.end(), "the front-end is gone");
}
