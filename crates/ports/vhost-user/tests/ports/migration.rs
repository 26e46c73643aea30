//! The log of dirty pages: each page of the guest that the device wrote has its bit.

use std::fs::File;
use std::os::fd::AsFd;

use port::{Outcome, Queue};
use shm::PageSize;

use crate::common::{
    EVENT_IDX, GUEST, GUEST_CSUM, GUEST_TSO4, LEN, LINUX, LOG_ALL, RING_PACKED, RX_DATA, Vm,
    message, pass, plain, tcp, tso,
};

/// Guest addresses start above 4 GiB, and the log has a bit for each page from 0 on.
const LOG_LEN: u64 = (GUEST + LEN as u64) / 4096 / 8;

fn memfd(len: u64) -> File {
    let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file.into()
}

fn log_protocol(vm: &mut Vm) {
    let offered = vm.front.ask_u64(message::GET_PROTOCOL_FEATURES);
    assert_eq!(offered & 2, 2, "LOG_SHMFD");
    vm.front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
}

fn set_log(vm: &mut Vm, log: &File, len: u64) {
    let payload = [len, 0].map(u64::to_le_bytes).concat();
    vm.front.send(message::SET_LOG_BASE, &payload, &[log.as_fd()]);
    assert_eq!(vm.front.reply(), payload, "the front-end waits for this");
}

/// Begins to log the pages that the device of this queue writes. Its rings are then started for the `times`th time.
fn begin(vm: &mut Vm, queue: Queue, log: &File, times: usize) -> Queue {
    vm.front.served.put(vec![queue]);
    set_log(vm, log, LOG_LEN);
    vm.front.send_u64(message::SET_FEATURES, vm.features | LOG_ALL);
    // The rings may have been started between the two messages, without a log.
    vm.front.sync();
    vm.served(times)
}

fn snapshot(vm: &Vm) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    vm.memory.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// The pages that have a bit.
fn marked(log: &File) -> Vec<bool> {
    let mut bits = vec![0; usize::try_from(LOG_LEN).unwrap()];
    std::os::unix::fs::FileExt::read_exact_at(log, &mut bits, 0).unwrap();
    let first = usize::try_from(GUEST / 4096).unwrap();
    let bit = |page: usize| bits[page / 8] >> (page % 8) & 1 == 1;
    assert!(!(0..first).any(bit), "a page that the guest does not have");
    (0..LEN / 4096).map(|page| bit(first + page)).collect()
}

#[test]
fn every_page_that_the_device_writes_is_logged() {
    let without = LINUX & !(GUEST_CSUM | GUEST_TSO4);
    for features in [LINUX, LINUX | RING_PACKED, LINUX & !EVENT_IDX, without] {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, to) = (red.served(1), blue.served(1));
        // Migration begins under traffic.
        let log = memfd(LOG_LEN);
        log_protocol(&mut blue);
        let mut to = begin(&mut blue, to, &log, 2);
        for round in 0..3 {
            blue.post(100, 1526);
            let before = snapshot(&blue);
            red.send(&plain(&red), &tcp(6), &[12], false);
            red.send(&tso(&red, 1448), &tcp(20_000), &[12], false);
            let outcomes = pass(&mut from, &mut to).unwrap().1;
            assert_eq!(outcomes, [Outcome::Delivered; 2]);
            // What the device asks of the driver is written too.
            let _ = to.ingress.arm().unwrap();
            let after = snapshot(&blue);
            let marked = marked(&log);
            let mut changed = 0;
            for (page, (old, new)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
                if old != new {
                    assert!(marked[page], "{features:#x}: page {page} in round {round}");
                    changed += 1;
                }
            }
            assert!(changed > 5, "{changed}");
            let all = marked.iter().filter(|marked| **marked).count();
            assert!(all < 3 * changed + 40, "{all} pages are marked and {changed} changed");
            // The front-end clears what it has copied.
            std::os::unix::fs::FileExt::write_all_at(
                &log,
                &vec![0; usize::try_from(LOG_LEN).unwrap()],
                0,
            )
            .unwrap();
            while blue.receive().is_some() {}
            while red.tx.take().is_some() {}
        }
    }
}

#[test]
fn each_page_that_a_small_frame_touches_is_logged_and_no_other() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, to) = (red.served(1), blue.served(1));
        let log = memfd(LOG_LEN);
        log_protocol(&mut blue);
        let mut to = begin(&mut blue, to, &log, 2);
        // A frame has 72 bytes with its header. The second one ends with its page, and the third one crosses into the next.
        let starts = [0, 3 * 4096 - 72, 6 * 4096 - 30, 8 * 4096, 10 * 4096];
        blue.post_at(&starts.map(|start| (RX_DATA + start, 1526)));
        let frames = [6, 5, 4, 3].map(|n| [&tcp(6)[..59], &[n]].concat());
        for frame in &frames {
            red.send(&plain(&red), frame, &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered; 4]);
        for frame in frames {
            assert_eq!(blue.receive().unwrap().1, frame, "{features:#x}");
        }
        // The rings lie before the buffers.
        let pages = marked(&log).split_off(RX_DATA / 4096);
        let pages: Vec<_> = (0..).zip(pages).filter(|(_, is_marked)| *is_marked).collect();
        assert_eq!(pages, [0, 2, 5, 6, 8].map(|page| (page, true)), "{features:#x}");
    }
}

#[test]
fn the_log_moves_under_traffic_and_ends() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    log_protocol(&mut blue);
    blue.post(100, 1526);
    let mut send = |red: &mut Vm, to: &mut port::Queue| {
        red.send(&plain(red), &tcp(6), &[12], false);
        assert_eq!(pass(&mut from, to).unwrap().1, [Outcome::Delivered]);
        while red.tx.take().is_some() {}
    };
    let logs = [memfd(LOG_LEN), memfd(LOG_LEN + 4096)];
    for (n, log) in logs.iter().enumerate() {
        to = begin(&mut blue, to, log, 2 + n);
        send(&mut red, &mut to);
        assert!(marked(log).contains(&true));
    }
    let quiet = logs.each_ref().map(marked);
    blue.front.served.put(vec![to]);
    blue.front.send_u64(message::SET_FEATURES, LINUX);
    blue.front.sync();
    to = blue.served(4);
    send(&mut red, &mut to);
    assert!(logs.each_ref().map(marked) == quiet, "logged after the end");
    assert_eq!(std::iter::from_fn(|| blue.receive()).count(), 3);
}

#[test]
fn a_log_that_cannot_be_ends_the_session() {
    let null = File::open("/dev/null").unwrap();
    let sealed: File = shm::create_memfd("log", 1, PageSize::Small).unwrap().into();
    for (file, len, offset, said) in [
        (&null, 4096, 0, "no memfd"),
        (&sealed, 8192, 0, "a file of 4096 bytes"),
        (&sealed, 4096, 8, "a file of 4096 bytes"),
        (&sealed, 4088, u64::MAX - 7, ""),
        (&sealed, 0, 0, ""),
    ] {
        let mut vm = Vm::boot(LINUX);
        log_protocol(&mut vm);
        let payload = [len, offset].map(u64::to_le_bytes).concat();
        vm.front.send(message::SET_LOG_BASE, &payload, &[file.as_fd()]);
        let why = vm.front.ended();
        assert!(!why.is_empty() && why.contains(said), "{why}");
    }
    // One that ends before the memory does.
    let mut vm = Vm::boot(LINUX);
    drop(vm.served(1));
    log_protocol(&mut vm);
    set_log(&mut vm, &memfd(LOG_LEN - 8), LOG_LEN - 8);
    vm.front.send_u64(message::SET_FEATURES, LINUX | LOG_ALL);
    let why = vm.front.ended();
    assert!(why.contains("the log of dirty pages ends before"), "{why}");
}

#[test]
fn a_log_that_is_cut_short_costs_its_owner_the_log_alone() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, to) = (red.served(1), blue.served(1));
    let log = memfd(LOG_LEN);
    log_protocol(&mut blue);
    let mut to = begin(&mut blue, to, &log, 2);
    rustix::fs::ftruncate(&log, 0).unwrap();
    blue.post(4, 1526);
    for _ in 0..4 {
        red.send(&plain(&red), &tcp(6), &[12], false);
        // Writing to the log raises SIGBUS, which ends nothing.
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    }
    assert_eq!(std::iter::from_fn(|| blue.receive()).count(), 4);
    assert_eq!(log.metadata().unwrap().len(), 0);
}
