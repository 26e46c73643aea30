//! The queues that an uplink keeps for guests: which guest has which.

use std::sync::Arc;

use control_socket::GuestQueueStatus;
use datapath::{Datapath, Port};
use switch::{MacAddr, PortId};
use tracing::{info, warn};
use uplink::{Copied, GuestQueue, Steering};

use super::port_event::QueueChange;
use crate::daemon::backends::VifId;
use crate::daemon::wrap::Wrappers;

/// The queues of one uplink for guests.
pub(in crate::daemon) trait GuestQueues: Send {
    /// Gives a guest's interface a queue, if one is free and it has none. The switch knows that the interface's
    /// address is at its port.
    fn assign(&mut self, interface: &Receiver<'_>, datapath: &Datapath, wrappers: &Wrappers);

    /// Takes the queue of an interface away. When this returns, none of its buffers is lent.
    fn release(&mut self, id: VifId, datapath: &Datapath);

    /// The state of each queue.
    fn status(&self) -> Vec<GuestQueueStatus>;

    /// The uplink has another port, or none.
    fn plugged(&mut self, _port: Option<&Arc<Port>>, _datapath: &Datapath, _wrappers: &Wrappers) {}

    /// A queue is there, or is there no more.
    fn changed(&mut self, _change: QueueChange, _datapath: &Datapath, _wrappers: &Wrappers) {}
}

/// A guest's interface that may have a queue.
pub(in crate::daemon) struct Receiver<'a> {
    pub(in crate::daemon) id: VifId,
    /// Its guest's name.
    pub(in crate::daemon) guest: &'a str,
    /// Its port's name.
    pub(in crate::daemon) name: &'a str,
    pub(in crate::daemon) mac: MacAddr,
    pub(in crate::daemon) port: &'a Arc<Port>,
}

/// Queues of a tap or macvtap: a fixed pool.
pub(super) struct TapQueues {
    steering: Steering,
    queues: Vec<TapQueue>,
    /// The uplink's port.
    port: PortId,
}

struct TapQueue {
    number: u32,
    queue: Arc<GuestQueue>,
    holder: Option<Holder>,
}

struct Holder {
    id: VifId,
    name: String,
    mac: MacAddr,
}

impl TapQueues {
    /// The queues of a tap from number `first` on.
    pub(super) fn new(
        steering: Steering,
        first: usize,
        queues: impl Iterator<Item = Arc<GuestQueue>>,
        port: PortId,
    ) -> Self {
        let first = u32::try_from(first).unwrap_or(u32::MAX);
        let queues = (first..).zip(queues);
        let queues = queues.map(|(number, queue)| TapQueue { number, queue, holder: None });
        Self { steering, queues: queues.collect(), port }
    }
}

impl GuestQueues for TapQueues {
    fn assign(&mut self, interface: &Receiver<'_>, _: &Datapath, _: &Wrappers) {
        let Receiver { id, name, mac, port, .. } = *interface;
        let has = |queue: &TapQueue| queue.holder.as_ref().is_some_and(|holder| holder.id == id);
        if self.queues.iter().any(has) {
            return;
        }
        let free = |queue: &&mut TapQueue| queue.holder.is_none() && queue.queue.is_free();
        let Some(TapQueue { number, queue, holder }) = self.queues.iter_mut().find(free) else {
            return;
        };
        let memory = port.lent_memory(0);
        if memory.is_none() {
            warn!(
                guest = name,
                "its frontend has no buffers for a queue of its own, so frames for it are copied"
            );
        }
        queue.assign(mac, port.lender(0), memory);
        // After that, so that the queue's first frame finds its guest.
        if let Err(error) = self.steering.steer(mac, *number) {
            warn!(guest = name, %error, "it has no queue of the uplink");
            queue.release();
            return;
        }
        info!(guest = name, queue = *number, "has a queue of the uplink");
        *holder = Some(Holder { id, name: name.to_owned(), mac });
    }

    fn release(&mut self, id: VifId, datapath: &Datapath) {
        for TapQueue { queue, holder, .. } in &mut self.queues {
            if let Some(Holder { mac, .. }) = holder.take_if(|holder| holder.id == id) {
                self.steering.forget(mac);
                queue.release();
                datapath.synchronise(self.port);
            }
        }
    }

    fn status(&self) -> Vec<GuestQueueStatus> {
        let status = |TapQueue { number, queue, holder }: &TapQueue| {
            let counts = queue.counts();
            let copied = Copied::ALL.into_iter().map(|why| (why.name(), counts.copied(why)));
            let copied = copied.filter(|(_, count)| *count > 0);
            GuestQueueStatus {
                queue: *number,
                guest: holder.as_ref().map(|holder| holder.name.clone()),
                direct: counts.direct(),
                copied: copied.map(|(why, count)| (why.to_owned(), count)).collect(),
                misdirected: counts.misdirected(),
                late: counts.late(),
                ..GuestQueueStatus::default()
            }
        };
        self.queues.iter().map(status).collect()
    }
}
