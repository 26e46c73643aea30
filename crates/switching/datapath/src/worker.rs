//! A thread that serves ingress queues and tasks: polls those with work, and waits for events when none has work.

mod commands;
mod event_polls;
mod events;
mod expected;

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cpus::CpuList;
use poller::{Poller, Yields};
use port::{Armed, Broken};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use tracing::error;

use crate::activity::Activity;
use crate::carrier::Carrier;
use crate::carry::Progress;
use crate::held::Held;
use crate::inbox::Inbox;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::work::Work;
use crate::worker_state::{WorkerHandle, WorkerState, WorkerThread};
use event_polls::EventPolls;
use expected::Expected;

/// Most workers: a queue has its waiting workers in one 64-bit word.
pub(crate) const MAX: usize = 64;
/// The epoll token of a worker's doorbell. Queues have their index and the number of the event.
const DOORBELL: u64 = u64::MAX;
/// A queue without work is checked for this many times as long as a wait is polled, while its worker does not sleep:
/// in a series of round trips its next frame comes after other queues' frames.
const LINGER: u32 = 4;

/// What a queue did in its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It had work.
    Worked,
    /// It had nothing to do, and stays active.
    Dry,
    /// It could not go on: it was armed, or has failed.
    Ended,
}

/// A worker, on its thread.
pub(crate) struct Worker {
    number: usize,
    shared: Arc<Shared>,
    state: Arc<WorkerState>,
    /// How many threads were replaced before this one.
    generation: u64,
    activity: Arc<Activity>,
    /// How many rounds it has begun.
    rounds: u64,
    epoll: OwnedFd,
    slots: Vec<Option<Slot>>,
    carrier: Carrier,
    /// The notifications that are held back.
    held: Held,
    /// Whether it is worth polling before sleep.
    poller: Poller,
    yields: Yields,
    /// When it polls for events while it does not sleep.
    event_polls: EventPolls,
    /// When frames that wait for room were last tried again.
    retried: Instant,
    /// How many threads before this one had ended when it last checked.
    earlier_ended: u64,
    /// The queue whose last turn ended after the clock was last read.
    unended: Option<(usize, Instant)>,
    /// When the last turn of the last round ended, if the clock was read then: the next round begins.
    ended: Option<Instant>,
    /// How many slots were active after the last round, and the least debt of them.
    active: usize,
    least_debt: Duration,
    /// Whether a queue slept in that round, whose next frames are announced by an event.
    sleeps: bool,
    /// When it had last waited, or polled, for events.
    polled: Instant,
    /// The slot that had the last turn, if nothing is left to do.
    last: Option<usize>,
    /// The slot whose turn comes because of an earlier one.
    expected: Option<Expected>,
}

impl Worker {
    /// A worker that nothing runs yet, for the commands of its handle.
    pub(crate) fn new(number: usize, shared: Arc<Shared>) -> io::Result<(Self, WorkerHandle)> {
        let (sender, commands) = mpsc::channel();
        let state = Arc::new(WorkerState::new(number, commands));
        let worker = Self::of(state.clone(), 0, shared.clone())?;
        Ok((worker, WorkerHandle::new(state, shared, sender)))
    }

    /// The worker of this state, without the queues and tasks that it may have already.
    fn of(state: Arc<WorkerState>, generation: u64, shared: Arc<Shared>) -> io::Result<Self> {
        let number = state.number;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let doorbell = &shared.doorbells[number];
        epoll::add(
            &epoll,
            doorbell,
            EventData::new_u64(DOORBELL),
            EventFlags::IN | EventFlags::ET,
        )?;
        let activity = Arc::<Activity>::default();
        Ok(Self {
            number,
            earlier_ended: state.ended(),
            state,
            generation,
            rounds: 0,
            epoll,
            slots: Vec::new(),
            carrier: Carrier::new(number, shared.clone(), activity.clone()),
            activity,
            held: Held::default(),
            poller: match shared.always_poll {
                true => Poller::always(),
                false => Poller::new(shared.poll),
            },
            yields: Yields::default(),
            event_polls: EventPolls::new(Instant::now()),
            shared,
            retried: Instant::now(),
            unended: None,
            ended: None,
            active: 0,
            least_debt: Duration::ZERO,
            sleeps: false,
            polled: Instant::now(),
            last: None,
            expected: None,
        })
    }

    /// A worker on a thread of its own.
    pub(crate) fn start(number: usize, shared: Arc<Shared>) -> io::Result<WorkerHandle> {
        let (worker, handle) = Self::new(number, shared)?;
        let thread = worker.spawn()?;
        handle.state().set_thread(thread);
        Ok(handle)
    }

    /// Another thread in the place of one that sleeps in a turn. That one ends when it wakes up, and its queue is served by the new one
    /// then. Returns false if it has woken up.
    pub(crate) fn replace(state: &Arc<WorkerState>, shared: Arc<Shared>) -> io::Result<bool> {
        let worker = Self::of(state.clone(), state.generation() + 1, shared)?;
        state.succeed(|| worker.spawn())
    }

    fn spawn(mut self) -> io::Result<WorkerThread> {
        let (ready, thread) = mpsc::channel();
        let activity = self.activity.clone();
        let name = format!("worker-{}", self.number);
        let is_first = self.generation == 0;
        let join = std::thread::Builder::new().name(name).spawn(move || {
            let bound = self.bind();
            if let Err(error) = &bound {
                error!(worker = self.number, %error, "a worker cannot be bound to its CPU");
            }
            // Coalescing counts in microseconds, and by default timers may be 50 µs late. If this fails, they are.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            // In the place of another one, it is better anywhere than not there.
            let begun = if is_first { bound } else { Ok(()) };
            let begun = begun.and_then(|()| File::open("/proc/thread-self/stat"));
            let [wchan, schedstat] = ["wchan", "schedstat"]
                .map(|name| File::open(format!("/proc/thread-self/{name}")).ok());
            let begun = begun.map(|stat| (stat, wchan, schedstat));
            if ready.send((id, begun)).is_ok() {
                self.run();
            }
        })?;
        let (id, begun) = thread.recv().map_err(io::Error::other)?;
        let (id, (stat, wchan, schedstat)) = (u32::try_from(id).unwrap_or(0), begun?);
        Ok(WorkerThread { id, stat, wchan, schedstat, activity, join })
    }

    /// Has the calling thread run on the worker's CPU, if it has one. Memory that it touches first is on the node of that CPU.
    fn bind(&self) -> io::Result<()> {
        let cpu = self.shared.cpus.get(self.number).copied();
        cpu.map_or(Ok(()), |cpu| cpus::bind(&CpuList::from_iter([cpu])))
    }

    /// Whether another thread has taken its place.
    #[inline]
    fn is_replaced(&self) -> bool {
        self.state.generation() != self.generation
    }

    /// Serves the queues and tasks that no thread serves, unless an earlier thread is still in a turn of them.
    fn adopt(&mut self) {
        if self.generation == 0 || self.is_replaced() {
            return;
        }
        let ended = self.state.ended();
        if std::mem::replace(&mut self.earlier_ended, ended) != ended {
            // That thread may have taken events of queues that this one serves.
            self.slots.iter_mut().flatten().for_each(|slot| slot.active = true);
        }
        for index in 0..self.state.len() {
            if self.slots.len() <= index {
                self.slots.push(None);
            }
            if self.slots[index].is_none()
                && let Some(entry) = self.state.idle(index)
            {
                self.serve(index, &entry);
            }
        }
    }

    /// Does what a round of [`run`](Self::run) does, without waiting for events. Returns whether another step may have work.
    pub(crate) fn step(&mut self, events: &mut Vec<epoll::Event>) -> bool {
        let now = Instant::now();
        self.carrier.begin(now);
        let has_work = self.round(now);
        self.held.flush(&self.activity, self.carrier.now, !has_work);
        if has_work || self.polls_on(now) {
            return true;
        }
        self.wait(Some(Duration::ZERO), events)
            && self.slots.iter().flatten().any(|slot| slot.active)
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        let mut now = Instant::now();
        if self.generation > 0 {
            self.rounds += 1;
            self.activity.begin_round(self.rounds);
            self.carrier.begin(now);
            // It may be paused.
            if !self.run_commands() {
                return;
            }
            self.carrier.flush_all();
        }
        while !self.is_replaced() {
            now = match self.ended.take() {
                Some(ended) => ended,
                None if self.event_polls.reads_clock() => Instant::now(),
                // At the same time as before, a round without work would decide as the one before did.
                None if self.is_dry() => {
                    self.event_polls.queues_polled();
                    continue;
                }
                None => now,
            };
            self.carrier.begin(now);
            let has_work = self.round(now);
            // All queues were armed in their turns: another round would find nothing.
            let is_done = has_work && self.active == 0;
            self.last = None;
            if is_done {
                now = Instant::now();
                self.carrier.begin(now);
                self.last = self.unended.map(|(index, _)| index);
                self.turn_ended(now);
                if self.event_polls.may_postpone() && self.predicts() {
                    self.event_polls.round_ended(true);
                    self.ended = Some(now);
                    continue;
                }
            }
            if self.held.flush(&self.activity, self.carrier.now, !has_work || is_done) {
                self.ended = None;
            }
            self.activity.serve_none();
            if self.is_replaced() {
                break;
            }
            self.event_polls.round_ended(has_work);
            let timeout = match (has_work && !is_done) || self.polls_on(now) {
                true if !self.event_polls.is_due(now, self.sleeps) => continue,
                true => Some(Duration::ZERO),
                false => self.timeout(now),
            };
            if !self.wait(timeout, &mut events) {
                return;
            }
            self.event_polls = EventPolls::new(self.polled);
        }
        self.held.flush(&self.activity, self.carrier.now, true);
        self.turn_ended(Instant::now());
        self.slots.iter_mut().flatten().for_each(|slot| slot.record_end(self.number));
        // The queue of its last turn is free.
        self.state.note_end();
        self.shared.doorbells[self.number].ring();
    }

    /// Whether no active queue has work, and no task is active.
    #[inline]
    fn is_dry(&mut self) -> bool {
        let mut active = self.slots.iter().flatten().filter(|slot| slot.active);
        let is_dry = active.all(|slot| {
            // It may have slept in the last one, and another thread have its place.
            if self.is_replaced() {
                return false;
            }
            self.activity.serve(slot.entry.port.serial());
            match &mut *slot.entry.work.lock() {
                Work::Carry { ingress, .. } => {
                    !ingress.has_work() && !slot.inbox().is_some_and(Inbox::has_work)
                }
                Work::Serve(_) | Work::Nothing => false,
            }
        });
        self.activity.serve_none();
        is_dry
    }

    /// After a round without work: polls on if another round is worth it, and otherwise arms all queues. Returns whether
    /// there is another round.
    fn polls_on(&mut self, now: Instant) -> bool {
        if self.poller.is_always() {
            return self.polls_always(now);
        }
        if self.active == 0 {
            return false;
        }
        // Room is announced by events, which a worker that polls hears late.
        let blocked = self.slots.iter().flatten().any(|slot| slot.blocked);
        if !blocked && self.poller.is_worth_polling(now) {
            if self.yields.after_poll(now) {
                self.event_polls.yielded();
            }
            return true;
        }
        for index in 0..self.slots.len() {
            self.arm(index, now);
        }
        self.slots.iter().flatten().any(|slot| slot.active)
    }

    /// The same of a worker that never sleeps: it does without a queue only.
    fn polls_always(&mut self, now: Instant) -> bool {
        // Frames that wait for room, or for a time, are heard of by a poll for events.
        self.sleeps |= self.slots.iter().flatten().any(|slot| slot.blocked);
        if self.yields.after_poll(now) {
            self.event_polls.yielded();
        }
        self.slots.iter().flatten().next().is_some()
    }

    /// Gives each active queue its turn, unless it is in debt. Returns whether any had work, or may have some: a queue
    /// that had no turn.
    ///
    /// A queue pays for its turns with the time that they took (surplus round robin): however much
    /// work a guest puts into one frame, it gets its share of the worker.
    fn round(&mut self, now: Instant) -> bool {
        self.rounds += 1;
        self.activity.begin_round(self.rounds);
        self.turn_ended(now);
        // With nobody to share with, nobody needs to know the time.
        let shared = self.active > 1;
        let least = std::mem::take(&mut self.least_debt);
        let mut began = now;
        (self.active, self.least_debt, self.sleeps) = (0, Duration::MAX, false);
        let mut has_work = false;
        for index in 0..self.slots.len() {
            let Some(slot) = &mut self.slots[index] else { continue };
            if !slot.active {
                self.sleeps |= slot.entry.room_of.is_some();
                continue;
            }
            if shared && !slot.account.has_turn(least) {
                has_work = true;
            } else {
                // A queue that became active after the last round has a turn behind another one's.
                if self.unended.is_some() {
                    began = Instant::now();
                    self.turn_ended(began);
                }
                let turn = self.poll(index, began);
                has_work |= turn == Turn::Worked;
                // A poll that finds nothing takes as long as the clock: the next queue with a turn pays for it.
                if shared && turn != Turn::Dry {
                    let now = Instant::now();
                    let took = now - std::mem::replace(&mut began, now);
                    let has_worked = self.unended.take().is_some();
                    if let Some(slot) = &mut self.slots[index] {
                        slot.account.charge(took);
                        if has_worked {
                            self.state.times.carried(took);
                            slot.turn_ended(self.number, took, now);
                        }
                    }
                    self.ended = Some(now);
                }
            }
            if let Some(slot) = self.slots[index].as_ref().filter(|slot| slot.active) {
                self.active += 1;
                self.least_debt = self.least_debt.min(slot.account.debt());
            }
        }
        has_work
    }

    /// The last turn had ended by `now`.
    #[inline]
    fn turn_ended(&mut self, now: Instant) {
        if let Some((index, began)) = self.unended.take()
            && let Some(slot) = &mut self.slots[index]
        {
            self.state.times.carried(now - began);
            slot.turn_ended(self.number, now - began, now);
        }
    }

    /// One pass over one queue, if it is active.
    fn poll(&mut self, index: usize, now: Instant) -> Turn {
        let is_replaced = self.is_replaced();
        let is_predicted = self.is_predicted(index);
        let slot = self.slots[index].as_mut().filter(|slot| slot.active && !is_replaced);
        let Some(slot) = slot else { return Turn::Dry };
        self.activity.serve(slot.entry.port.serial());
        let mut work = slot.entry.work.lock();
        if let Some((took, end)) = slot.ended.take() {
            slot.entry.record_turn(&mut work, self.number, took, end);
        }
        let done = match &mut *work {
            Work::Carry { queue, ingress, .. } => {
                let (port, carrier, held) = (&slot.entry.port, &self.carrier, &mut self.held);
                ingress.is_predicted = is_predicted;
                // What others have for its port comes first.
                let inbox = slot.inbox().filter(|inbox| inbox.has_work());
                let before = inbox.map(|inbox| carrier.empty_inbox(port, *queue, inbox, held));
                let carried = carrier.carry(port, ingress, held, now);
                carried.map(|carried| before.map_or(carried, |before| carried.after(before)))
            }
            Work::Serve(task) => task.step().map(|worked| match worked {
                true => Progress::Worked { frames: 0, bytes: 0 },
                false => Progress::Dry,
            }),
            Work::Nothing => Ok(Progress::Dry),
        };
        let progress = match done {
            Ok(progress) => progress,
            Err(Broken(reason)) => {
                drop(work);
                self.fail(index, reason);
                return Turn::Ended;
            }
        };
        slot.blocked = progress == Progress::Blocked;
        match progress {
            Progress::Worked { frames, bytes } => {
                work.worked(frames);
                let (armed, due) = (work.after_turn(now), work.due());
                // After a turn that was predicted, its event tells of more frames.
                let is_drained = self.poller.limit().is_zero() && work.is_drained()
                    || is_predicted && work.is_empty();
                drop(work);
                slot.worked(now);
                self.poller.worked(frames, bytes, || now);
                self.unended = Some((index, now));
                self.set_armed(index, armed, due, now);
                self.learn(index, frames);
                if is_drained {
                    self.arm(index, now);
                }
                return Turn::Worked;
            }
            Progress::Dry if self.poller.is_always() && work.may_linger() => {
                return Turn::Dry;
            }
            Progress::Dry
                if work.may_linger()
                    && slot.has_worked_within(now, self.poller.limit() * LINGER) =>
            {
                return Turn::Dry;
            }
            Progress::Dry | Progress::Blocked => {}
        }
        drop(work);
        if is_predicted {
            self.learn(index, 0);
        }
        self.arm(index, now);
        Turn::Ended
    }

    /// Arms a queue or a task, if it is active.
    fn arm(&mut self, index: usize, now: Instant) {
        // It may have slept in the one before.
        if self.is_replaced() {
            return;
        }
        let Some(slot) = self.slots[index].as_mut().filter(|slot| slot.active) else { return };
        self.activity.serve(slot.entry.port.serial());
        let mut work = slot.entry.work.lock();
        let has_frames = slot.inbox().is_some_and(|inbox| !inbox.arm(self.number, slot.blocked));
        let armed = match work.arm() {
            Ok(_) if has_frames => Ok((Armed::Ready, false)),
            Ok(Armed::Asleep) if !slot.blocked => match work.pause(now) {
                Some(end) => Ok((Armed::Until(end), true)),
                None => Ok((Armed::Asleep, false)),
            },
            Ok(armed @ (Armed::Until(due) | Armed::AsleepPast(due))) if !slot.blocked => {
                let end = work.pause(now);
                Ok(end.map_or((armed, false), |end| (Armed::Until(end.min(due)), true)))
            }
            other => other.map(|armed| (armed, false)),
        };
        let due = work.due();
        drop(work);
        match armed {
            Ok((armed, pauses)) => {
                if pauses {
                    slot.rest(&self.epoll);
                }
                self.set_armed(index, armed, due, now);
            }
            Err(Broken(reason)) => self.fail(index, reason),
        }
    }

    /// Notes how a queue or a task waits, and when it must have another turn while frames wait.
    fn set_armed(&mut self, index: usize, armed: Armed, late: Option<Duration>, now: Instant) {
        let Some(slot) = self.slots[index].as_mut() else { return };
        slot.active = armed == Armed::Ready;
        slot.set_takes_frames(&self.epoll, !slot.blocked && !matches!(armed, Armed::Until(_)));
        let (until, past) = match armed {
            Armed::Until(due) => (Some(due), None),
            Armed::AsleepPast(past) => (None, Some(past)),
            Armed::Ready | Armed::Asleep => (None, None),
        };
        let late = late.map(|due| self.shared.started + due);
        slot.set_due(until.into_iter().chain(late).min(), past, now);
        if slot.entry.room_of.is_none() && matches!(armed, Armed::Until(_)) {
            slot.rest(&self.epoll);
        }
    }

    /// Drops a queue that cannot be used any more, and reports it.
    fn fail(&mut self, index: usize, reason: String) {
        if let Some(slot) = self.slots[index].take() {
            let removed = self.state.remove(|entry| std::ptr::eq(entry, &raw const *slot.entry));
            slot.forget_events(&self.epoll);
            // While this thread slept, another queue may have taken its place; the new one is not broken.
            if !removed.is_empty() {
                self.shared.fail(&slot.entry.port, reason);
            }
        }
    }
}

/// Steps that [`LockstepWorker::run`] makes at most: more than any burst needs that a ring can hold.
const STEPS: u32 = 1 << 20;

/// The worker of a datapath that has no thread. It does nothing between two calls.
pub struct LockstepWorker {
    worker: Worker,
    events: Vec<epoll::Event>,
}

impl LockstepWorker {
    pub(crate) fn new(worker: Worker) -> Self {
        Self { worker, events: Vec::with_capacity(64) }
    }

    /// Works until there is nothing to do. Returns false if there is no end.
    pub fn run(&mut self) -> bool {
        (0..STEPS).any(|_| !self.worker.step(&mut self.events))
    }
}
