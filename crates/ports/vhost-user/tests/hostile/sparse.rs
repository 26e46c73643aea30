//! Memory that is nothing but length: a file of any size costs its owner nothing, and whoever maps it addresses and page tables.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use shm::PageSize;
use vhost_user::{LOGS, MemoryBudget, ProcessBudget};

use crate::bed::Bed;
use crate::common::{FrontEnd, GUEST, LEN, LINUX, LOG_ALL, USER, Vm, message, pass, plain, tcp};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn sparse(len: u64) -> File {
    let file = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file.into()
}

fn negotiate(front: &mut FrontEnd) {
    front.send_u64(message::SET_FEATURES, LINUX);
    let offered = front.ask_u64(message::GET_PROTOCOL_FEATURES);
    front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
}

/// A region of the guest's memory, as in `ADD_MEM_REG`.
fn region(at: u64, len: u64, offset: u64) -> Vec<u8> {
    [0, at, len, USER + at, offset].map(u64::to_le_bytes).concat()
}

/// Whether the session goes on after all that it was sent.
fn is_served(front: &FrontEnd) -> bool {
    // The log's message has an answer too.
    front.send(message::GET_QUEUE_NUM, &[], &[]);
    let mut header = [0; 12];
    while std::io::Read::read_exact(&mut &front.socket, &mut header).is_ok() {
        let mut payload = vec![0; header[8].into()];
        std::io::Read::read_exact(&mut &front.socket, &mut payload).unwrap();
        if header[0] == message::GET_QUEUE_NUM.to_le_bytes()[0] {
            return true;
        }
    }
    false
}

/// Each way to have memory mapped, for a port whose guest has 1 GiB, and a file of 1 TiB.
#[test]
fn more_memory_than_the_ports_is_refused_before_it_is_mapped() {
    let all = ProcessBudget::new(u64::MAX);
    let file = sparse(TIB);
    let fd = file.as_fd();
    type Send<'a> = &'a dyn Fn(&FrontEnd, BorrowedFd<'_>);
    let ways: [(&str, Send<'_>); 6] = [
        ("one range", &|front, fd| front.memory(&[[0, TIB, USER, 0]], &[fd])),
        ("ranges of one file", &|front, fd| {
            let part = |n: u64| [n * GIB, GIB, USER + n * GIB, n * GIB];
            front.memory(&[part(0), part(1)], &[fd; 2]);
        }),
        ("the same range again and again", &|front, fd| {
            for n in 0..64 {
                front.send(message::ADD_MEM_REG, &region(n * GIB, GIB / 8, 0), &[fd]);
            }
        }),
        ("a range of a file behind others", &|front, fd| {
            front.memory(&[[0, GIB, USER, 0]], &[fd]);
            front.send(message::ADD_MEM_REG, &region(GIB, GIB, GIB), &[fd]);
        }),
        ("the log of a migration", &|front, fd| {
            front.memory(&[[0, GIB, USER, 0]], &[fd]);
            front.send(message::SET_LOG_BASE, &[TIB, 0].map(u64::to_le_bytes).concat(), &[fd]);
        }),
        ("the log of descriptors in flight", &|front, fd| {
            front.memory(&[[0, GIB, USER, 0]], &[fd]);
            let mut payload = [TIB, 0].map(u64::to_le_bytes).concat();
            payload.extend([u16::MAX, 32_768].map(u16::to_le_bytes).concat());
            payload.extend([0; 4]);
            front.send(message::SET_INFLIGHT_FD, &payload, &[fd]);
        }),
    ];
    for (name, send) in ways {
        let budget = MemoryBudget::new(GIB, all.clone());
        let mut front = FrontEnd::within(budget.clone());
        negotiate(&mut front);
        send(&front, fd);
        assert!(!is_served(&front), "{name}: it has {} bytes", budget.held());
        let why = front.ended();
        assert!(why.contains("more than the port's memory_mib"), "{name}: {why}");
        assert_eq!((budget.held(), all.held()), (0, 0), "{name}: it comes back with the session");
    }
}

/// Front-ends that take all the addresses that there are for them, beside two honest machines and one that comes later.
#[test]
fn front_ends_that_fill_their_part_of_the_address_space_are_refused_and_nobody_else_is() {
    let mut bed = Bed::new();
    let all = ProcessBudget::new(16 * TIB);
    let late = MemoryBudget::new(LEN as u64, all.clone());
    let file = sparse(TIB);
    let (mut present, mut refused) = (Vec::new(), 0);
    for _ in 0..20 {
        let mut front = FrontEnd::within(MemoryBudget::new(TIB, all.clone()));
        negotiate(&mut front);
        front.memory(&[[0, TIB - GIB, USER, 0]], &[file.as_fd()]);
        if is_served(&front) {
            present.push(front);
            continue;
        }
        refused += 1;
        let why = front.ended();
        assert!(why.contains("their part of this process's address space"), "{why}");
    }
    assert_eq!((present.len(), refused), (16, 4));
    bed.carries();
    // Each has left a bit of the sum, which is enough for a machine that asks for what it has.
    let memory = || shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap();
    let (mut red, mut blue) =
        (Vm::boot_with(LINUX, memory(), FrontEnd::within(late.clone())), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(4, 1526);
    red.send(&plain(&red), &tcp(6), &[12], false);
    pass(&mut from, &mut to).unwrap();
    assert_eq!(blue.receive().unwrap().1, tcp(6));
    assert_eq!(late.held(), LEN as u64);
    drop(from);
    red.front.end();
    present.into_iter().for_each(|front| drop(front.end()));
    assert_eq!(all.held(), 0);
    assert!(bed.is_whole());
}

/// What QEMU does with exactly the memory of the port: the table again for each change, both logs, which it makes anew, and all of it once
/// more in the next session.
#[test]
fn a_machine_with_all_of_its_ports_memory_lacks_nothing() {
    let all = ProcessBudget::new(LEN as u64 + LOGS);
    let budget = MemoryBudget::new(LEN as u64, all);
    let memory = shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap();
    let mut vm = Vm::boot_with(LINUX, memory, FrontEnd::within(budget.clone()));
    negotiate(&mut vm.front);
    let log = sparse(LOGS / 2 + (1 << 20));
    for _ in 0..3 {
        vm.send_memory();
        let len = LOGS / 2 + (1 << 20);
        let payload = [len, 0].map(u64::to_le_bytes).concat();
        // Two of them do not fit together.
        vm.front.send(message::SET_LOG_BASE, &payload, &[log.as_fd()]);
        assert_eq!(vm.front.reply(), payload);
        vm.front.send_u64(message::SET_FEATURES, LINUX | LOG_ALL);
        vm.front.sync();
        vm.front.send_u64(message::SET_FEATURES, LINUX);
        let mut wanted = [0u64, 0].map(u64::to_le_bytes).concat();
        wanted.extend([2u16, 256].map(u16::to_le_bytes).concat());
        wanted.extend([0; 4]);
        vm.front.send(message::GET_INFLIGHT_FD, &wanted, &[]);
        let (inflight, files) = vm.front.reply_with_descriptors();
        vm.front.send(message::SET_INFLIGHT_FD, &inflight, &[files[0].as_fd()]);
        // The memory goes and comes.
        let whole = [0, GUEST, LEN as u64, USER, 0].map(u64::to_le_bytes).concat();
        vm.front.send(message::REM_MEM_REG, &whole, &[]);
        vm.front.send(message::ADD_MEM_REG, &whole, &[vm.file.as_fd()]);
        vm.front.sync();
        assert!(budget.held() > LEN as u64 + LOGS / 2 && budget.held() <= budget.max());
    }
    assert_eq!(vm.front.end(), "the front-end is gone");
    assert_eq!(budget.held(), 0);
    let file = vm.file.as_fd();
    let again = FrontEnd::within(budget.clone());
    again.memory(&[[GUEST, LEN as u64, USER, 0]], &[file]);
    assert_eq!(again.end(), "the front-end is gone");
}

/// With few addresses to spare in the process, what is not mapped is what is not named: 64 machines, each at the end of a file of 64 TiB.
#[test]
fn only_what_is_named_of_a_file_is_mapped() {
    let file = sparse(64 * TIB);
    let fronts: Vec<_> = (0..64)
        .map(|_| {
            let budget = MemoryBudget::new(1 << 20, ProcessBudget::new(u64::MAX));
            let mut front = FrontEnd::within(budget.clone());
            negotiate(&mut front);
            front.memory(&[[0, 1 << 20, USER, 63 * TIB]], &[file.as_fd()]);
            front.sync();
            assert_eq!(budget.held(), 1 << 20);
            front
        })
        .collect();
    for front in fronts {
        assert_eq!(front.end(), "the front-end is gone");
    }
}
