//! The ring algorithm under loom: every interleaving of the two ends (up to a bound on
//! preemptions), and every reordering that the memory model allows, of the production code.
//!
//! Shown: no notification is lost (loom reports the deadlock when a side sleeps for ever while
//! work waits for it), and no slot is lost, seen twice, or seen before it was written. The
//! control tests remove the barrier or the final check and must fail.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;
use std::sync::Arc;

use ring::{BackRing, FrontRing, HEADER_LEN, Index, LEDGER_LEN, Ledger, SharedPage, Slots};
use shm::Region;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A ring of two slots keeps the state space small and makes slots wrap.
struct Tiny;

impl Slots for Tiny {
    type Request = u32;
    type Response = u32;
    const COUNT: u32 = 2;
}

/// A page of loom's atomics. Slots are relaxed: only the indices may order them.
struct Page {
    indices: [AtomicU32; 4],
    slots: [AtomicU32; 2],
    barriers: bool,
}

#[derive(Clone)]
struct Shared(Arc<Page>);

impl Shared {
    fn new(barriers: bool) -> Self {
        Self(Arc::new(Page {
            indices: std::array::from_fn(|_| AtomicU32::new(0)),
            slots: std::array::from_fn(|_| AtomicU32::new(0)),
            barriers,
        }))
    }

    fn slot(&self, offset: usize) -> &AtomicU32 {
        &self.0.slots[(offset - HEADER_LEN) / 4]
    }
}

impl SharedPage for Shared {
    fn load(&self, index: Index) -> u32 {
        self.0.indices[index as usize / 4].load(Ordering::Acquire)
    }
    fn store(&self, index: Index, value: u32) {
        self.0.indices[index as usize / 4].store(value, Ordering::Release);
    }
    fn read_slot<T: FromBytes>(&self, offset: usize) -> T {
        let value = self.slot(offset).load(Ordering::Relaxed);
        T::read_from_bytes(&value.to_ne_bytes()).unwrap()
    }
    fn write_slot<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        let value = u32::read_from_bytes(value.as_bytes()).unwrap();
        self.slot(offset).store(value, Ordering::Relaxed);
    }
    fn full_barrier(&self) {
        if self.0.barriers {
            fence(Ordering::SeqCst);
        }
    }
}

/// One end's event channels. Notifications are messages: loom's `Notify` also wakes without one, which finds no lost notification and
/// doubles the executions for each end.
struct Bells {
    own: Receiver<()>,
    other: Sender<()>,
}

impl Bells {
    fn notify(&self) {
        self.other.send(()).unwrap();
    }

    fn wait(&self) {
        self.own.recv().unwrap();
    }
}

/// When the backend notifies the frontend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notifies {
    /// Once for all responses that it publishes together.
    PerBatch,
    /// It publishes each response, and notifies before it sleeps if the frontend asked at any of them.
    Coalesced,
    /// It notifies before it sleeps if the frontend asked at the last of them: wrong.
    ForTheLast,
}

/// Takes `total` requests and answers each with its value plus 100. Whether it checks again before it sleeps is `checks_again`.
fn backend(
    mut ring: BackRing<Tiny, Shared>,
    total: u32,
    (checks_again, notifies): (bool, Notifies),
    bells: &Bells,
) {
    let mut expected = 0;
    // A notification that is held back.
    let mut is_owed = false;
    while expected < total {
        while let Some(request) = ring.take().unwrap() {
            assert_eq!(request, expected, "a request was lost, doubled or seen too early");
            expected += 1;
            ring.respond(request + 100);
            match notifies {
                Notifies::PerBatch => {}
                Notifies::Coalesced => is_owed |= ring.publish(),
                Notifies::ForTheLast => is_owed = ring.publish(),
            }
        }
        is_owed |= ring.publish();
        if std::mem::take(&mut is_owed) {
            bells.notify();
        }
        if expected < total && (!ring.arm().unwrap() || !checks_again) {
            bells.wait();
        }
    }
}

/// Sends `total` requests as slots become free, and takes their responses in order.
fn frontend(mut ring: FrontRing<Tiny, Shared>, total: u32, bells: &Bells) {
    let (mut sent, mut taken) = (0, 0);
    while taken < total {
        while sent < total && ring.free() > 0 {
            ring.request(sent);
            sent += 1;
        }
        if ring.publish() {
            bells.notify();
        }
        while let Some((index, response)) = ring.take().unwrap() {
            assert_eq!(index, taken);
            assert_eq!(response, taken + 100, "a response was lost, doubled or seen too early");
            taken += 1;
        }
        let room = sent < total && ring.free() > 0;
        if taken < total && !room && !ring.arm().unwrap() {
            bells.wait();
        }
    }
}

fn check(total: u32, barriers: bool, checks_again: bool) {
    check_with(total, barriers, checks_again, Notifies::PerBatch);
}

fn check_with(total: u32, barriers: bool, checks_again: bool, notifies: Notifies) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let page = Shared::new(barriers);
        let front = FrontRing::<Tiny, _>::init(page.clone());
        let ledger = Ledger::new(Region::anonymous(LEDGER_LEN).unwrap()).unwrap();
        let back = BackRing::<Tiny, _>::attach(page, ledger).unwrap();
        let [(to_back, of_back), (to_front, of_front)] = [channel(), channel()];
        let [bells, theirs] =
            [(of_front, to_back), (of_back, to_front)].map(|(own, other)| Bells { own, other });
        let other = thread::spawn(move || {
            backend(back, total, (checks_again, notifies), &theirs);
            // A late notification needs its receiver.
            theirs
        });
        frontend(front, total, &bells);
        drop(other.join().unwrap());
    });
}

#[test]
fn nothing_is_lost_or_seen_twice() {
    check(3, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_wake_up_is_lost() {
    check(3, false, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_final_check_a_wake_up_is_lost() {
    check(3, true, false);
}

#[test]
fn a_notification_that_is_held_back_is_not_lost() {
    check_with(3, true, true, Notifies::Coalesced);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_notification_that_the_next_publication_forgets_is_lost() {
    check_with(3, true, true, Notifies::ForTheLast);
}
