//! The flag of a thread that sleeps while there is nothing to see, under loom: every interleaving of the thread and two writers (up to a
//! bound on preemptions), and every reordering that the memory model allows, of the production code.
//!
//! Shown: the thread sees every write (loom reports the deadlock when it sleeps for ever while there is one that it has not
//! seen). The control tests remove the barrier or the last look and must fail.
//!
//! Run with `make loom`.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use poller::{AwakeFlag, doze, must_wake};

/// What a control test leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Omitted {
    Nothing,
    Barrier,
    LastLook,
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

    fn look(&self) -> u64 {
        self.writes.iter().map(|writes| writes.load(Ordering::Acquire)).sum()
    }

    /// Looks until it has seen both writes.
    fn watch(&self) {
        let mut seen = 0;
        while seen < 2 {
            while !self.is_awake() {
                self.bell.wait();
            }
            let before = seen;
            seen = self.look();
            if seen == before {
                doze(self);
                if self.omitted != Omitted::LastLook && self.look() != seen {
                    self.set_awake();
                }
            }
        }
    }
}

fn check(omitted: Omitted) {
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
            thread::spawn(move || shared.write(writer))
        });
        shared.watch();
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
fn without_the_last_look_a_write_is_missed() {
    check(Omitted::LastLook);
}
