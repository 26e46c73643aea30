//! The queues of an uplink's device, and what is seen of the device beside its frames.

use std::io;
use std::sync::Arc;

use control_socket::XdpQueueStatus;
use hypervisor::Meter;
use port::{Egress, Ingress, Queue};
use tracing::{info, warn};
use uplink::packet::SocketDrops;
use uplink::tap::TapQueue;
use uplink::{
    BufferOptions, Buffers, TapEgress, TapIngress, XdpNic, XdpNicReceiver, XdpNicSender,
    XdpNicSocket, XdpNicWatch,
};

use super::uplink_device::Shared;
use crate::config::{ReceiveBuffers, Uplink, UplinkKind};
use crate::daemon::platform::{BufferMemory, DeviceServices};

/// The queues that all guests share, for the switch. `spare` buffers of each may be kept by guests.
pub(super) fn shared(
    uplink: &Uplink,
    shared: Shared,
    spare: usize,
    services: &DeviceServices,
) -> io::Result<(Vec<Queue>, Watch, Handles)> {
    match shared {
        Shared::Taps(taps) => of_taps(uplink, taps, spare, services),
        Shared::Nic(nic) => of_nic(uplink, nic, &services.meter),
    }
}

/// Handles of an uplink's queues, for a side in the place of one in which a worker sleeps.
pub(super) enum Handles {
    Taps(Vec<Arc<TapQueue>>, DeviceServices),
    Nic(Vec<(XdpNicReceiver, XdpNicSender)>),
}

impl Handles {
    /// Another ingress side of a queue.
    pub(super) fn ingress(&self, uplink: &Uplink, queue: usize) -> Option<Box<dyn Ingress>> {
        match self {
            Self::Taps(taps, services) => {
                let tap = taps.get(queue)?.clone();
                let buffers = buffers(uplink, 1, 0, &*services.memory).ok()?.pop()?;
                Some(Box::new(TapIngress::new(services.meter.clone(), tap, buffers)))
            }
            Self::Nic(queues) => Some(Box::new(queues.get(queue)?.0.ingress())),
        }
    }

    /// Another egress side of a queue.
    pub(super) fn egress(&self, uplink: &Uplink, queue: usize) -> Option<Box<dyn Egress>> {
        match self {
            Self::Taps(taps, DeviceServices { meter, memory }) => {
                let (tap, features) = (taps.get(queue)?.clone(), uplink.capabilities.features());
                let egress = TapEgress::new(meter.clone(), tap, features);
                Some(Box::new(egress.within(memory.clone())))
            }
            Self::Nic(queues) => Some(Box::new(queues.get(queue)?.1.egress())),
        }
    }
}

fn of_taps(
    uplink: &Uplink,
    taps: Vec<TapQueue>,
    spare: usize,
    services: &DeviceServices,
) -> io::Result<(Vec<Queue>, Watch, Handles)> {
    let features = uplink.capabilities.features();
    let DeviceServices { meter, memory } = services;
    let buffers = buffers(uplink, taps.len(), spare, &**memory)?;
    let taps: Vec<_> = taps.into_iter().map(Arc::new).collect();
    let watch = match (uplink.kind, taps.first()) {
        (UplinkKind::Macvtap, Some(first)) => Watch::Queue(first.clone()),
        (UplinkKind::AfPacket | UplinkKind::AfXdp, Some(first)) => {
            Watch::PacketSockets(first.clone(), SocketDrops::of(taps.clone()))
        }
        _ => Watch::Nothing,
    };
    let queue = |(tap, buffers): (Arc<TapQueue>, Buffers)| {
        let egress = TapEgress::new(meter.clone(), tap.clone(), features).within(memory.clone());
        let ingress = Box::new(TapIngress::new(meter.clone(), tap, buffers));
        Queue { egress: Box::new(egress), ingress }
    };
    let handles = Handles::Taps(taps.clone(), services.clone());
    Ok((taps.into_iter().zip(buffers).map(queue).collect(), watch, handles))
}

fn of_nic(
    uplink: &Uplink,
    nic: XdpNic,
    meter: &Arc<Meter>,
) -> io::Result<(Vec<Queue>, Watch, Handles)> {
    let XdpNic { queues, watch, in_driver } = nic;
    let sockets: Vec<_> = queues.iter().map(uplink::XdpNicQueue::socket).collect();
    let zero_copy = sockets.iter().filter(|socket| socket.is_zero_copy()).count();
    info!(
        device = uplink.nic_name(),
        in_driver,
        queues = sockets.len(),
        zero_copy,
        "is taken over by AF_XDP: the host's network stack gets none of its frames"
    );
    let split = queues.into_iter().map(|queue| queue.split(meter));
    let handles = split.collect::<io::Result<Vec<_>>>()?;
    let queues = handles.iter().map(|(receiver, sender)| Queue {
        ingress: Box::new(receiver.ingress()),
        egress: Box::new(sender.egress()),
    });
    Ok((queues.collect(), Watch::Nic { watch, sockets }, Handles::Nic(handles)))
}

/// What is seen of a device beside its frames.
pub(super) enum Watch {
    /// A read says when it was deleted.
    Nothing,
    /// No read says so.
    Queue(Arc<TapQueue>),
    /// The same, and they may have had no room for frames.
    PacketSockets(Arc<TapQueue>, SocketDrops),
    /// A NIC that is taken over, and its sockets.
    Nic { watch: XdpNicWatch, sockets: Vec<Arc<XdpNicSocket>> },
}

impl Watch {
    /// Checks the device. Returns the name of the interface if it was deleted.
    pub(super) fn check(&self) -> Option<&str> {
        let (is_deleted, name) = match self {
            Self::Nothing => return None,
            Self::Queue(queue) | Self::PacketSockets(queue, _) => {
                (queue.is_deleted(), queue.name())
            }
            Self::Nic { watch, .. } => {
                watch.check_mtu();
                (watch.is_deleted(), watch.name())
            }
        };
        is_deleted.then_some(name)
    }

    /// What is wrong with the device although it is there, and what to do about it.
    pub(super) fn complaint(&self) -> Option<String> {
        let Self::Nic { watch, sockets } = self else { return None };
        let (name, served) = (watch.name(), sockets.len());
        if sockets.first().is_some_and(|socket| !socket.has_program()) {
            return Some(format!(
                "{name} does not run pvnet's XDP program any more, so its frames go to the host"
            ));
        }
        let unserved = std::num::NonZeroU32::new(watch.unserved_queues())?;
        Some(format!(
            "{name} has {unserved} receive queue(s) more than when it was taken over, whose frames go to the host: take them away \
             (ethtool -L {name}, back to {served}), or restart pvnet"
        ))
    }

    /// Frames that the kernel dropped because sockets were full.
    pub(super) fn socket_drops(&self) -> Option<u64> {
        match self {
            Self::Nothing | Self::Queue(_) => None,
            Self::PacketSockets(_, drops) => Some(drops.read()),
            Self::Nic { sockets, .. } => Some(sockets.iter().map(|one| one.dropped()).sum()),
        }
    }

    /// The AF_XDP sockets.
    pub(super) fn xdp(&self) -> Vec<XdpQueueStatus> {
        let Self::Nic { sockets, .. } = self else { return Vec::new() };
        let status = |socket: &Arc<XdpNicSocket>| XdpQueueStatus {
            queue: socket.queue(),
            zero_copy: socket.is_zero_copy(),
            dropped: socket.dropped(),
        };
        sockets.iter().map(status).collect()
    }
}

/// Receive buffers for each queue, and `spare` ones where guests may keep them. Warns once if the
/// kernel gives no 2 MiB pages.
pub(super) fn buffers(
    uplink: &Uplink,
    queues: usize,
    spare: usize,
    memory: &BufferMemory,
) -> io::Result<Vec<Buffers>> {
    let options = BufferOptions {
        large: uplink.large_receive,
        zeroed_pages: uplink.receive_buffers == ReceiveBuffers::ZeroedPages,
        huge_pages: uplink.huge_pages,
    };
    let make = |_| match spare {
        // A frame in separate pages is not contiguous, so it cannot be kept.
        1.. if !options.zeroed_pages => Buffers::with_spares(options, spare),
        _ => Buffers::within(options, memory),
    };
    let buffers = (0..queues).map(make).collect::<io::Result<Vec<_>>>()?;
    if uplink.huge_pages
        && let Some(error) = buffers.iter().find_map(|buffers| buffers.populate_huge().err())
    {
        warn!(
            uplink = uplink.name, %error,
            "its buffers have pages of 4 KiB, because the kernel gave none of 2 MiB; check \
             /sys/kernel/mm/transparent_hugepage/enabled, or set huge_pages = false"
        );
    }
    Ok(buffers)
}
