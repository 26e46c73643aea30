//! The contexts of a card that are receive queues of guests' interfaces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use cdnafront::{Hypercalls, Interface, Leftover, LentCounts, LentIngress, Loan};
use control_socket::GuestQueueStatus;
use datapath::{Datapath, IngressId, Port};
use hypervisor::Hypervisor;
use machine::{Domain, Machine};
use netdev::Device;
use nic_session::channel::GuestEnd;
use port::{Doorbell, Ingress, Lender, LentMemory};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{info, warn};

use super::card::Place;
use super::cards::Nics;
use super::channel::Channel;
use super::uplink::DirectCalls;
use crate::context::ContextDevice;
use crate::daemon::backends::VifId;
use crate::daemon::event::PortEvents;
use crate::daemon::ports::guest_queues::{GuestQueues, Receiver};
use crate::daemon::ports::port_event::{PortEvent, QueueChange};
use crate::daemon::thread::{spawn, spawn_for_client};
use crate::daemon::wrap::Wrappers;
use crate::program::text;

/// The queues of one uplink.
pub struct CardQueues {
    nics: Arc<Nics>,
    events: PortEvents,
    queues: BTreeMap<VifId, CardQueue>,
    /// The uplink's port, while it has one.
    port: Option<Arc<Port>>,
}

struct CardQueue {
    name: String,
    context: u32,
    counts: Arc<LentCounts>,
    receiving: Receiving,
    /// None if the interface cannot have a queue.
    thread: Option<(Arc<Stop>, JoinHandle<()>)>,
}

/// The receiving side of a queue.
enum Receiving {
    Down,
    /// It waits for the uplink's port.
    Waiting(Box<dyn Ingress>),
    Added(IngressId),
}

impl CardQueues {
    /// The queues of an uplink, which hears of them: none yet.
    pub fn new(nics: &Arc<Nics>, events: PortEvents) -> Self {
        Self { nics: nics.clone(), events, queues: BTreeMap::new(), port: None }
    }

    fn open(&self, interface: &Receiver<'_>) -> Option<CardQueue> {
        let Receiver { id, guest, name, port, .. } = *interface;
        let place = self.nics.queue_place(guest, id.handle as usize)?;
        let domain = self.nics.machine().peer(id.domain).ok()?;
        let (card, slot) = &place;
        let context = card.context_of(*slot).number().into();
        let (name, counts) = (name.to_owned(), Arc::<LentCounts>::default());
        let receiving = Receiving::Down;
        let Some(memory) = port.lent_memory(0) else {
            warn!(
                guest = name,
                "its frontend takes responses in order only, so frames for it are copied"
            );
            return Some(CardQueue { name, context, counts, receiving, thread: None });
        };
        let stop = Arc::new(Stop::new().ok()?);
        let served = ServedQueue {
            id,
            name: name.clone(),
            place,
            domain,
            lender: port.lender(0),
            memory,
            counts: counts.clone(),
            events: self.events.clone(),
            stop: stop.clone(),
        };
        let machine = self.nics.machine().clone();
        let thread = spawn("guest queue", move || served.run(&machine)).ok()?;
        Some(CardQueue { name, context, counts, receiving, thread: Some((stop, thread)) })
    }
}

impl CardQueue {
    /// Adds its receiving side to the uplink's port, if both are there.
    fn add(&mut self, port: Option<&Arc<Port>>, datapath: &Datapath, wrappers: &Wrappers) {
        let Some(port) = port else { return };
        self.receiving = match std::mem::replace(&mut self.receiving, Receiving::Down) {
            Receiving::Waiting(ingress) => {
                // The card coalesces its interrupts.
                let ingress = wrappers.wrap_ingress(ingress);
                Receiving::Added(datapath.add_ingress(port, ingress, None))
            }
            other => other,
        };
    }

    /// Drops its receiving side.
    fn remove(&mut self, datapath: &Datapath) {
        if let Receiving::Added(id) = std::mem::replace(&mut self.receiving, Receiving::Down) {
            datapath.remove_ingress(id);
        }
    }
}

impl GuestQueues for CardQueues {
    fn assign(&mut self, interface: &Receiver<'_>, _: &Datapath, _: &Wrappers) {
        if !self.queues.contains_key(&interface.id)
            && let Some(queue) = self.open(interface)
        {
            self.queues.insert(interface.id, queue);
        }
    }

    fn release(&mut self, id: VifId, datapath: &Datapath) {
        let Some(mut queue) = self.queues.remove(&id) else { return };
        queue.remove(datapath);
        if let Some((stop, thread)) = queue.thread {
            stop.set();
            // It ends when the card is quiet. A panic has ended the daemon.
            let _ = thread.join();
        }
    }

    fn status(&self) -> Vec<GuestQueueStatus> {
        let status = |queue: &CardQueue| GuestQueueStatus {
            queue: queue.context,
            guest: Some(queue.name.clone()),
            reason: queue.counts.refusal().map(str::to_owned),
            direct: queue.counts.direct(),
            copied: Some(queue.counts.copied())
                .filter(|count| *count > 0)
                .map(|count| ("no_buffers".to_owned(), count))
                .into_iter()
                .collect(),
            ..GuestQueueStatus::default()
        };
        self.queues.values().map(status).collect()
    }

    fn plugged(&mut self, port: Option<&Arc<Port>>, datapath: &Datapath, wrappers: &Wrappers) {
        self.port = port.cloned();
        for queue in self.queues.values_mut() {
            match port {
                Some(_) => queue.add(port, datapath, wrappers),
                None => queue.remove(datapath),
            }
        }
    }

    fn changed(&mut self, change: QueueChange, datapath: &Datapath, wrappers: &Wrappers) {
        match change {
            QueueChange::Up { id, ingress } => {
                // Otherwise it was released meanwhile.
                if let Some(queue) = self.queues.get_mut(&id) {
                    queue.receiving = Receiving::Waiting(ingress);
                    queue.add(self.port.as_ref(), datapath, wrappers);
                }
            }
            QueueChange::Down { id } => {
                if let Some(queue) = self.queues.get_mut(&id) {
                    queue.remove(datapath);
                }
            }
        }
    }
}

/// How long the card may take to give the context back.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// How often a thread that waits for the control thread checks whether it must end.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Ends a queue's thread.
struct Stop {
    is_set: AtomicBool,
    doorbell: Arc<Doorbell>,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self { is_set: AtomicBool::new(false), doorbell: Arc::new(Doorbell::new()?) })
    }

    fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

/// A queue, for its thread. Its context is assigned to the guest's domain, so the card reaches no other memory through it; the driver domain
/// has its pages and drives it.
struct ServedQueue {
    id: VifId,
    /// The port's name of its interface.
    name: String,
    place: Place,
    domain: Arc<Domain>,
    lender: Arc<dyn Lender>,
    memory: LentMemory,
    counts: Arc<LentCounts>,
    /// Of the uplink.
    events: PortEvents,
    stop: Arc<Stop>,
}

impl ServedQueue {
    /// Serves it until it is stopped.
    fn run(self, machine: &Machine) {
        if let Err(error) = self.serve(machine) {
            warn!(
                guest = self.name,
                error, "frames for it are copied: it has no queue of the card"
            );
        }
    }

    fn open(&self, machine: &Machine) -> Result<ContextDevice, String> {
        let (ours, theirs) = seqpacket::pair().map_err(text)?;
        let places = vec![self.place.clone()];
        let channel = Channel::new(Arc::new(ours), machine.clone(), self.domain.id(), places);
        let channel = channel.map_err(text)?;
        spawn_for_client("queue context", move || channel.serve()).map_err(text)?;
        ContextDevice::without_memory(&Arc::new(GuestEnd::new(theirs)), 0)
    }

    /// Connects the context whenever the card serves it.
    fn serve(&self, machine: &Machine) -> Result<(), String> {
        let device = self.open(machine)?;
        while !self.stop.is_set() {
            let leftover = Arc::<Leftover>::default();
            let Some((interface, ingress)) = self.connect(&device, &leftover)? else {
                self.wait(&device)?;
                continue;
            };
            info!(guest = self.name, "has a queue of the card");
            let (id, ingress) = (self.id, Box::new(ingress));
            self.events.tell(PortEvent::Queue(QueueChange::Up { id, ingress }));
            while interface.is_open() && !self.stop.is_set() && self.counts.refusal().is_none() {
                self.wait(&device)?;
                device.take_changes();
            }
            self.down();
            // Returns when the card touches no buffer any more.
            Box::new(interface).close(CLOSE_LIMIT);
            self.lender.take_back(&leftover.take());
            // The guest lends pages that it has given up. The context is free, so the uplink's gets the guest's frames.
            if let Some(refusal) = self.counts.refusal() {
                return Err(refusal.to_owned());
            }
        }
        Ok(())
    }

    fn connect(
        &self,
        device: &ContextDevice,
        leftover: &Arc<Leftover>,
    ) -> Result<Option<(Interface, LentIngress)>, String> {
        let Self { lender, memory, counts, .. } = self;
        let loan = Loan {
            lender: lender.clone(),
            id: memory.lender,
            counts: counts.clone(),
            refused: self.stop.doorbell.clone(),
        };
        let calls =
            || -> Box<dyn Hypercalls> { Box::new(DirectCalls::new(&self.place, &self.domain)) };
        device.connect_lent(memory, loan, leftover, &calls)
    }

    /// Has the receiving side dropped. Who stops the queue has done it already, and waits for this thread.
    fn down(&self) {
        if self.stop.is_set() {
            return;
        }
        let done = self.events.tell(PortEvent::Queue(QueueChange::Down { id: self.id }));
        while let Err(mpsc::RecvTimeoutError::Timeout) = done.recv_timeout(CHECK_INTERVAL) {
            if self.stop.is_set() {
                return;
            }
        }
    }

    /// Waits for a change of the assignment, or for the end.
    fn wait(&self, device: &ContextDevice) -> Result<(), String> {
        let mut fds = [
            PollFd::from_borrowed_fd(device.changes(), PollFlags::IN),
            PollFd::new(&*self.stop.doorbell, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(text)?;
        Ok(())
    }
}
