//! Messages without end: what a front-end may cost the daemon has a pace. The tests assert no time: more of it passes on a slow machine, and
//! more may happen in it.

use std::time::Instant;

use crate::common::{FrontEnd, LINUX, Vm, message};

/// As in SPECIFICATION.md.
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
