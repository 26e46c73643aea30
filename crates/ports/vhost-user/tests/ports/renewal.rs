//! Rings that are served anew while a worker sleeps with the queues before.

use std::time::Duration;

use port::{Body, Outcome, Outcomes, WINDOW};
use shm::{PageSize, create_memfd};
use vhost_user::{MemoryBudget, ProcessBudget};

use crate::common::{FrontEnd, LINUX, RING_PACKED, SIZE, Vm, pass, plain, tcp};

const LEN: u64 = crate::common::LEN as u64;

#[test]
fn what_a_sleeper_does_with_the_queues_before_reaches_no_guest() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(features), Vm::boot(features));
        let (mut old_from, mut old_to) = (red.served(1), blue.served(1));
        blue.post(64, 1526);
        for n in 0..5 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        assert_eq!(pass(&mut old_from, &mut old_to).unwrap().1, [Outcome::Delivered; 5]);
        // Two frames are taken when the worker falls asleep.
        for n in 5..7 {
            red.send(&plain(&red), &tcp(n), &[12], false);
        }
        let mut received = port::Received::default();
        old_from.ingress.receive(&mut port::Budget::default(), &mut received).unwrap();
        assert_eq!(received.fresh, 2);
        [&red, &blue].iter().for_each(|vm| vm.front.renewal.ask());
        let (mut from, mut to) = (red.served(2), blue.served(2));
        red.send(&plain(&red), &tcp(7), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered; 3], "{features:#x}");
        // It wakes up: its frames are delivered and answered, to where nobody is.
        let outcomes: Outcomes = [Outcome::Delivered; WINDOW];
        let mut elsewhere = Vm::boot(features);
        elsewhere.post(8, 1526);
        let mut other = elsewhere.served(1);
        let _ = pass(&mut old_from, &mut other);
        old_from.ingress.finish(&outcomes);
        let mut no_frames = [];
        let regions = std::sync::Arc::default();
        let late = old_to.egress.deliver(Body::Regions(&regions), &mut no_frames, Duration::ZERO);
        assert!(late.is_err(), "its memory is gone");
        drop((old_from, old_to));
        for n in 0..8 {
            assert_eq!(blue.receive().unwrap().1, tcp(n), "{features:#x}");
        }
        assert!(blue.receive().is_none());
        assert_eq!(std::iter::from_fn(|| red.tx.take()).count(), 8);
        // The rings go on where the new queues are.
        red.send(&plain(&red), &tcp(8), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
        assert_eq!(blue.receive().unwrap().1, tcp(8), "{features:#x}");
    }
}

#[test]
fn a_renewal_is_within_the_budget_that_the_memory_fills() {
    let all = ProcessBudget::new(LEN + vhost_user::LOGS);
    let front = FrontEnd::within(MemoryBudget::new(LEN, all.clone()));
    let memory = create_memfd("vm", crate::common::LEN / 4096, PageSize::Small).unwrap();
    let vm = Vm::boot_sized(LINUX, SIZE, memory, front);
    let old = vm.served(1);
    for times in 2..5 {
        vm.front.renewal.ask();
        drop(vm.served(times));
    }
    drop(old);
    vm.front.renewal.ask();
    let _queue = vm.served(5);
    assert_eq!(all.held(), LEN, "those before count no more");
}
