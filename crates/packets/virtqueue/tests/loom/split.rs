//! Split rings with event indices: the functions that the device calls.

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicU16, Ordering, fence};
use loom::thread;
use virtqueue::{EventWords, arm_split, must_notify, wants_split};

struct Words {
    available: AtomicU16,
    used: AtomicU16,
    used_event: AtomicU16,
    available_event: AtomicU16,
    barriers: bool,
}

impl EventWords for Words {
    fn available(&self) -> u16 {
        self.available.load(Ordering::Acquire)
    }
    fn set_used(&self, index: u16) {
        self.used.store(index, Ordering::Release);
    }
    fn used_event(&self) -> u16 {
        self.used_event.load(Ordering::Acquire)
    }
    fn set_available_event(&self, index: u16) {
        self.available_event.store(index, Ordering::Release);
    }
    fn full_barrier(&self) {
        if self.barriers {
            fence(Ordering::SeqCst);
        }
    }
}

struct Bells {
    device: Notify,
    driver: Notify,
}

/// Returns `total` chains as they come.
fn device(words: &Words, bells: &Bells, total: u16, looks_again: bool) {
    let (mut taken, mut used) = (0, 0);
    while used < total {
        let available = words.available();
        taken = if available == taken { taken } else { available };
        if taken != used {
            // As `Queue::show` and `Queue::must_notify`, whose `Shown` keeps them in this order.
            words.set_used(taken);
            let wanted = wants_split(words, used, taken);
            used = taken;
            if wanted {
                bells.driver.notify();
            }
        }
        if used < total {
            let more = arm_split(words, taken) != taken;
            if !(more && looks_again) {
                bells.device.wait();
            }
        }
    }
}

/// Offers `total` chains, one at a time, and waits for each.
fn driver(words: &Words, bells: &Bells, total: u16) {
    for index in 0..total {
        words.available.store(index + 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if must_notify(index, index + 1, words.available_event.load(Ordering::Acquire)) {
            bells.device.notify();
        }
        words.used_event.store(index, Ordering::Release);
        fence(Ordering::SeqCst);
        while words.used.load(Ordering::Acquire) == index {
            bells.driver.wait();
        }
    }
}

fn check(total: u16, barriers: bool, looks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let word = || AtomicU16::new(0);
        let words = Words {
            available: word(),
            used: word(),
            used_event: word(),
            available_event: word(),
            barriers,
        };
        let both = Arc::new((words, Bells { device: Notify::new(), driver: Notify::new() }));
        let theirs = both.clone();
        let other = thread::spawn(move || device(&theirs.0, &theirs.1, total, looks_again));
        driver(&both.0, &both.1, total);
        other.join().unwrap();
    });
}

#[test]
fn no_notification_is_lost() {
    check(2, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_notification_is_lost() {
    check(2, false, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_second_look_a_notification_is_lost() {
    check(2, true, false);
}
