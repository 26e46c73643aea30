//! The uplinks of the configuration: their queues come from a device, from a back-end at a socket, or from a card.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use control_socket::{PortState, PortStatus, Reason, TableKind};
use datapath::{Datapath, MemorySleep, Port, PortMemory, PortParts};
use netback::RxChannel;
use port::Coalescing;
use tracing::{info, warn};
use uplink::{DirectIngress, GuestQueue, TapIngress};

use super::back_end::BackEnds;
use super::guest_queues::{GuestQueues, TapQueues};
use super::plugged::PluggedPort;
use super::port_event::{PortEvent, PortId, Transition};
use super::record::{Host, Identity, Record};
use super::source::{Needs, Place, Source};
use super::uplink_device::{self, ForGuests, Opened, UplinkDevice, UplinkInterface, Wanted};
use super::uplink_queues::{self, Handles, Watch};
use super::xdp_queues::XdpQueues;
use crate::config::{self, Config, Effort, PlatformKind, Queues, UplinkKind, taking};
use crate::daemon::error::Error;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::nics::{CardQueues, serve_uplink};
use crate::netns;

/// Receive buffers of each uplink queue that guests may keep at a time. One that needs more copies
/// takes the driver domain's time instead. A ring's worth, so that one guest can be late by a ring.
const SPARE_BUFFERS: usize = 256;

/// The time between two checks of what a device's driver says.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The number of the next uplink.
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Uplink {
    config: config::Uplink,
    /// What was opened while the daemon had all rights.
    prepared: Option<Opened>,
    /// None before it is open.
    opened: Option<Open>,
}

/// What an open uplink has.
enum Open {
    Device(Box<OpenDevice>),
    /// A port of another switch.
    BackEnds(BackEnds),
    /// A card serves it, or will.
    Context,
}

/// A device, and what is seen of it beside its frames.
struct OpenDevice {
    /// For its statistics.
    interface: UplinkInterface,
    _macvtap: Option<netns::MacvtapInterface>,
    watch: Watch,
    handles: Handles,
    /// Whether it was deleted.
    is_deleted: bool,
    /// Whether somebody has taken its tap out of its bridge.
    is_astray: bool,
    /// What else is wrong with it, although it is there, and when it was checked.
    complaint: Option<String>,
    checked: Instant,
}

/// The uplink of a table.
pub(super) fn closed(uplink: &config::Uplink, config: &Config) -> Result<PluggedPort, Error> {
    let id = PortId::Uplink(NEXT.fetch_add(1, Ordering::Relaxed));
    let name = uplink.name.clone();
    let source = Uplink { config: uplink.clone(), prepared: None, opened: None };
    let identity = Identity { id, table: TableKind::Uplink, name };
    PluggedPort::closed(identity, source, uplink.rules(), config)
}

/// The workers on this node, by the nodes of all; none if it makes no difference.
fn near_workers(node: Option<usize>, nodes: &[Option<usize>]) -> Vec<usize> {
    let is_near = |worker: &usize| node.is_some() && nodes[*worker] == node;
    let near: Vec<_> = (0..nodes.len()).filter(is_near).collect();
    if near.len() == nodes.len() { Vec::new() } else { near }
}

/// How many queues of an uplink are kept for guests.
fn guest_queues_of(uplink: &config::Uplink, config: &Config) -> usize {
    match uplink.queues {
        Queues::Shared | Queues::Pairs(_) => 0,
        Queues::PerGuest => {
            uplink.guest_queues.map_or_else(|| config.direct_vifs().count(), usize::from).max(1)
        }
    }
}

impl Uplink {
    /// Has workers on its NIC's NUMA node serve it, where there are some.
    fn prefer_near_workers(&self, port: &Port, datapath: &Datapath) {
        // The names of another namespace's devices are others.
        let node = match self.config.namespace {
            None => cpus::node_of_nic(self.config.nic_name()),
            Some(_) => None,
        };
        let nodes: Vec<_> =
            datapath.loads().iter().map(|load| load.cpu.and_then(cpus::node_of)).collect();
        let near = near_workers(node, &nodes);
        if !near.is_empty() {
            let moved = datapath.prefer(port, &near).len();
            info!(uplink = self.config.name, node, ?near, moved, "workers on the NIC's node");
        }
    }

    /// Attaches the queues of its device.
    fn attach(
        &self,
        device: UplinkDevice,
        port: &mut Record,
        host: &Host,
    ) -> Result<OpenDevice, Error> {
        let UplinkDevice { shared, for_guests, macvtap, interface } = device;
        let (uplink, datapath) = (&self.config, &host.datapath);
        let services = host.platform.device_services();
        let mut vifs = host.config.guests.iter().flat_map(|guest| &guest.vifs);
        // On Xen guests copy from their pools only.
        let is_machine = host.config.daemon.platform == PlatformKind::Machine;
        let are_kept = is_machine && vifs.any(|vif| vif.rx == RxChannel::GuestCopy);
        let spare = if are_kept { SPARE_BUFFERS } else { 0 };
        let no_memory = || Error::system("memory for an uplink");
        let (queues, watch, handles) =
            uplink_queues::shared(uplink, shared, spare, &services).map_err(no_memory())?;
        let first = queues.len();
        let memory = PortMemory { is_replaceable: true, ..self.memory() };
        let coalescing = self.coalescing();
        let parts = PortParts { queues, coalescing, memory, ..PortParts::default() };
        let attached = port.attach(parts, datapath);
        self.prefer_near_workers(&attached, datapath);
        let guest_queues: Option<Box<dyn GuestQueues>> = match for_guests {
            ForGuests::Nothing => None,
            ForGuests::Queues(taps, steering) => {
                // A queue of one guest reads into that guest's pages, so nobody keeps its buffers.
                let buffers = uplink_queues::buffers(uplink, taps.len(), 0, &*services.memory)
                    .map_err(no_memory())?;
                let queues = taps.into_iter().zip(buffers).map(|(tap, buffers)| {
                    let tap = TapIngress::new(services.meter.clone(), Arc::new(tap), buffers);
                    let queue = Arc::<GuestQueue>::default();
                    let ingress = DirectIngress::new(tap, queue.clone(), uplink.large_receive);
                    let ingress = port.wrappers.wrap_ingress(Box::new(ingress));
                    datapath.add_ingress(&attached, ingress, self.coalescing());
                    queue
                });
                Some(Box::new(TapQueues::new(steering, first, queues, attached.id())))
            }
            ForGuests::Sockets(xdp, queues) => {
                let namespace = uplink.namespace.as_deref();
                let queues = XdpQueues::new(namespace, uplink.nic_name(), xdp, queues, attached);
                Some(Box::new(queues))
            }
        };
        port.guest_queues = guest_queues;
        Ok(OpenDevice {
            interface,
            _macvtap: macvtap,
            watch,
            handles,
            is_deleted: false,
            is_astray: false,
            complaint: None,
            checked: Instant::now(),
        })
    }

    /// Waits for the card whose context it is.
    fn wait_for_card(&self, card: &str, port: &mut Record, host: &Host) -> Result<(), Error> {
        port.reason = Some(Reason::NoCard(card.to_owned()));
        let Some(nics) = host.platform.nics() else { return Ok(()) };
        let events = host.events_of(port);
        if self.config.queues == Queues::PerGuest {
            port.guest_queues = Some(Box::new(CardQueues::new(nics, events.clone())));
        }
        let served = serve_uplink(&self.config, nics, host.meter(), events);
        served.map_err(|reason| port.failed(reason))
    }
}

impl OpenDevice {
    /// Notes if part of what it has does not come here.
    fn check_complaint(&mut self, name: &str) {
        // Not at each event: the kernel asks the driver, under the lock of all interfaces.
        if self.checked.elapsed() < CHECK_INTERVAL {
            return;
        }
        self.checked = Instant::now();
        let complaint = self.watch.complaint();
        if complaint != self.complaint {
            match &complaint {
                Some(complaint) => warn!(uplink = name, complaint, "frames go elsewhere"),
                None => info!(uplink = name, "all frames come here again"),
            }
            self.complaint = complaint;
        }
    }

    /// Notes if its tap was taken out of its bridge, which may have been deleted and made again.
    fn check_bridge(&mut self, uplink: &config::Uplink) {
        let config::Uplink { name, tap, bridge: Some(bridge), namespace: None, .. } = uplink else {
            return;
        };
        let is_astray = netns::is_outside(tap, bridge);
        if is_astray != self.is_astray {
            if is_astray {
                warn!(uplink = name, bridge, "its tap is not in its bridge any more");
            } else {
                info!(uplink = name, bridge, "its tap is in its bridge again");
            }
            self.is_astray = is_astray;
        }
    }

    /// Why its frames go astray although it is there.
    fn astray(&self, config::Uplink { tap, bridge, .. }: &config::Uplink) -> Option<Reason> {
        let bridge = bridge.as_ref().filter(|_| self.is_astray).map(|bridge| {
            format!("{tap} is not in bridge {bridge} any more: ip link set {tap} master {bridge}")
        });
        bridge.or_else(|| self.complaint.clone()).map(Reason::DeviceFailed)
    }
}

impl Source for Uplink {
    fn needs(&self) -> Needs {
        let config::Uplink { kind, bridge, nic, namespace, queues, settings, .. } = &self.config;
        if *kind == UplinkKind::VirtioUser {
            return Needs::of_socket(settings.socket_side(), &settings.socket);
        }
        let interface = match kind {
            UplinkKind::Macvtap | UplinkKind::AfPacket | UplinkKind::AfXdp => {
                settings.device.as_ref()
            }
            _ => bridge.as_ref(),
        };
        let is_per_guest = *queues == Queues::PerGuest;
        // A NIC's queue for a guest is opened, and asked for by ethtool, when the guest comes.
        let sockets = *kind == UplinkKind::AfXdp && is_per_guest;
        Needs {
            // Of a card that may come later.
            device: nic.is_none(),
            namespace: namespace.clone(),
            interface: interface.cloned(),
            // A macvtap is deleted at the end.
            programs: *kind == UplinkKind::Macvtap || sockets,
            bpf: nic.is_none() && is_per_guest,
            sockets,
            ..Needs::default()
        }
    }

    fn places(&self) -> Vec<Place> {
        let config::Uplink { kind, tap, nic, namespace, settings, .. } = &self.config;
        let device = self.config.nic_name();
        vec![match (kind, nic) {
            (UplinkKind::VirtioUser, _) => Place::Socket(settings.socket.clone()),
            (_, Some(nic)) => Place::Context(nic.clone()),
            // One of them is empty.
            _ => Place::Interface(namespace.clone(), format!("{tap}{device}")),
        }]
    }

    fn leads_out(&self) -> bool {
        true
    }

    fn memory(&self) -> PortMemory {
        // Its queues for single guests read into these guests' buffers.
        let borrows = self.config.queues == Queues::PerGuest;
        // The other ends of those two have its memory too.
        let sleep = match self.config.kind {
            UplinkKind::VirtioUser | UplinkKind::Cdna => MemorySleep::Swapped,
            _ => MemorySleep::Never,
        };
        PortMemory { sleep, is_replaceable: false, borrows }
    }

    fn prepare(&mut self, config: &Config) -> Result<(), String> {
        if self.prepared.is_none() && self.config.nic.is_none() {
            let guests = guest_queues_of(&self.config, config);
            let wanted = Wanted { shared: config.daemon.workers(), guests };
            self.prepared = Some(uplink_device::open(&self.config, wanted)?);
        }
        Ok(())
    }

    fn open(&mut self, port: &mut Record, host: &Host) -> Result<(), Error> {
        self.opened = Some(match self.prepared.take() {
            Some(Opened::Device(device)) => {
                Open::Device(Box::new(self.attach(device, port, host)?))
            }
            Some(Opened::Socket(socket)) => {
                let options = self.config.wanted_of_back_end(host.datapath.workers());
                let events = host.events_of(port);
                let served = BackEnds::start(&self.config, options, socket, host.meter(), events);
                port.reason = Some(Reason::WaitingForBackend);
                let why = Error::system("wait for an uplink's back-end");
                Open::BackEnds(served.map_err(why)?)
            }
            None => {
                let card = self.config.nic.as_deref().unwrap_or_default();
                self.wait_for_card(card, port, host)?;
                Open::Context
            }
        });
        Ok(())
    }

    fn write_running(&self, config: &mut Config) {
        let own = |uplink: &&mut config::Uplink| uplink.name == self.config.name;
        if let Some(uplink) = config.uplinks.iter_mut().find(own) {
            *uplink = self.config.clone();
        }
    }

    fn set(&mut self, port: &mut Record, host: &Host) -> Result<(), String> {
        let new = host.config.uplinks.iter().find(|other| other.name == self.config.name);
        let Some(new) = new else { return Ok(()) };
        let before = self.coalescing();
        self.config = taking(self.config.clone(), new, Effort::InPlace);
        port.enforce(self.config.rules()?, &host.datapath);
        if let Some(port) = port.port.as_deref().filter(|_| self.coalescing() != before) {
            host.datapath.coalesce(port, self.coalescing());
        }
        Ok(())
    }

    fn serve(&mut self, port: &mut Record, what: PortEvent, _: &Host) -> Transition {
        match (what, &self.opened) {
            (PortEvent::Ready { queues, .. }, _) => {
                Transition::Connect { queues, tasks: Vec::new() }
            }
            // A back-end that broke its rings is gone already, with a better reason.
            (PortEvent::Gone(_), Some(Open::BackEnds(_))) if port.port.is_none() => {
                Transition::None
            }
            (PortEvent::Gone(why) | PortEvent::Refused(why), _) => Transition::Disconnect(why),
            _ => Transition::None,
        }
    }

    /// A back-end may come again.
    fn fail(&mut self, port: &mut Record, reason: &str) -> Transition {
        if let Some(Open::BackEnds(back_ends)) = &self.opened {
            back_ends.break_off();
            return Transition::Disconnect(Reason::Disabled(reason.to_owned()));
        }
        port.reason = Some(Reason::DeviceFailed(reason.to_owned()));
        Transition::None
    }

    fn attached(&mut self, port: &Record) -> Result<(), Reason> {
        info!(uplink = port.name(), "up");
        Ok(())
    }

    fn detached(&mut self, port: &Record, had_queues: bool) {
        if had_queues {
            warn!(uplink = port.name(), why = port.why(), "down");
        }
    }

    fn check(&mut self, port: &mut Record, _: &Host) -> Transition {
        let Some(Open::Device(device)) = &mut self.opened else { return Transition::None };
        if let Some(name) = device.watch.check().filter(|_| !device.is_deleted) {
            let why = Reason::DeviceFailed(format!("{name}: the interface was deleted"));
            warn!(uplink = port.name(), %why, "down");
            port.reason = Some(why);
            device.is_deleted = true;
        }
        device.check_bridge(&self.config);
        device.check_complaint(port.name());
        Transition::None
    }

    fn describe(&self, port: &Record, status: PortStatus, devices: &Interfaces) -> PortStatus {
        // The port of a device that has failed still has its queues.
        let state = if port.reason.is_some() { PortState::Down } else { status.state };
        let status = PortStatus { state, ..status };
        match &self.opened {
            Some(Open::Device(device)) => PortStatus {
                reason: port.reason.clone().or(device.astray(&self.config)).or(status.reason),
                socket_drops: device.watch.socket_drops(),
                xdp: device.watch.xdp(),
                device_drops: device.interface.drops(devices),
                ..status
            },
            Some(Open::BackEnds(back_ends)) => {
                PortStatus { refused_connections: back_ends.refused(), ..status }
            }
            Some(Open::Context) | None => status,
        }
    }

    fn coalescing(&self) -> Option<Coalescing> {
        // Checked when the configuration was read.
        self.config.settings.coalescing().unwrap_or_default()
    }

    fn replace_sleeping_ingress(&self, port: &Record, queue: usize, datapath: &Datapath) {
        if let (Some(own), Some(Open::Device(device))) = (&port.port, &self.opened)
            && let Some(ingress) = device.handles.ingress(&self.config, queue)
        {
            let ingress = port.wrappers.wrap_ingress(ingress);
            datapath.replace_sleeping_ingress(own, queue, ingress, self.coalescing());
        }
    }

    fn replace_sleeping_egress(&self, port: &Record, datapath: &Datapath) {
        if let (Some(own), Some(Open::Device(device))) = (&port.port, &self.opened) {
            datapath.replace_sleeping_egress(own, |queue| {
                let egress = device.handles.egress(&self.config, queue)?;
                Some(port.wrappers.wrap_egress(egress))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_workers_are_near() {
        let nodes = [Some(0), Some(1), Some(1), None];
        assert_eq!(near_workers(Some(1), &nodes), [1, 2]);
        assert_eq!(near_workers(Some(0), &nodes[..1]), [0; 0], "all are");
        assert_eq!(near_workers(Some(7), &nodes), [0; 0]);
        assert_eq!(near_workers(None, &nodes), [0; 0], "where the scheduler puts them, too");
    }
}
