//! The contexts of a card that are receive queues of guests' interfaces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use cdnafront::LentCounts;
use control_socket::GuestQueueStatus;
use datapath::{Datapath, IngressId, Port};
use hypervisor::Hypervisor;
use port::Ingress;
use tracing::warn;

use super::cards::Nics;
use super::queue::{ServedQueue, Stop};
use crate::daemon::backends::VifId;
use crate::daemon::event::PortEvents;
use crate::daemon::ports::guest_queues::{GuestQueues, Receiver};
use crate::daemon::ports::port_event::QueueChange;
use crate::daemon::thread::spawn;
use crate::daemon::wrap::Wrappers;

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
