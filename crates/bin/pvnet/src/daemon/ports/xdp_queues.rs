//! The receive queues of a NIC that are kept for guests, each with an AF_XDP socket.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control_socket::GuestQueueStatus;
use datapath::{Datapath, IngressId, Port};
use port::LentMemory;
use switch::MacAddr;
use tracing::{info, warn};
use uplink::{Xdp, XdpCounts, XdpIngress, XdpSocket, XdpSocketError};

use super::guest_queues::{GuestQueues, Receiver};
use crate::daemon::backends::VifId;
use crate::daemon::wrap::Wrappers;
use crate::netns;
use crate::steering_rule::SteeringRule;

/// Far longer than the kernel takes to free a closed socket.
const FREED: Duration = Duration::from_secs(5);

/// The receive queues of one uplink.
pub(super) struct XdpQueues {
    namespace: Option<String>,
    device: String,
    xdp: Xdp,
    queues: Vec<ReceiveQueue>,
    /// Interfaces for which the kernel gave no socket.
    refused: BTreeSet<VifId>,
    /// The uplink's port.
    port: Arc<Port>,
}

struct ReceiveQueue {
    number: u32,
    counts: Arc<XdpCounts>,
    /// Frames that former sockets of the queue have dropped.
    dropped: u64,
    /// When the last socket was closed.
    closed: Option<Instant>,
    holder: Option<Holder>,
}

/// An interface that has a queue.
struct Holder {
    id: VifId,
    name: String,
    mac: MacAddr,
    socket: Arc<XdpSocket>,
    ingress: IngressId,
    /// The NIC's rule that puts its frames into the queue.
    rule: Option<SteeringRule>,
}

impl XdpQueues {
    /// Keeps these receive queues of a NIC.
    pub(super) fn new(
        namespace: Option<&str>,
        device: &str,
        xdp: Xdp,
        queues: Vec<u32>,
        port: Arc<Port>,
    ) -> Self {
        info!(device, in_driver = xdp.is_in_driver(), queues = queues.len(), "has an XDP program");
        let queue = |number| ReceiveQueue {
            number,
            counts: Arc::default(),
            dropped: 0,
            closed: None,
            holder: None,
        };
        Self {
            namespace: namespace.map(ToOwned::to_owned),
            device: device.to_owned(),
            xdp,
            queues: queues.into_iter().map(queue).collect(),
            refused: BTreeSet::new(),
            port,
        }
    }

    /// Opens a socket for an interface, in the NIC's namespace.
    fn open(&self, queue: u32, memory: &LentMemory) -> Result<XdpSocket, XdpSocketError> {
        let open = || Ok(self.xdp.open(queue, &memory.region));
        let inside = netns::inside(self.namespace.as_deref(), open);
        inside.unwrap_or_else(|error| Err(XdpSocketError::System { step: "namespace", error }))
    }

    /// Frames for an interface are copied from now on.
    fn refuse(&mut self, receiver: &Receiver<'_>, why: &dyn Display) {
        warn!(guest = receiver.name, %why, "frames for it are copied: it has no queue of the uplink");
        self.refused.insert(receiver.id);
    }
}

impl GuestQueues for XdpQueues {
    fn assign(&mut self, receiver: &Receiver<'_>, datapath: &Datapath, wrappers: &Wrappers) {
        let Receiver { id, name, mac, port, .. } = *receiver;
        let has =
            |queue: &ReceiveQueue| queue.holder.as_ref().is_some_and(|holder| holder.id == id);
        if self.refused.contains(&id) || self.queues.iter().any(has) {
            return;
        }
        let Some(free) = self.queues.iter().position(|queue| queue.holder.is_none()) else {
            return;
        };
        let Some(memory) = port.lent_memory(0) else {
            return self.refuse(receiver, &"its frontend takes responses in order only");
        };
        let number = self.queues[free].number;
        let socket = match self.open(number, &memory) {
            Ok(socket) => socket,
            // The kernel frees the socket of the guest before some time after it was closed.
            Err(XdpSocketError::Taken { .. })
                if self.queues[free].closed.is_some_and(|closed| closed.elapsed() < FREED) =>
            {
                return;
            }
            Err(error) => return self.refuse(receiver, &error),
        };
        let (socket, counts) = (Arc::new(socket), self.queues[free].counts.clone());
        let ingress = XdpIngress::new(socket.clone(), mac, port.lender(0), memory, counts);
        let ingress = wrappers.wrap_ingress(Box::new(ingress));
        // The NIC coalesces its interrupts.
        let ingress = datapath.add_ingress(&self.port, ingress, None);
        let namespace = self.namespace.clone();
        let ethtool = move |arguments: &[&str]| netns::ethtool(namespace.as_deref(), arguments);
        let rule = SteeringRule::add(ethtool, &self.device, mac, number);
        let rule = rule.inspect_err(|error| {
            info!(
                guest = name, queue = number, error,
                "no rule of the NIC puts its frames into this queue, so only those that happen to come there are not copied"
            );
        });
        let rule = rule.ok().flatten();
        let holder = Holder { id, name: name.to_owned(), mac, socket, ingress, rule };
        // After that, so that the first frame finds buffers.
        if let Err(error) = self.xdp.steer(mac, &holder.socket) {
            datapath.remove_ingress(holder.ingress);
            return self.refuse(receiver, &error);
        }
        info!(guest = name, queue = number, "has a queue of the uplink");
        self.queues[free].holder = Some(holder);
    }

    fn release(&mut self, id: VifId, datapath: &Datapath) {
        self.refused.remove(&id);
        for ReceiveQueue { holder, dropped, closed, .. } in &mut self.queues {
            let Some(Holder { mac, socket, ingress, rule, .. }) =
                holder.take_if(|holder| holder.id == id)
            else {
                continue;
            };
            drop(rule);
            // First the kernel stops writing, then the buffers go back.
            self.xdp.forget(mac, &socket);
            datapath.remove_ingress(ingress);
            *dropped += socket.dropped();
            *closed = Some(Instant::now());
        }
    }

    fn status(&self) -> Vec<GuestQueueStatus> {
        let status = |queue: &ReceiveQueue| {
            let ReceiveQueue { number, counts, dropped, holder, .. } = queue;
            let by_now = holder.as_ref().map_or(0, |holder| holder.socket.dropped());
            GuestQueueStatus {
                queue: *number,
                guest: holder.as_ref().map(|holder| holder.name.clone()),
                direct: counts.direct(),
                misdirected: counts.misdirected(),
                dropped: dropped + by_now,
                ..GuestQueueStatus::default()
            }
        };
        self.queues.iter().map(status).collect()
    }
}
