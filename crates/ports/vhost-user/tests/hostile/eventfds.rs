//! Descriptors for notifications by which a front-end tries to block the worker that notifies it, and its neighbours with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::bed::{Bed, block, unblock, wait};
use crate::common::{LINUX, RING_PACKED, Vm, message, new_eventfd};

/// The third machine, which wants to be notified of its next frame by an eventfd that blocks.
fn blocking(bed: &mut Bed, features: u64) -> Vm {
    let mut green = bed.green(features);
    green.post(32, 1526);
    green.rx.arm();
    block(&green.calls[0]);
    green
}

#[test]
fn a_front_end_that_fills_its_eventfd_frees_the_worker_and_loses_its_session() {
    let bed = &mut Bed::new();
    for features in [LINUX, LINUX | RING_PACKED] {
        let green = blocking(bed, features);
        bed.send_to_green(6);
        // Without a watchdog the worker never comes back, and the neighbours' frames are late.
        bed.carries();
        let how = green.front.ended_how();
        assert!(how.is_hostile, "{}", how.why);
        assert_eq!(how.why, "the front-end filled an eventfd, which blocks whoever writes to it");
        assert!(bed.is_whole());
    }
}

/// Ends a loop, after a panic too.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The more of the time a worker is blocked, the sooner a check finds it so: after two checks' time of it on average.
#[test]
fn a_front_end_that_blocks_the_worker_for_moments_again_and_again_loses_its_session() {
    /// Two checks are hardly ever as close.
    const MOMENT: Duration = Duration::from_millis(4);
    /// In each of them a neighbour's frames wait for the worker.
    const ROUNDS: usize = 250;
    let mut bed = Bed::new();
    let mut green = bed.green(LINUX);
    let call = green.calls[1].try_clone().unwrap();
    let (session, is_over) = (green.front.take_session(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                block(&call);
                thread::sleep(MOMENT);
                unblock(&call);
                thread::sleep(MOMENT / 8);
            }
        });
        for _ in 0..ROUNDS {
            if session.is_finished() {
                break;
            }
            Bed::green_sends(&mut green);
            bed.carries();
        }
    });
    assert!(session.is_finished(), "the neighbours' frames wait for the front-end, on and on");
    assert!(session.join().unwrap().is_hostile);
    assert!(bed.is_whole());
}

#[test]
fn an_eventfd_that_nobody_reads_is_a_guest_that_sleeps() {
    let mut bed = Bed::new();
    let mut green = bed.green(LINUX);
    green.post(32, 1526);
    rustix::io::write(&green.calls[0], &(1u64 << 40).to_ne_bytes()).unwrap();
    for _ in 0..4 {
        green.rx.arm();
        bed.send_to_green(6);
        bed.carries();
        wait("the frame", || green.receive().is_some());
        thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(green.front.end(), "the front-end is gone");
    assert!(bed.is_whole());
}

#[test]
fn a_front_end_that_exchanges_the_eventfd_under_a_blocked_write_frees_the_worker_too() {
    let mut bed = Bed::new();
    let green = blocking(&mut bed, LINUX);
    bed.send_to_green(6);
    green.front.doorbell(message::SET_VRING_CALL, 0, new_eventfd());
    bed.carries();
    drop(green.front.end());
    assert!(bed.is_whole());
}
