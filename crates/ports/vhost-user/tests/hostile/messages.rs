//! Messages and memory of a front-end that means harm, beside two machines on the same worker.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lab::SlowDisk;
use vhost_user::Paces;

use crate::bed::{Bed, wait};
use crate::common::{
    FrontEnd, GUEST, LEN, LINUX, RING_PACKED, USER, Vm, message, new_eventfd, plain, ring_at, tcp,
};

const WHOLE: [u64; 4] = [GUEST, LEN as u64, USER, 0];

/// A file whose owner can cut it short.
fn unsealed(len: u64) -> File {
    let file = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file.into()
}

fn negotiate(front: &mut FrontEnd) {
    let offered = front.ask_u64(message::GET_PROTOCOL_FEATURES);
    front.send_u64(message::SET_PROTOCOL_FEATURES, offered);
}

/// The session of a running machine ends for this reason.
fn ends(bed: &mut Bed, send: impl FnOnce(&mut Vm)) -> String {
    let mut green = bed.green(LINUX);
    negotiate(&mut green.front);
    send(&mut green);
    bed.carries();
    let why = green.front.ended();
    assert!(bed.is_whole());
    why
}

#[test]
fn regions_that_overlap() {
    let bed = &mut Bed::new();
    let twice = [GUEST + 4096, LEN as u64, USER + (1 << 40), 0];
    let why = ends(bed, |vm| vm.front.memory(&[WHOLE, twice], &[vm.file.as_fd(), vm.file.as_fd()]));
    assert!(why.contains("overlap"), "{why}");
    let why = ends(bed, |vm| {
        let region = [0, twice[0], twice[1], twice[2], 0].map(u64::to_le_bytes).concat();
        vm.front.send(message::ADD_MEM_REG, &region, &[vm.file.as_fd()]);
    });
    assert!(why.contains("overlap"), "{why}");
}

#[test]
fn regions_that_shrink_or_go_under_traffic() {
    let bed = &mut Bed::new();
    // The rings are in what goes.
    let why = ends(bed, |vm| {
        vm.front.memory(&[[GUEST, 4096, USER, 0]], &[vm.file.as_fd()]);
    });
    assert!(why.starts_with("ring 0"), "{why}");
    let mut green = bed.green(LINUX);
    negotiate(&mut green.front);
    let region = [0, GUEST, LEN as u64, USER, 0].map(u64::to_le_bytes).concat();
    green.front.send(message::REM_MEM_REG, &region, &[]);
    green.kick();
    assert!(bed.is_whole());
    green.front.end();
    let why = ends(bed, |vm| {
        let region = [0, GUEST, LEN as u64 - 4096, USER, 0].map(u64::to_le_bytes).concat();
        vm.front.send(message::REM_MEM_REG, &region, &[]);
    });
    assert!(why.contains("no memory at"), "{why}");
}

#[test]
fn a_table_of_regions_that_changes_all_the_time() {
    let mut bed = Bed::new();
    let mut green = bed.green(LINUX);
    for _ in 0..100 {
        green.send_memory();
        if green.tx.take().is_none() {
            green.send(&plain(&green), &tcp(6)[..20], &[12], false);
        }
        green.kick();
    }
    green.front.sync();
    assert!(bed.is_whole());
}

#[test]
fn descriptors_that_are_no_memory() {
    let bed = &mut Bed::new();
    let null = File::open("/dev/null").unwrap();
    let eventfd = new_eventfd();
    for fd in [null.as_fd(), eventfd.as_fd()] {
        let why = ends(bed, |vm| vm.front.memory(&[WHOLE], &[fd]));
        assert!(why.contains("no memfd"), "{why}");
    }
    let why = ends(bed, |vm| vm.front.doorbell(message::SET_VRING_KICK, 0, &null));
    assert!(why.contains("no eventfd"), "{why}");
}

/// The kernel flushes a file of FUSE whenever a descriptor of it is closed, and waits for the server's answer. A thread that waits so cannot be killed.
#[test]
fn descriptors_of_files_that_take_for_ever_to_close() {
    let mut bed = Bed::new();
    // Dropped before the bed, which waits for the sessions' threads.
    let Some(disk) = lab::needed(SlowDisk::new()) else { return };
    let file = File::options().read(true).write(true).open(disk.path()).unwrap();
    // Nor does the test close it.
    let file = ManuallyDrop::new(file);
    disk.hold();
    let memory = |vm: &Vm| vm.front.memory(&[WHOLE], &[file.as_fd()]);
    let kick = |vm: &Vm| vm.front.doorbell(message::SET_VRING_KICK, 0, &*file);
    let surplus = |vm: &Vm| vm.front.send(message::GET_FEATURES, &[], &[file.as_fd()]);
    // Whoever writes to a pipe may have its lock for ever.
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let piped = |vm: &Vm| vm.front.memory(&[WHOLE], &[pipe.as_fd()]);
    for send in [&memory as &dyn Fn(&Vm), &kick, &surplus, &piped] {
        let mut green = bed.green(LINUX);
        negotiate(&mut green.front);
        send(&green);
        let session = green.front.take_session();
        bed.carries();
        wait("the end of the session", || session.is_finished());
        let how = session.join().unwrap();
        assert!(how.is_hostile && how.why.contains("take for ever"), "{}", how.why);
        assert_eq!(disk.waiting(), 0, "somebody closes it");
        assert!(bed.is_whole());
    }
}

#[test]
fn files_that_are_truncated_under_traffic() {
    let mut bed = Bed::new();
    // Of a packed ring, nothing but the loss itself shows it: a ring of zeroes is empty.
    for features in [LINUX, LINUX | RING_PACKED] {
        let file = unsealed(LEN as u64);
        let mut green = bed.green_in(features, file.try_clone().unwrap().into());
        green.send(&plain(&green), &tcp(1000)[..20], &[12], false);
        green.kick();
        wait("the frame's buffer", || green.tx.take().is_some());
        // The test's own mapping must not be touched any more.
        rustix::fs::ftruncate(&file, 4096).unwrap();
        green.kick();
        let why = bed.failure();
        assert!(why.contains("the guest's memory is gone"), "{why}");
        green.front.end();
        std::mem::forget(green.memory);
    }
}

#[test]
fn messages_out_of_order() {
    // Rings before memory, memory before features, enabled before described, stopped before started.
    let bed = &mut Bed::new();
    let file = unsealed(LEN as u64);
    for order in 0..24u32 {
        let front = bed.front();
        for step in [order % 4, order / 4 % 3, 3 - order % 4, order % 3] {
            match step {
                0 => front.memory(&[WHOLE], &[file.as_fd()]),
                1 => front.ring(order % 2, 256, ring_at(USER, 0), order),
                2 => front.send_state(message::SET_VRING_ENABLE, order % 2, 1),
                _ => front.send_u64(message::SET_FEATURES, LINUX),
            }
        }
        front.send_state(message::GET_VRING_BASE, 1, 0);
        front.end();
    }
    assert!(bed.is_whole());
}

#[test]
fn messages_that_are_oversized() {
    let bed = &mut Bed::new();
    for size in [4097u32, 65_536, u32::MAX] {
        let why = ends(bed, |vm| {
            vm.front.raw(&[message::SET_FEATURES, 1, size].map(u32::to_le_bytes).concat(), &[]);
        });
        assert_eq!(why, format!("a message of {size} bytes"));
    }
    let file = new_eventfd();
    let why = ends(bed, |vm| {
        let fds = [file.as_fd(); 32];
        vm.front.raw(&[message::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat(), &fds);
        vm.front.raw(&[0; 4], &fds);
    });
    assert_eq!(why, "a message with more than 32 descriptors");
}

#[test]
fn messages_in_parts_that_stop() {
    let mut bed = Bed::new();
    let front = bed.front();
    front.raw(&[message::SET_FEATURES, 1, 8].map(u32::to_le_bytes).concat()[..7], &[]);
    // It occupies nobody but its own session, and that for a while only.
    assert!(bed.is_whole());
    assert_eq!(front.ended(), "a message that was not whole after 2 s");
}

#[test]
fn messages_after_the_close() {
    let mut bed = Bed::new();
    for _ in 0..50 {
        let front = bed.front();
        front.send_u64(message::SET_FEATURES, LINUX);
        let _ = front.socket.shutdown(std::net::Shutdown::Read);
        // Replies that nobody can have.
        for _ in 0..10 {
            front.send(message::GET_FEATURES, &[], &[]);
        }
        front.end();
    }
    assert!(bed.is_whole());
}

#[test]
fn thousands_of_connections() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut bed = Bed::new();
    let before = descriptors();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connections = scope.spawn(|| {
            for _ in 0..20 {
                let fronts = [(); 100].map(|()| FrontEnd::new(1));
                fronts[..50].iter().for_each(|front| front.send_u64(message::SET_FEATURES, LINUX));
                fronts.into_iter().for_each(|front| drop(front.end()));
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) && !connections.is_finished() {
            bed.carries();
        }
    });
    // Other tests run beside this one.
    assert!(descriptors() < before + 1000);
}

// What a front-end may cost the daemon has a pace, as in SPECIFICATION.md. The tests assert no time: more of it passes on a slow machine, and
// more may happen in it.
const MESSAGES: u32 = 8192;
const MESSAGES_PER_SECOND: f64 = 1000.0;
const STARTS: u32 = 128;
const STARTS_PER_SECOND: f64 = 10.0;

#[test]
fn messages_without_end_come_at_a_pace() {
    let mut front = FrontEnd::new(1);
    let start = Instant::now();
    for _ in 0..MESSAGES + 500 {
        front.sync();
    }
    let earned = start.elapsed().as_secs_f64() * MESSAGES_PER_SECOND;
    assert!(earned >= 499.0, "500 messages beyond the burst in the time of {earned}");
    assert_eq!(front.end(), "the front-end is gone");
}

#[test]
fn sessions_of_a_port_have_one_pace_of_messages() {
    let paces = Paces::new();
    let start = Instant::now();
    for count in [MESSAGES, 2000] {
        let mut front = FrontEnd::at_pace(&paces);
        (0..count).for_each(|_| front.sync());
        assert_eq!(front.end(), "the front-end is gone");
    }
    let earned = start.elapsed().as_secs_f64() * MESSAGES_PER_SECOND;
    assert!(earned >= 1999.0, "2000 messages beyond the burst in the time of {earned}");
}

#[test]
fn descriptors_count_as_messages() {
    let vm = Vm::boot(LINUX);
    let mut front = vm.front;
    let start = Instant::now();
    // An eventfd in each.
    for _ in 0..MESSAGES / 3 + 150 {
        front.doorbell(message::SET_VRING_CALL, 0, &vm.calls[0]);
        front.sync();
    }
    // Three for each turn of the loop.
    let beyond = f64::from(3 * (MESSAGES / 3 + 150) - MESSAGES - 1);
    let earned = start.elapsed().as_secs_f64() * MESSAGES_PER_SECOND;
    assert!(earned >= beyond, "{beyond} messages beyond the burst in the time of {earned}");
    assert_eq!(front.end(), "the front-end is gone");
}

#[test]
fn rings_that_start_and_stop_without_end_do_so_at_a_pace() {
    let vm = Vm::boot(LINUX);
    let front = vm.front;
    let start = Instant::now();
    let times = STARTS + 10;
    drop(front.served.started(1));
    for time in 2..=times {
        for state in [0, 1] {
            front.send_state(message::SET_VRING_ENABLE, 0, state);
        }
        drop(front.served.started(time as usize));
    }
    let earned = start.elapsed().as_secs_f64() * STARTS_PER_SECOND;
    assert!(earned >= 9.0, "10 starts beyond the burst in the time of {earned}");
    assert_eq!(front.end(), "the front-end is gone");
}

#[test]
fn sessions_of_a_port_have_one_pace_of_starts() {
    let paces = Paces::new();
    let start = Instant::now();
    for _ in 0..STARTS + 10 {
        let memory = unsealed(LEN as u64).into();
        let front = Vm::boot_with(LINUX, memory, FrontEnd::at_pace(&paces)).front;
        drop(front.served.started(1));
        assert_eq!(front.end(), "the front-end is gone");
    }
    let earned = start.elapsed().as_secs_f64() * STARTS_PER_SECOND;
    assert!(earned >= 9.0, "10 starts beyond the burst in the time of {earned}");
}
