//! An egress queue of a port, its lock, and who waits for it.
//!
//! Its lock is held for a batch. A thread that sleeps in the memory of a guest meanwhile ([`worker_state`](crate::worker_state)) may hold it for
//! seconds, so nobody waits for it for long, and another egress side can take the place of the locked one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};
use port::{Body, Broken, DropReason, Egress, Offer, Outcome, WINDOW};

/// How long anybody waits for the lock: its holder may fall asleep, and be found asleep, meanwhile.
const PATIENCE: Duration = Duration::from_millis(20);
/// How often the mark of a sleeper is checked meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// After this time a worker tries again to send a notification that is held back in a queue in which a thread sleeps.
const RETRY: Duration = Duration::from_millis(1);

/// Whoever holds the present lock sleeps, or it is suspended: nobody waits for it.
const SLEEPS: u8 = 1;
/// Its port is being removed.
const CLOSED: u8 = 2;
/// It has no egress side until it is resumed.
const SUSPENDED: u8 = 16;
/// The other thread drops what it has locked, by the number of the lock: another one has its place.
const REPLACED: [u8; 2] = [4, 8];

/// An egress side; none once its port is being removed.
type Side = Option<Box<dyn Egress>>;

/// Waits of workers for an egress queue that another one had locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// How many there were.
    pub count: u64,
    /// Their time together.
    pub time: Duration,
}

/// An egress queue and who waits for it.
pub(crate) struct EgressQueue {
    /// The present side, and that in which a thread still sleeps, if there is one.
    sides: [Mutex<Side>; 2],
    present: AtomicUsize,
    marks: AtomicU8,
    /// Whether it may hold back notifications, or did so once.
    coalesces: AtomicBool,
    /// A bit for each worker that waits for room here, or for the end of a delivery.
    waiters: AtomicU64,
    /// How often a worker found it locked by another one, and the nanoseconds that all these waits took.
    lock_waits: [AtomicU64; 2],
}

/// A locked egress queue.
pub(crate) struct Locked<'a> {
    queue: &'a EgressQueue,
    number: usize,
    pub(crate) side: MutexGuard<'a, Side>,
}

impl EgressQueue {
    pub(crate) fn new(egress: Box<dyn Egress>) -> Self {
        Self {
            coalesces: egress.coalesces().into(),
            sides: [Mutex::new(Some(egress)), Mutex::new(None)],
            present: AtomicUsize::new(0),
            marks: AtomicU8::new(0),
            waiters: AtomicU64::new(0),
            lock_waits: Default::default(),
        }
    }

    fn present(&self) -> usize {
        self.present.load(Ordering::Acquire) & 1
    }

    fn is_marked(&self, mark: u8) -> bool {
        self.marks.load(Ordering::SeqCst) & mark != 0
    }

    fn mark(&self, mark: u8) {
        self.marks.fetch_or(mark, Ordering::SeqCst);
    }

    fn unmark(&self, mark: u8) {
        self.marks.fetch_and(!mark, Ordering::SeqCst);
    }

    /// None if somebody has it locked, or if it is suspended.
    #[inline]
    fn try_lock(&self) -> Option<Locked<'_>> {
        let number = self.present();
        let side = self.sides[number].try_lock()?;
        let is_there = side.is_some() || !self.is_suspended();
        is_there.then(|| Locked { queue: self, number, side })
    }

    #[cold]
    fn is_suspended(&self) -> bool {
        self.is_marked(SUSPENDED) && !self.is_marked(CLOSED)
    }

    /// Whether its side, which somebody else has locked, may hold a notification back. One that is suspended has gone with its notification.
    pub(crate) fn may_hold_notification(&self) -> bool {
        self.coalesces() && !self.is_marked(SUSPENDED) && !self.is_marked(CLOSED)
    }

    /// Locks it, unless its holder sleeps.
    pub(crate) fn lock(&self) -> Option<Locked<'_>> {
        let end = Instant::now() + PATIENCE;
        while !self.is_marked(SLEEPS) && Instant::now() < end {
            let number = self.present();
            if let Some(side) = self.sides[number].try_lock_for(CHECK_INTERVAL) {
                return Some(Locked { queue: self, number, side });
            }
        }
        self.try_lock()
    }

    /// Locks it for a worker, and counts the wait if another one has it.
    #[inline]
    pub(crate) fn lock_in_turn(&self) -> Option<Locked<'_>> {
        match self.try_lock() {
            Some(locked) => Some(locked),
            None => self.lock_after_another(),
        }
    }

    /// The clock is read only here, where the worker waits in any case.
    #[cold]
    fn lock_after_another(&self) -> Option<Locked<'_>> {
        let [count, nanoseconds] = &self.lock_waits;
        count.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let locked = self.lock();
        let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        nanoseconds.fetch_add(waited, Ordering::Relaxed);
        locked
    }

    /// Delivers a batch of `worker`. If frames are left waiting, the worker is among
    /// the [`take_waiters`](Self::take_waiters) once there is room. Returns when the queue must be
    /// [flushed](Self::flush), if it must.
    pub(crate) fn deliver(
        &self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
        worker: usize,
    ) -> Result<Option<Duration>, Broken> {
        let Some(mut locked) = self.lock_in_turn() else {
            // They wait as for room, and as long. So does a notification that may be held back there.
            self.wait(worker);
            return Ok(self.may_hold_notification().then(|| now + RETRY));
        };
        let Some(egress) = locked.side.as_mut() else {
            for offer in offers {
                offer.outcome = Outcome::Dropped(DropReason::PortGone);
            }
            return Ok(None);
        };
        let mut delivered = egress.deliver(body, offers, now);
        let rest = offers.iter().position(|offer| offer.outcome.is_offered_again());
        // Those behind a frame that is sent in parts do not wait for room.
        if delivered.is_ok()
            && let Some(waiting) = rest.filter(|rest| offers[*rest].outcome == Outcome::Waiting)
        {
            // The guest's event may have come between the check of its ring and this mark, when no
            // worker waited for it. So check once more.
            self.wait(worker);
            delivered = deliver_waiting(&mut **egress, body, &mut offers[waiting..], now);
        }
        if let Err(broken) = delivered {
            if locked.is_present() {
                return Err(broken);
            }
            for offer in offers.iter_mut().filter(|offer| offer.outcome.is_offered_again()) {
                offer.outcome = Outcome::Dropped(DropReason::PortGone);
            }
            return Ok(None);
        }
        Ok(if self.coalesces() { egress.flush(now, false) } else { None })
    }

    /// Sends a notification that it holds back, if it is due or if the worker `is_idle`. Returns when it is due otherwise.
    pub(crate) fn flush(&self, now: Duration, is_idle: bool) -> Option<Duration> {
        let Some(mut locked) = self.lock_in_turn() else {
            return self.may_hold_notification().then(|| now + RETRY);
        };
        locked.side.as_mut()?.flush(now, is_idle)
    }

    /// How workers have waited for each other at it.
    pub(crate) fn lock_waits(&self) -> LockWaits {
        let [count, nanoseconds] = &self.lock_waits;
        LockWaits {
            count: count.load(Ordering::Relaxed),
            time: Duration::from_nanos(nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// Asks something of its egress side; `None` without one, or if its holder sleeps.
    pub(crate) fn with<T>(&self, ask: impl FnOnce(&mut dyn Egress) -> T) -> Option<T> {
        self.lock()?.side.as_mut().map(|egress| ask(&mut **egress))
    }

    /// A worker waits for room, or for the end of a delivery.
    pub(crate) fn wait(&self, worker: usize) {
        self.waiters.fetch_or(1 << worker, Ordering::AcqRel);
    }

    /// Takes the set of workers that wait for it.
    pub(crate) fn take_waiters(&self) -> u64 {
        self.waiters.swap(0, Ordering::AcqRel)
    }

    /// Whether it may hold back notifications.
    #[inline]
    pub(crate) fn coalesces(&self) -> bool {
        self.coalesces.load(Ordering::Relaxed)
    }

    /// Wraps it anew.
    pub(crate) fn rewrap(&self, wrap: impl FnOnce(Box<dyn Egress>) -> Box<dyn Egress>) {
        // A port whose queue cannot be had is plugged in anew, or ended.
        let Some(mut locked) = self.lock() else { return };
        *locked.side = locked.side.take().map(wrap);
        if locked.side.as_ref().is_some_and(|egress| egress.coalesces()) {
            self.coalesces.store(true, Ordering::Relaxed);
        }
    }

    /// Drops its egress side, and with it the mappings of the guest's memory; a thread that sleeps in it drops it when it wakes up.
    pub(crate) fn close(&self) {
        self.mark(CLOSED);
        match self.lock() {
            Some(mut locked) => *locked.side = None,
            None => self.mark(SLEEPS),
        }
    }

    /// A thread sleeps that may hold its lock: nobody waits for it then, until somebody gives the lock back. That takes the mark away: the thread may have woken
    /// up already, or another one may hold the lock, which is awake.
    pub(crate) fn note_sleeper(&self) {
        self.mark(SLEEPS);
        if self.try_lock().is_some() {
            self.unmark(SLEEPS);
        }
    }

    /// Drops its egress side, or leaves it to the thread that sleeps in it. Frames wait until it is [resumed](Self::resume).
    pub(crate) fn suspend(&self) {
        let locked = self.lock();
        self.mark(SUSPENDED | SLEEPS);
        if let Some(mut locked) = locked {
            *locked.side = None;
        }
    }

    /// Goes on with this egress side. Returns it if there is no place for it: two threads sleep in those before.
    pub(crate) fn resume(&self, egress: Box<dyn Egress>) -> Result<(), Box<dyn Egress>> {
        let present = self.present();
        let place = [present, present ^ 1].into_iter().find_map(|place| {
            self.sides[place].try_lock().filter(|side| side.is_none()).map(|side| (place, side))
        });
        let Some((place, mut side)) = place else { return Err(egress) };
        if egress.coalesces() {
            self.coalesces.store(true, Ordering::Relaxed);
        }
        self.unmark(REPLACED[place]);
        *side = Some(egress);
        if place != present {
            self.mark(REPLACED[present]);
            self.present.store(place, Ordering::Release);
        }
        self.unmark(SUSPENDED | SLEEPS);
        Ok(())
    }

    /// Replaces the egress side if its lock's holder sleeps. Returns whether it did: no holder may sleep, or
    /// one that sleeps for the second time.
    pub(crate) fn replace_sleeping(&self, make: impl FnOnce() -> Option<Box<dyn Egress>>) -> bool {
        let present = self.present();
        let Some(mut other) = self.sides[present ^ 1].try_lock() else { return false };
        if !self.is_marked(SLEEPS) || self.sides[present].try_lock().is_some() {
            return false;
        }
        let Some(egress) = make() else { return false };
        // A holder that gave the lock back just before this mark was set has left it.
        self.unmark(REPLACED[present ^ 1]);
        *other = Some(egress);
        self.mark(REPLACED[present]);
        self.present.store(present ^ 1, Ordering::Release);
        // It may have woken up while the new side was made.
        if let Some(mut side) = self.sides[present].try_lock() {
            *side = None;
            self.unmark(REPLACED[present]);
        }
        self.unmark(SLEEPS);
        true
    }
}

impl Locked<'_> {
    /// After a delivery in which the thread may have slept: whether this is still the port's egress side. If not, what it came to is no matter of
    /// the port's.
    fn is_present(&mut self) -> bool {
        self.queue.marks.load(Ordering::Relaxed) == 0 || self.woke()
    }

    #[cold]
    fn woke(&mut self) -> bool {
        let (queue, replaced) = (self.queue, REPLACED[self.number]);
        if queue.is_marked(replaced) {
            *self.side = None;
            queue.unmark(replaced);
        }
        if self.number != queue.present() {
            return false;
        }
        if queue.is_marked(CLOSED | SUSPENDED) {
            *self.side = None;
        }
        if !queue.is_marked(SUSPENDED) {
            queue.unmark(SLEEPS);
        }
        self.side.is_some()
    }
}

impl Drop for Locked<'_> {
    /// Whoever gives the lock back is awake.
    #[inline]
    fn drop(&mut self) {
        if self.queue.marks.load(Ordering::Relaxed) != 0 {
            self.woke();
        }
    }
}

/// Offers frames once more, the first of which waits for room. One behind it may have been delivered: with a frame before it, as
/// a part of a merged one.
fn deliver_waiting(
    egress: &mut dyn Egress,
    body: Body<'_>,
    offers: &mut [Offer<'_>],
    now: Duration,
) -> Result<(), Broken> {
    let waits = |offer: &Offer<'_>| offer.outcome.is_offered_again();
    if offers.iter().all(waits) {
        return egress.deliver(body, offers, now);
    }
    // A batch is of one window.
    let mut waiting: ArrayVec<_, WINDOW> = offers.iter_mut().filter(|offer| waits(offer)).collect();
    let mut again: ArrayVec<_, WINDOW> =
        waiting.iter().map(|offer| Offer { outcome: Outcome::Waiting, ..**offer }).collect();
    let delivered = egress.deliver(body, &mut again, now);
    for (offer, again) in waiting.iter_mut().zip(again) {
        **offer = again;
    }
    delivered
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use port::{Doorbell, Event, Frame};

    use super::*;

    /// Counts those that are there.
    struct Side(Arc<AtomicU32>);

    impl Side {
        fn boxed(there: &Arc<AtomicU32>) -> Box<dyn Egress> {
            there.fetch_add(1, Ordering::Relaxed);
            Box::new(Self(there.clone()))
        }
    }

    impl Drop for Side {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Egress for Side {
        fn deliver(&mut self, _: Body<'_>, _: &mut [Offer<'_>], _: Duration) -> Result<(), Broken> {
            Ok(())
        }
    }

    #[test]
    fn only_a_worker_that_finds_the_queue_locked_is_counted() {
        let queue = EgressQueue::new(Side::boxed(&Arc::default()));
        drop(queue.lock_in_turn());
        assert_eq!(queue.lock_waits(), LockWaits::default());
        let held = queue.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| drop(queue.lock_in_turn()));
            // The other one is counted before it waits.
            while queue.lock_waits().count == 0 {
                std::thread::yield_now();
            }
            drop(held);
            other.join().unwrap();
        });
        let LockWaits { count, time } = queue.lock_waits();
        assert!(count == 1 && time > Duration::ZERO, "{time:?}");
    }

    #[test]
    fn a_queue_that_is_suspended_makes_others_wait() {
        let there = Arc::default();
        let queue = EgressQueue::new(Side::boxed(&there));
        queue.suspend();
        assert_eq!(there.load(Ordering::Relaxed), 0);
        assert!(queue.lock_in_turn().is_none() && queue.lock().is_none());
        assert!(queue.resume(Side::boxed(&there)).is_ok());
        assert!(queue.lock_in_turn().is_some_and(|locked| locked.side.is_some()));
        // One that a thread sleeps in.
        let mut asleep = queue.lock().unwrap();
        queue.note_sleeper();
        queue.suspend();
        assert!(queue.lock_in_turn().is_none());
        assert!(queue.resume(Side::boxed(&there)).is_ok());
        assert!(queue.lock_in_turn().is_some_and(|locked| locked.side.is_some()));
        asleep.is_present();
        drop(asleep);
        assert_eq!(there.load(Ordering::Relaxed), 1);
        queue.suspend();
        queue.close();
        assert!(queue.lock_in_turn().is_some_and(|locked| locked.side.is_none()), "it is gone");
    }

    /// Of a thread that had woken up when the mark was set, or never slept.
    #[test]
    fn a_mark_goes_with_whoever_gives_the_lock_back() {
        let there = Arc::default();
        let queue = EgressQueue::new(Side::boxed(&there));
        queue.note_sleeper();
        assert!(!queue.is_marked(SLEEPS), "nobody has it");
        // It asks something, and delivers nothing.
        queue.with(|_| queue.note_sleeper());
        assert!(!queue.is_marked(SLEEPS), "others would not wait for whoever has it next");
        // A thread that was replaced says nothing of the one that has its place.
        let first = queue.lock().unwrap();
        queue.note_sleeper();
        assert!(queue.replace_sleeping(|| Some(Side::boxed(&there))));
        let second = queue.lock().unwrap();
        queue.note_sleeper();
        drop(first);
        assert!(queue.is_marked(SLEEPS));
        drop(second);
        assert!(!queue.is_marked(SLEEPS));
    }

    #[test]
    fn a_side_takes_the_place_of_one_in_which_a_thread_sleeps() {
        let there = Arc::default();
        let queue = EgressQueue::new(Side::boxed(&there));
        let make = || Some(Side::boxed(&there));
        assert!(!queue.replace_sleeping(make), "nobody sleeps");
        let mut asleep = queue.lock().unwrap();
        queue.note_sleeper();
        assert!(queue.lock_in_turn().is_none(), "nobody waits for a sleeper");
        assert!(queue.replace_sleeping(make));
        assert!(queue.lock_in_turn().is_some_and(|locked| locked.side.is_some()));
        // The first thread still sleeps when the next one does.
        let mut second = queue.lock().unwrap();
        queue.note_sleeper();
        assert!(!queue.replace_sleeping(make), "there are two places");
        assert!(second.is_present());
        drop(second);
        assert!(!asleep.is_present(), "what it did is no matter of the port's");
        assert!(asleep.side.is_none());
        drop(asleep);
        assert_eq!(there.load(Ordering::Relaxed), 1);
        assert!(queue.lock_in_turn().is_some_and(|locked| locked.side.is_some()));
        let mut asleep = queue.lock().unwrap();
        queue.note_sleeper();
        assert!(queue.replace_sleeping(make));
        queue.close();
        asleep.is_present();
        assert_eq!(there.load(Ordering::Relaxed), 0, "both are dropped");
    }

    /// Has room for the first and the third frame of its first call, as if they were one, and for all later ones.
    struct Merging(Arc<Mutex<Vec<Vec<u32>>>>);

    impl Egress for Merging {
        fn deliver(
            &mut self,
            _: Body<'_>,
            offers: &mut [Offer<'_>],
            _: Duration,
        ) -> Result<(), Broken> {
            let mut calls = self.0.lock();
            calls.push(offers.iter().map(|offer| offer.frame.len).collect());
            for (n, offer) in offers.iter_mut().enumerate() {
                let waits = calls.len() == 1 && n == 1;
                offer.outcome = if waits { Outcome::Waiting } else { Outcome::Delivered };
            }
            Ok(())
        }

        fn room_event(&self) -> Option<Arc<dyn Event>> {
            Some(Arc::new(Doorbell::new().unwrap()))
        }
    }

    #[test]
    fn a_frame_that_was_delivered_behind_one_that_waits_is_not_offered_again() {
        let calls = Arc::default();
        let queue = EgressQueue::new(Box::new(Merging(Arc::clone(&calls))));
        let frames = [60, 61, 62].map(|len| Frame { len, ..Frame::empty() });
        let mut offers: Vec<_> = frames.iter().map(Offer::new).collect();
        let regions = Arc::default();
        queue.deliver(Body::Regions(&regions), &mut offers, Duration::ZERO, 0).unwrap();
        assert_eq!(*calls.lock(), [vec![60, 61, 62], vec![61]]);
        assert!(offers.iter().all(|offer| offer.outcome == Outcome::Delivered));
    }

    /// Holds notifications back.
    struct Coalescing;

    impl Egress for Coalescing {
        fn deliver(&mut self, _: Body<'_>, _: &mut [Offer<'_>], _: Duration) -> Result<(), Broken> {
            Ok(())
        }

        fn coalesces(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_notification_behind_a_sleeper_is_tried_again_and_one_that_went_with_its_queue_is_not() {
        let queue = EgressQueue::new(Box::new(Coalescing));
        let frame = Frame::empty();
        let now = Duration::from_secs(1);
        let due = || {
            let mut offers = [Offer::new(&frame)];
            let due = queue.deliver(Body::Regions(&Arc::default()), &mut offers, now, 0).unwrap();
            assert_eq!((offers[0].outcome, queue.flush(now, true)), (Outcome::Waiting, due));
            due
        };
        let sleeper = queue.lock().unwrap();
        queue.note_sleeper();
        assert_eq!(due(), Some(now + RETRY));
        drop(sleeper);
        assert_eq!(queue.flush(now, true), None);
        queue.suspend();
        assert_eq!(due(), None);
        assert!(queue.resume(Box::new(Coalescing)).is_ok());
        assert_eq!(queue.flush(now, true), None);
    }
}
