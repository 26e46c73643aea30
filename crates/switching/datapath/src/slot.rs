//! A queue or a task of a worker, and its events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use port::{Coalescing, Event, Rewrap};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::account::Account;
use crate::inbox::Inbox;
use crate::port::{IngressId, Port};
use crate::prediction::Prediction;
use crate::times::Busy;
use crate::wake_ups::WakeUps;
use crate::work::Work;

/// Events in a row that a queue may send without work. One may be late, for frames that were
/// taken before it came.
const EMPTY_EVENTS: u32 = 16;
/// How long it rests after them.
const REST: Duration = Duration::from_millis(1);
/// How long a thread that was replaced, and is awake, may take to end.
const WAKING: Duration = Duration::from_millis(5);
/// An epoll token has the slot's number in the bits below, and in those above the number of the event of this slot.
const EVENT_SHIFT: u32 = 32;

/// A queue or a task of a worker, and what of it outlives the thread that serves it.
pub(crate) struct Entry {
    /// No other queue or task has it.
    pub(crate) number: u64,
    pub(crate) port: Arc<Port>,
    /// Set for an ingress queue that was added to its port.
    pub(crate) id: Option<IngressId>,
    /// The egress queue of whose room it hears; none for a task.
    pub(crate) room_of: Option<usize>,
    /// Locked for each turn: a thread that sleeps in one keeps this queue only.
    pub(crate) work: Mutex<Work>,
    events: Vec<Arc<dyn Event>>,
    /// How long its turns were.
    pub(crate) busy: Busy,
}

impl Entry {
    pub(crate) fn new(port: Arc<Port>, mut work: Work, id: Option<IngressId>) -> Self {
        static ENTRIES: AtomicU64 = AtomicU64::new(0);
        let number = ENTRIES.fetch_add(1, Ordering::Relaxed);
        let (events, room_of) = (work.events(&port), work.room_of());
        Self { number, port, id, room_of, work: Mutex::new(work), events, busy: Busy::default() }
    }

    /// Records a turn's duration and end, for `worker`, and how long the batches that ended in it were in the daemon.
    pub(crate) fn record_turn(&self, work: &mut Work, worker: usize, took: Duration, end: Instant) {
        let Some(batches) = self.port.batches_of(worker) else { return };
        batches.turn(took);
        if let Work::Carry { ingress, .. } = work {
            ingress.turn_ended(took, end, |time| batches.ended(time));
        }
    }

    /// Drops queues and tasks that no worker serves any more, as the last who has them: a thread that was replaced has them until it ends. One that
    /// still sleeps then is not waited for.
    pub(crate) fn let_go(entries: Vec<Arc<Self>>) {
        let by = Instant::now() + WAKING;
        for entry in entries {
            let mut left = Some(entry);
            while let Some(entry) = left.take() {
                left = Arc::try_unwrap(entry).err().filter(|_| Instant::now() < by);
                if left.is_some() {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
    }
}

/// A queue or a task, for the thread that serves it.
pub(crate) struct Slot {
    pub(crate) entry: Arc<Entry>,
    /// The epoll token of its first event.
    token: u64,
    /// Whether it is polled; otherwise it is armed.
    pub(crate) active: bool,
    /// Whether frames wait for room in another port, or for a device.
    pub(crate) blocked: bool,
    /// Whether its port's queue has an inbox. Few have one, and nothing of the port is read for the others in each round.
    has_inbox: bool,
    /// When it must be polled again, even without an event.
    due: Option<Instant>,
    /// It must be polled soon after this instant. No timer is set for it.
    past: Option<Instant>,
    /// Whether its events are not heard before it is due.
    rests: bool,
    /// Whether its first event is that of its frames, and silent once they are read.
    announces_frames: bool,
    /// Whether that event comes as long as there are frames, and not only with more of them.
    hears_all: bool,
    /// Events in a row that brought no work.
    empty_events: u32,
    last_work: Instant,
    /// What follows its turns.
    pub(crate) prediction: Prediction,
    /// How long the last turn was, and when it ended, if that is not recorded yet.
    pub(crate) ended: Option<(Duration, Instant)>,
    pub(crate) account: Account,
}

impl Slot {
    /// A slot whose events carry the number `index`.
    ///
    /// # Errors
    /// The events could not be added to `epoll`.
    pub(crate) fn new(epoll: &OwnedFd, index: usize, entry: Arc<Entry>) -> Result<Self, Errno> {
        let token = index as u64;
        watch(epoll, &entry.events, token)?;
        let has_inbox = entry.room_of.is_some_and(|queue| entry.port.inbox(queue).is_some());
        let announces_frames =
            entry.room_of.is_some() && entry.events.first().is_some_and(|event| event.is_of_work());
        Ok(Self {
            entry,
            token,
            // The ring may have requests already, for which no event comes.
            active: true,
            blocked: false,
            has_inbox,
            due: None,
            past: None,
            rests: false,
            announces_frames,
            hears_all: true,
            empty_events: 0,
            last_work: Instant::now(),
            prediction: Prediction::default(),
            ended: None,
            account: Account::default(),
        })
    }

    /// The inbox of its port's queue, if it has one.
    #[inline]
    pub(crate) fn inbox(&self) -> Option<&Inbox> {
        if !self.has_inbox {
            return None;
        }
        self.entry.port.inbox(self.entry.room_of?)
    }

    /// Notes the last turn's duration and end, which the next one records: it has the queue's lock.
    #[inline]
    pub(crate) fn turn_ended(&mut self, worker: usize, took: Duration, end: Instant) {
        self.entry.busy.add(took);
        self.ended = Some((took, end));
        if !self.active {
            self.record_end(worker);
        }
    }

    /// Records the last turn's end, before a sleep or another worker's turn, unless an earlier thread sleeps with the queue's lock.
    #[cold]
    pub(crate) fn record_end(&mut self, worker: usize) {
        if let Some((took, end)) = self.ended.take()
            && let Some(mut work) = self.entry.work.try_lock()
        {
            self.entry.record_turn(&mut work, worker, took, end);
        }
    }

    /// The slot had work.
    pub(crate) fn worked(&mut self, now: Instant) {
        self.last_work = now;
        self.empty_events = 0;
    }

    /// Whether it had work in this time.
    pub(crate) fn has_worked_within(&self, now: Instant, time: Duration) -> bool {
        now.duration_since(self.last_work) < time
    }

    /// The number of the slot that an event with this token is for.
    pub(crate) fn of_token(token: u64) -> usize {
        usize::try_from(token & ((1 << EVENT_SHIFT) - 1)).unwrap_or(usize::MAX)
    }

    /// The event with this token came. The slot becomes active, unless its events bring nothing: a guest may send
    /// them without end (XSA-332), and each costs its worker a wake-up.
    pub(crate) fn hear(&mut self, epoll: &OwnedFd, token: u64) {
        take(&self.entry.events, token);
        if self.active || self.rests {
            return;
        }
        if self.empty_events < EMPTY_EVENTS {
            self.empty_events += 1;
            self.active = true;
        } else {
            let end = Instant::now() + REST;
            self.due = Some(self.due.map_or(end, |due| due.min(end)));
            self.rest(epoll);
        }
    }

    /// Whether this is the event of its frames, and silent once they are read.
    pub(crate) fn is_of_frames(&self, token: u64) -> bool {
        token == self.token && self.announces_frames
    }

    /// Gives it a turn for a frame whose event was not taken, if it waits for that. Returns whether it does.
    pub(crate) fn activate_predicted(&mut self) -> bool {
        let waits = !self.active && !self.blocked && !self.rests && self.announces_frames;
        self.active |= waits;
        waits
    }

    /// Sets whether it can take frames now. While it cannot, their event would wake the worker without end, and comes with more frames only.
    pub(crate) fn set_takes_frames(&mut self, epoll: &OwnedFd, takes: bool) {
        if !self.announces_frames || self.rests || self.hears_all == takes {
            return;
        }
        let (event, data) = (&self.entry.events[0], EventData::new_u64(self.token));
        let flags = if takes { EventFlags::IN } else { EventFlags::IN | EventFlags::ET };
        if epoll::modify(epoll, event, data, flags).is_ok() {
            self.hears_all = takes;
        }
    }

    /// An event brought room for frames that waited.
    pub(crate) fn brought_room(&mut self) {
        self.empty_events = 0;
    }

    /// From now on its events do not wake the worker, until the slot is [due](Self::due). They are taken
    /// out of `epoll`: even those that it ignores would share its lock with those of others.
    pub(crate) fn rest(&mut self, epoll: &OwnedFd) {
        if !std::mem::replace(&mut self.rests, true) {
            forget(epoll, &self.entry.events);
        }
    }

    /// Becomes active if it is due.
    pub(crate) fn wake_if_due(&mut self, epoll: &OwnedFd, now: Instant) {
        self.active |= self.past.take_if(|past| *past <= now).is_some();
        if self.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.active = true;
        // What came meanwhile is announced then. It fails if the kernel is short of memory.
        if self.rests && watch(epoll, &self.entry.events, self.token).is_ok() {
            (self.rests, self.hears_all) = (false, true);
        }
    }

    /// When it must be polled again, even without an event.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// After when it must be polled soon, even without an event.
    pub(crate) fn past(&self) -> Option<Instant> {
        self.past
    }

    /// Sets when it must be polled again, even without an event: at `due`, for which a timer is set, and soon after `past`.
    pub(crate) fn set_due(&mut self, due: Option<Instant>, past: Option<Instant>, now: Instant) {
        self.past = past;
        let unheard = self.rests.then(|| now + REST);
        self.due = due.into_iter().chain(unheard).min();
    }

    /// Wraps its queue anew. It has a turn soon: a wrapper that is gone may have kept it waiting.
    pub(crate) fn rewrap(&mut self, rewrap: &dyn Rewrap) {
        self.entry.work.lock().rewrap(rewrap);
        self.active = true;
    }

    /// Sets when its worker is woken up for frames.
    pub(crate) fn coalesce(&mut self, coalescing: Option<Coalescing>, now: Instant) {
        if let Work::Carry { wake_ups, .. } = &mut *self.entry.work.lock() {
            *wake_ups = WakeUps::new(coalescing, now);
            self.active = true;
        }
    }

    /// Takes its events out of `epoll`.
    pub(crate) fn forget_events(&self, epoll: &OwnedFd) {
        forget(epoll, &self.entry.events);
    }
}

/// Takes the event with this token. To take another one too would be a system call that finds nothing.
fn take(events: &[Arc<dyn Event>], token: u64) {
    let number = usize::try_from(token >> EVENT_SHIFT).unwrap_or(usize::MAX);
    if let Some(event) = events.get(number) {
        event.take();
    }
}

/// Adds events to `epoll`, all or none.
fn watch(epoll: &OwnedFd, events: &[Arc<dyn Event>], token: u64) -> Result<(), Errno> {
    for (number, event) in (0_u64..).zip(events) {
        let data = EventData::new_u64(token | number << EVENT_SHIFT);
        let flags = match event.is_of_work() {
            true => EventFlags::IN,
            false => EventFlags::IN | EventFlags::ET,
        };
        match epoll::add(epoll, event, data, flags) {
            // One event channel for both rings.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                forget(epoll, events);
                return Err(error);
            }
        }
    }
    Ok(())
}

fn forget(epoll: &OwnedFd, events: &[Arc<dyn Event>]) {
    for event in events {
        // This fails for the second of two equal descriptors, which was removed with the first.
        let _ = epoll::delete(epoll, event);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::atomic::{AtomicU32, Ordering};

    use port::Doorbell;
    use rustix::buffer::spare_capacity;
    use rustix::event::Timespec;
    use rustix::event::epoll::CreateFlags;

    use super::*;

    /// An event that counts how often it is taken.
    struct Counted(Doorbell, AtomicU32);

    impl AsFd for Counted {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Event for Counted {
        fn take(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn event() -> Arc<Counted> {
        Arc::new(Counted(Doorbell::new().unwrap(), AtomicU32::new(0)))
    }

    /// The tokens of the events that come.
    fn heard(epoll: &OwnedFd) -> Vec<u64> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(8);
        epoll::wait(epoll, spare_capacity(&mut events), Some(&Timespec::default())).unwrap();
        events.iter().map(|event| event.data.u64()).collect()
    }

    #[test]
    fn a_queue_is_dropped_when_the_last_thread_that_had_it_ends() {
        let entry = || {
            let storm_control = switch::StormControl::new(0);
            let port = Port::new(switch::PortId(0), 1, "red", Vec::new(), storm_control);
            Arc::new(Entry::new(Arc::new(port), Work::Nothing, None))
        };
        let (waking, sleeping) = (entry(), entry());
        let (queues, kept) = ([&waking, &sleeping].map(Arc::downgrade), sleeping.clone());
        let its = waking.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(WAKING / 5);
            drop(its);
        });
        let began = Instant::now();
        Entry::let_go(vec![waking, sleeping]);
        // It waited for the first thread, unless that came late, and not for the second one.
        assert!(queues[0].upgrade().is_none() || began.elapsed() >= WAKING);
        assert!(queues[1].upgrade().is_some());
        thread.join().unwrap();
        assert!(queues[0].upgrade().is_none());
        drop(kept);
        assert!(queues[1].upgrade().is_none());
    }

    #[test]
    fn an_event_is_taken_that_came_and_no_other() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let (frames, room) = (event(), event());
        let events: [Arc<dyn Event>; 2] = [frames.clone(), room.clone()];
        watch(&epoll, &events, 7).unwrap();
        for (rung, other) in [(&frames, &room), (&room, &frames)] {
            rung.0.ring();
            let [token] = heard(&epoll)[..] else { panic!("one event") };
            assert_eq!(Slot::of_token(token), 7);
            take(&events, token);
            assert_eq!(
                (rung.1.swap(0, Ordering::Relaxed), other.1.load(Ordering::Relaxed)),
                (1, 0)
            );
        }
        // One event channel for both rings.
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let events: [Arc<dyn Event>; 2] = [frames.clone(), frames.clone()];
        watch(&epoll, &events, 7).unwrap();
        frames.0.ring();
        heard(&epoll).into_iter().for_each(|token| take(&events, token));
        assert_eq!(frames.1.load(Ordering::Relaxed), 1);
    }
}
