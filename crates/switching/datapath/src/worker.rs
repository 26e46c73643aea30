//! A thread that owns ingress queues: polls those with work, sleeps when none has any.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hypervisor::{EventChannel, Hypervisor};
use netback::ControlRing;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use switch::PortId;
use tracing::{debug, error};

use crate::carry::{Carrier, Progress};
use crate::port::RoomEvent;
use crate::{Ingress, Port, Shared};

/// Most workers: who waits for a queue is noted in one word.
pub(crate) const MAX: usize = 64;
/// The token of a worker's own waker; queues have their index.
const WAKER: u64 = u64::MAX;
/// A busy worker looks for events of its other queues once in so many rounds.
const LOOK_EVERY: u32 = 16;
/// Frames that wait for room are tried again after this, so that a stall is noticed even if
/// its guest never says anything again.
const RETRY: Duration = Duration::from_millis(50);

/// What a worker is told.
#[expect(clippy::large_enum_variant, reason = "sent once in a queue's life")]
pub(crate) enum Command<H: Hypervisor> {
    Add { port: Arc<Port<H>>, work: Work<H> },
    Remove { port: PortId, done: mpsc::Sender<()> },
    Stop,
}

/// What a worker does for a port.
#[expect(clippy::large_enum_variant, reason = "one a queue, and never moved once it is owned")]
pub(crate) enum Work<H: Hypervisor> {
    /// Carries the frames of a queue, and hears of room in the other direction.
    Carry { queue: usize, ingress: Ingress<H>, room: RoomEvent<H> },
    /// Serves the control ring.
    Serve(ControlRing<H>),
}

impl<H: Hypervisor> Work<H> {
    /// Asks for an event at the next thing to do; answers whether there is one already.
    fn arm(&mut self) -> Result<bool, String> {
        match self {
            Self::Carry { ingress, .. } => ingress.arm(),
            Self::Serve(ring) => ring.arm().map_err(of_control),
        }
    }

    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (work, room) = match self {
            Self::Carry { ingress, room, .. } => (ingress.fd(), room.fd()),
            Self::Serve(ring) => (ring.event().as_fd(), None),
        };
        std::iter::once(work).chain(room)
    }

    fn take_events(&self) {
        match self {
            Self::Carry { ingress, room, .. } => {
                ingress.take_event();
                room.take();
            }
            Self::Serve(ring) => {
                // A guest that is gone asks nothing more; its end is learnt of elsewhere.
                let _ = ring.event().take();
            }
        }
    }
}

fn of_control(fault: netback::Fault) -> String {
    format!("control ring: {fault}")
}

/// Wakes a worker from any thread. Polled edge-triggered, so it is never read.
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // The counter can not fill up within the life of a machine.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The outside of a worker.
pub(crate) struct WorkerHandle<H: Hypervisor> {
    number: usize,
    thread: u32,
    shared: Arc<Shared<H>>,
    commands: mpsc::Sender<Command<H>>,
    join: Option<JoinHandle<()>>,
}

impl<H: Hypervisor> WorkerHandle<H> {
    pub(crate) fn send(&self, command: Command<H>) {
        // A worker ends only when it is told to; a command after that needs no answer.
        let _ = self.commands.send(command);
        self.shared.wakers[self.number].wake();
    }

    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    pub(crate) fn join(&mut self) {
        if let Some(join) = self.join.take()
            && join.join().is_err()
        {
            error!(worker = self.number, "worker panicked");
        }
    }
}

/// A queue or a control ring that a worker owns.
struct Slot<H: Hypervisor> {
    port: Arc<Port<H>>,
    work: Work<H>,
    /// Polled; otherwise its event has been asked for.
    active: bool,
    /// Frames wait for room elsewhere.
    blocked: bool,
    last_work: Instant,
}

/// The inside of a worker.
pub(crate) struct Worker<H: Hypervisor> {
    number: usize,
    shared: Arc<Shared<H>>,
    commands: mpsc::Receiver<Command<H>>,
    epoll: OwnedFd,
    slots: Vec<Option<Slot<H>>>,
    carrier: Carrier<H>,
    /// When frames that wait for room were last tried again.
    retried: Instant,
}

impl<H: Hypervisor> Worker<H> {
    pub(crate) fn start(number: usize, shared: Arc<Shared<H>>) -> io::Result<WorkerHandle<H>> {
        let (sender, commands) = mpsc::channel();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = &shared.wakers[number].0;
        epoll::add(&epoll, waker, EventData::new_u64(WAKER), EventFlags::IN | EventFlags::ET)?;
        let (ready, thread) = mpsc::channel();
        let mut worker = Self {
            number,
            commands,
            epoll,
            slots: Vec::new(),
            carrier: Carrier::new(number, shared.clone()),
            shared: shared.clone(),
            retried: Instant::now(),
        };
        let join =
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let id = rustix::thread::gettid().as_raw_nonzero().get();
                if ready.send(id).is_ok() {
                    worker.run();
                }
            })?;
        let thread = thread.recv().map_err(io::Error::other)?;
        let thread = u32::try_from(thread).unwrap_or(0);
        Ok(WorkerHandle { number, thread, shared, commands: sender, join: Some(join) })
    }

    fn run(&mut self) {
        let mut round = 0u32;
        let mut events = Vec::with_capacity(64);
        loop {
            let now = Instant::now();
            self.carrier.begin(now);
            for index in 0..self.slots.len() {
                self.poll(index, now);
            }
            let active = self.slots.iter().flatten().any(|slot| slot.active);
            round = round.wrapping_add(1);
            let timeout = match active {
                true if !round.is_multiple_of(LOOK_EVERY) => continue,
                true => Some(Duration::ZERO),
                false => self.slots.iter().flatten().any(|slot| slot.blocked).then_some(RETRY),
            };
            if !self.wait(timeout, &mut events) {
                return;
            }
        }
    }

    /// One pass over one queue, if it is active.
    fn poll(&mut self, index: usize, now: Instant) {
        let Some(slot) = self.slots[index].as_mut().filter(|slot| slot.active) else { return };
        let done = match &mut slot.work {
            Work::Carry { ingress, .. } => self.carrier.carry(&slot.port, ingress),
            Work::Serve(ring) => match ring.serve() {
                Ok(true) => Ok(Progress::Worked),
                Ok(false) => Ok(Progress::Dry),
                Err(fault) => Err(of_control(fault)),
            },
        };
        let armed = done.and_then(|progress| {
            slot.blocked = progress == Progress::Blocked;
            match progress {
                Progress::Worked => {
                    slot.last_work = now;
                    Ok(true)
                }
                Progress::Dry if now.duration_since(slot.last_work) < self.shared.poll => {
                    std::hint::spin_loop();
                    Ok(true)
                }
                Progress::Dry | Progress::Blocked => slot.work.arm(),
            }
        });
        match armed {
            Ok(more) => slot.active = more,
            Err(reason) => self.fail(index, reason),
        }
    }

    /// Drops a queue that can not be used any more, and says so.
    fn fail(&mut self, index: usize, reason: String) {
        if let Some(slot) = self.slots[index].take() {
            self.forget_events(&slot);
            self.shared.fail(&slot.port, reason);
        }
    }

    /// Waits for events and serves them. Answers false when the worker is to end.
    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<epoll::Event>) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                error!(%error, "epoll");
                return false;
            }
        }
        // Not only when nothing happens: a guest that rings without end (XSA-332) would keep the
        // stall of another from being noticed, and the frames that wait for it from being dropped.
        if events.is_empty() || self.retried.elapsed() >= RETRY {
            self.unblock();
        }
        for event in events.drain(..) {
            match event.data.u64() {
                WAKER => {
                    self.unblock();
                    if !self.obey() {
                        return false;
                    }
                }
                index => self.event(usize::try_from(index).unwrap_or(usize::MAX)),
            }
        }
        true
    }

    /// Frames that waited for room are tried again.
    fn unblock(&mut self) {
        self.retried = Instant::now();
        for slot in self.slots.iter_mut().flatten() {
            slot.active |= slot.blocked;
        }
    }

    /// An event of a queue: it has frames, or it has room for those that wait, or (with one
    /// event channel for both rings) either.
    fn event(&mut self, index: usize) {
        let Some(Some(slot)) = self.slots.get_mut(index) else { return };
        slot.work.take_events();
        slot.active = true;
        let Work::Carry { queue, .. } = slot.work else { return };
        let waiters = slot.port.waiters(queue);
        for worker in (0..self.shared.wakers.len()).filter(|n| waiters & (1 << n) != 0) {
            if worker == self.number {
                self.unblock();
            } else {
                self.shared.wakers[worker].wake();
            }
        }
    }

    fn obey(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add { port, work } => self.add(port, work),
                Command::Remove { port, done } => {
                    self.remove(port);
                    // The caller waits for the answer, or has given up.
                    let _ = done.send(());
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn add(&mut self, port: Arc<Port<H>>, work: Work<H>) {
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(None);
        }
        let slot = Slot {
            port,
            work,
            // What is on the ring already needs no event.
            active: true,
            blocked: false,
            last_work: Instant::now(),
        };
        let data = EventData::new_u64(index as u64);
        let flags = EventFlags::IN | EventFlags::ET;
        for fd in slot.work.fds() {
            match epoll::add(&self.epoll, fd, data, flags) {
                // One event channel for both rings.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => {
                    let reason = format!("waiting for events: {error}");
                    self.shared.fail(&slot.port, reason);
                    return;
                }
            }
        }
        match slot.work {
            Work::Carry { queue, .. } => {
                debug!(worker = self.number, port = slot.port.name(), queue, "queue added");
            }
            Work::Serve(_) => {
                debug!(worker = self.number, port = slot.port.name(), "control ring added");
            }
        }
        self.slots[index] = Some(slot);
    }

    fn remove(&mut self, port: PortId) {
        for index in 0..self.slots.len() {
            let found = self.slots[index].take_if(|slot| slot.port.id() == port);
            if let Some(slot) = found {
                self.forget_events(&slot);
            }
        }
        // Nothing of the port may be left here: not in the worker's copy of the ports either.
        self.carrier.begin(Instant::now());
    }

    fn forget_events(&self, slot: &Slot<H>) {
        for fd in slot.work.fds() {
            // The second of two equal descriptors is gone with the first.
            let _ = epoll::delete(&self.epoll, fd.as_fd());
        }
    }
}
