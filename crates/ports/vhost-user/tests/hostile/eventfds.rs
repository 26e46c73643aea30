//! Descriptors for notifications by which a front-end tries to block the worker that notifies it.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::common::{LINUX, RING_PACKED, Vm, message, new_eventfd, pass, plain, tcp};

/// Makes the next write to an eventfd wait for ever.
fn block(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
    rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let flags = fcntl_getfl(fd).unwrap();
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
}

#[test]
fn a_front_end_that_fills_its_eventfd_frees_the_worker_and_loses_its_session() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(features), Vm::boot(features));
        let (from, to) = (red.served(1), blue.served(1));
        blue.post(32, 1526);
        blue.rx.arm();
        block(&blue.calls[0]);
        red.send(&plain(&red), &tcp(6), &[12], false);
        let (done, is_done) = mpsc::channel();
        let worker = std::thread::spawn(move || {
            let (mut from, mut to) = (from, to);
            let outcome = pass(&mut from, &mut to).map(|(_, outcomes)| outcomes);
            done.send(outcome.unwrap().len()).unwrap();
        });
        // Without a watchdog the worker never comes back.
        assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(1), "the worker is blocked");
        worker.join().unwrap();
        let how = blue.front.ended_how();
        assert!(how.is_hostile, "{}", how.why);
        assert_eq!(how.why, "the front-end blocked a worker by an eventfd");
    }
}

#[test]
fn a_full_eventfd_that_does_not_block_is_a_guest_that_sleeps() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(32, 1526);
    rustix::io::write(&blue.calls[0], &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..4 {
        blue.rx.arm();
        red.send(&plain(&red), &tcp(6), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1.len(), 1);
        std::thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(blue.front.end(), "the front-end is gone");
}

#[test]
fn a_front_end_that_exchanges_the_eventfd_under_a_blocked_write_frees_the_worker_too() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (from, to) = (red.served(1), blue.served(1));
    blue.post(32, 1526);
    blue.rx.arm();
    block(&blue.calls[0]);
    red.send(&plain(&red), &tcp(6), &[12], false);
    let (done, is_done) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let (mut from, mut to) = (from, to);
        done.send(pass(&mut from, &mut to).map(|(_, outcomes)| outcomes.len()).unwrap()).unwrap();
    });
    blue.front.doorbell(message::SET_VRING_CALL, 0, new_eventfd());
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(1), "the worker is blocked");
    worker.join().unwrap();
    drop(blue.front.end());
}
