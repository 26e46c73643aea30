//! The flag of a thread that sleeps while there is nothing to see, under loom: every interleaving of the thread and two writers (up to a
//! bound on preemptions), and every reordering that the memory model allows, of the production code.
//!
//! Shown: the thread sees every write (loom reports the deadlock when it sleeps for ever while there is one that it has not
//! seen), and every worker that stays in its round, as one that sleeps in the memory of a guest does. The control tests remove the barrier or the final
//! check, or wake the thread before the round is noted, and must fail.

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use poller::{AwakeFlag, doze_until, must_wake};

/// What a control test leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Omitted {
    Nothing,
    Barrier,
    FinalCheck,
    /// Not left out, but done in the wrong order: a round is noted before the thread is woken.
    Order,
}

struct Shared {
    is_awake: AtomicBool,
    writes: [AtomicU64; 2],
    bell: Notify,
    omitted: Omitted,
}

impl AwakeFlag for Shared {
    fn is_awake(&self) -> bool {
        self.is_awake.load(Ordering::Acquire)
    }
    fn set_awake(&self) -> bool {
        self.is_awake.swap(true, Ordering::AcqRel)
    }
    fn set_dozing(&self) {
        self.is_awake.swap(false, Ordering::AcqRel);
    }
    fn full_barrier(&self) {
        if self.omitted != Omitted::Barrier {
            fence(Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn write(&self, writer: usize) {
        self.writes[writer].store(1, Ordering::Release);
        if must_wake(self) {
            self.bell.notify();
        }
    }

    fn count(&self) -> u64 {
        self.writes.iter().map(|writes| writes.load(Ordering::Acquire)).sum()
    }

    /// A worker begins a round, as `datapath`'s do: nothing but the barrier of [`must_wake`] orders it.
    fn begin_round(&self, worker: usize) {
        let note = || self.writes[worker].store(1, Ordering::Relaxed);
        if self.omitted != Omitted::Order {
            note();
        }
        if must_wake(self) {
            self.bell.notify();
        }
        if self.omitted == Omitted::Order {
            note();
        }
    }

    fn rest(&self, worker: usize) {
        self.writes[worker].store(0, Ordering::Relaxed);
    }

    /// Checks until it has seen the first worker in its round, as `datapath::sleepers` does.
    fn watch_rounds(&self) {
        let is_in_round = |worker: usize| self.writes[worker].load(Ordering::Relaxed) != 0;
        while !is_in_round(0) {
            let sees = || self.omitted != Omitted::FinalCheck && (is_in_round(0) || is_in_round(1));
            doze_until(self, sees, || self.bell.wait());
            // It checks every few milliseconds while one works.
            thread::yield_now();
        }
    }

    /// Checks until it has seen both writes.
    fn watch(&self) {
        let mut seen = 0;
        while seen < 2 {
            let before = seen;
            seen = self.count();
            if seen == before {
                let sees = || self.omitted != Omitted::FinalCheck && self.count() != seen;
                doze_until(self, sees, || self.bell.wait());
            }
        }
    }
}

fn check(omitted: Omitted) {
    check_with(omitted, Shared::write, Shared::watch);
}

/// One worker stays in its round, the other rests again.
fn check_rounds(omitted: Omitted) {
    let work = |shared: &Shared, worker| {
        shared.begin_round(worker);
        if worker == 1 {
            shared.rest(worker);
        }
    };
    check_with(omitted, work, Shared::watch_rounds);
}

fn check_with(omitted: Omitted, write: fn(&Shared, usize), watch: fn(&Shared)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new(Shared {
            is_awake: AtomicBool::new(true),
            writes: [AtomicU64::new(0), AtomicU64::new(0)],
            bell: Notify::new(),
            omitted,
        });
        let writers = [0, 1].map(|writer| {
            let shared = shared.clone();
            thread::spawn(move || write(&shared, writer))
        });
        watch(&shared);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn no_write_is_missed() {
    check(Omitted::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_write_is_missed() {
    check(Omitted::Barrier);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_final_check_a_write_is_missed() {
    check(Omitted::FinalCheck);
}

#[test]
fn a_worker_that_stays_in_its_round_is_seen() {
    check_rounds(Omitted::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_round_is_missed() {
    check_rounds(Omitted::Barrier);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_final_check_a_round_is_missed() {
    check_rounds(Omitted::FinalCheck);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_round_that_is_noted_after_the_wake_up_is_missed() {
    check_rounds(Omitted::Order);
}
