//! The control thread: owns the interfaces and reacts to their events.

mod addresses;
mod change;
mod devices;
mod discovery;
mod queues;
mod record;
mod requests;
mod sleeps;
#[cfg(test)]
mod tests;
mod toolstack;
mod wrappers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use control_socket::{Reason, ToolstackStatus};
use datapath::{Datapath, Failure, Port};
use netback::VifError;
use toml::Table;
use tracing::{info, warn};
use wire::netif::keys;
use xenstore::{Store, StoreError};

use crate::config::{Config, Guest, Loaded, Vif, default_queues};
use crate::daemon::backends::VifId;
use crate::daemon::carried::Carried;
use crate::daemon::closed_nodes::ClosedNodes;
use crate::daemon::cpu::Stopwatch;
use crate::daemon::device::{self, GuestDevice};
use crate::daemon::disk::Disk;
use crate::daemon::event::{Event, NewInterface};
use crate::daemon::limits::Limits;
use crate::daemon::mirrors::{self, PluggedMirror};
use crate::daemon::notify::Watchdog;
use crate::daemon::platform::{Backend, Platform, Transition};
use crate::daemon::port_record::PortRecord;
use crate::daemon::sandbox::Reach;
use crate::daemon::uplinks::{self, PluggedUplink};
use crate::daemon::virtual_machines::{self, VirtualMachine};
use crate::daemon::worker_check::WorkerCheck;
use crate::daemon::wrap::{Rules, Wrappers};

/// The interval at which the switch forgets old addresses.
const SWEEP: Duration = Duration::from_secs(1);

/// A guest's interface.
struct Interface {
    /// Its guest's settings: those with which the guest joined, but for what changed in place since.
    guest: Guest,
    /// Its port's name.
    name: String,
    /// Its settings, the same way, with the toolstack's addresses.
    vif: Vif,
    backend: Box<dyn Backend>,
    wrappers: Wrappers,
    /// Whether an uplink may put frames into its buffers.
    lends: bool,
    port: Option<Arc<Port>>,
    /// What it has carried in connections that have ended.
    carried: Carried,
    /// For operators: why it is not connected.
    reason: Option<Reason>,
    /// The guest whose port has its address, if that is another one.
    address_owner: Option<String>,
    /// Whether the switch keeps its address for it.
    has_address: bool,
    /// Its interface on the host, if it is not in the switch.
    device: Option<GuestDevice>,
    /// What became of what the toolstack wants of it.
    toolstack: ToolstackStatus,
}

/// The control thread's state.
pub(super) struct Control {
    /// What runs, or will with the next connection.
    config: Config,
    /// The configuration of which that is all that could be applied.
    tables: Table,
    /// The ports that commands have changed since the file was read.
    by_command: BTreeSet<String>,
    platform: Arc<dyn Platform>,
    datapath: Datapath,
    uplinks: Vec<PluggedUplink>,
    machines: Vec<VirtualMachine>,
    mirrors: Vec<PluggedMirror>,
    /// The disk of their files.
    disk: Disk,
    /// That of sockets' folders.
    sockets_disk: Disk,
    interfaces: BTreeMap<VifId, Interface>,
    /// Those that are gone, until the toolstack has seen it.
    closed: ClosedNodes,
    stopwatch: Stopwatch,
    events: mpsc::Sender<Event>,
    ports: PortRecord,
    limits: Arc<Limits>,
    workers: WorkerCheck,
    /// Where it may make sockets.
    reach: Reach,
    started: SystemTime,
}

impl Control {
    pub(super) fn new(
        Loaded { config, tables }: Loaded,
        platform: Arc<dyn Platform>,
        datapath: Datapath,
        (uplinks, machines): (Vec<PluggedUplink>, Vec<VirtualMachine>),
        limits: Arc<Limits>,
        events: mpsc::Sender<Event>,
        ports: PortRecord,
    ) -> Self {
        Self {
            config,
            tables,
            by_command: BTreeSet::new(),
            platform,
            datapath,
            uplinks,
            machines,
            mirrors: Vec::new(),
            disk: Disk::default(),
            sockets_disk: Disk::default(),
            interfaces: BTreeMap::new(),
            closed: ClosedNodes::default(),
            stopwatch: Stopwatch::start(),
            events,
            ports,
            limits,
            workers: WorkerCheck::default(),
            reach: Reach::everywhere(),
            started: SystemTime::now(),
        }
    }

    /// The same, in a sandbox.
    pub(super) fn within(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    fn store(&self) -> &dyn Store {
        &**self.platform.store()
    }

    /// Serves events until [`Event::Stop`]. Then it disconnects the guests, or leaves them connected for
    /// the next daemon.
    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Event>, mut watchdog: Watchdog) {
        self.set_mirrors(Vec::new());
        self.ports.begin(Instant::now());
        loop {
            let limit = self.ports.left(Instant::now()).unwrap_or(SWEEP);
            match inbox.recv_timeout(limit) {
                Ok(Event::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.serve(event),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            self.datapath.sweep();
            watchdog.beat(&self.datapath);
            self.refresh_mirrors();
            self.refresh_wrappers();
            self.assign_queues();
            self.uplinks.iter_mut().for_each(PluggedUplink::look_for_device);
            self.look_for_devices();
            self.remove_closed(false);
            self.record_ports();
        }
        watchdog.stopping();
        // From here on frames wait at their senders, for the next daemon.
        self.datapath.pause();
        for machine in &mut self.machines {
            machine.unplug(Reason::Stopping, &self.datapath);
        }
        let keeps_guests = self.platform.keeps_guests();
        let ids: Vec<_> = self.interfaces.keys().copied().collect();
        for id in ids {
            if keeps_guests {
                self.leave(id);
            } else {
                self.disconnect(id, Reason::Stopping);
            }
        }
        self.remove_closed(true);
        // Last: what the ports have carried is in the files.
        mirrors::remove(std::mem::take(&mut self.mirrors), &self.datapath);
    }

    fn serve(&mut self, event: Event) {
        match event {
            Event::Plugged { interface, answer } => {
                // The session that asked may have ended.
                let _ = answer.send(self.plug(*interface));
            }
            Event::Unplugged { id, answer } => {
                self.unplug(id);
                let _ = answer.send(());
            }
            Event::Store { event, done } => {
                drop(done);
                self.store_changed(&event);
            }
            Event::Failure(Failure { port, reason }) => self.fail(&port, &reason),
            Event::Slept(sleep) => self.slept(&sleep),
            Event::UplinkUp { name, queue } => {
                if let Some(uplink) = uplinks::named(&mut self.uplinks, &name) {
                    uplink.plug(vec![*queue], &self.datapath);
                }
            }
            Event::UplinkDown { name, why, answer } => {
                if let Some(uplink) = uplinks::named(&mut self.uplinks, &name) {
                    uplink.unplug(why, &self.datapath);
                }
                let _ = answer.send(());
            }
            Event::BackEnd { uplink, what } => {
                if let Some(uplink) = uplinks::with_back_ends(&mut self.uplinks, uplink) {
                    uplink.back_end_changed(what, &self.datapath);
                }
            }
            Event::RingsReady { machine, settings, queues } => {
                if let Some(machine) = virtual_machines::numbered(&mut self.machines, machine) {
                    machine.plug(settings, queues, &self.datapath);
                }
            }
            Event::RingsStopped { machine, why, answer } => {
                if let Some(machine) = virtual_machines::numbered(&mut self.machines, machine) {
                    machine.rings_stopped(why, &self.datapath);
                }
                let _ = answer.send(());
            }
            Event::FrontEnd { machine, what } => {
                if let Some(machine) = virtual_machines::numbered(&mut self.machines, machine) {
                    machine.front_end_changed(what, &self.datapath);
                }
            }
            Event::Queue { uplink, change } => {
                if let Some(uplink) = uplinks::named(&mut self.uplinks, &uplink) {
                    let PluggedUplink { guest_queues, wrappers, .. } = uplink;
                    if let Some(queues) = guest_queues {
                        queues.changed(change, &self.datapath, wrappers);
                    }
                }
            }
            Event::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Event::Balloon { name, with_contexts, mib, answer } => {
                let _ = answer.send(self.balloon(&name, with_contexts, mib));
            }
            Event::Capture { request, answer } => {
                let capture = self.capture(&request);
                // Before the answer: whoever gets it may send frames at once.
                self.refresh_wrappers();
                let _ = answer.send(capture);
            }
            Event::Change { change, answer } => {
                let _ = answer.send(self.change(*change));
            }
            Event::Stop => {}
        }
    }

    /// Serves an interface.
    fn plug(&mut self, interface: NewInterface) -> Result<(), String> {
        let NewInterface { id, guest, name, vif } = interface;
        if self.config.guest(&guest.name).is_none() {
            return Err(format!("guest {:?} is not in the configuration any more", guest.name));
        }
        let sources = vif.sources()?;
        let lends = vif.has_own_queue(self.config.daemon.platform);
        let offered = vif.offered(if lends { 1 } else { default_queues() });
        let device = self.open_device(id, &name, &vif)?;
        let backend = match self.platform.adopt(id, offered) {
            Ok(backend) => backend,
            Err(error) => {
                self.abandon_device(device);
                return Err(error.to_string());
            }
        };
        let state = format!("{}/state", backend.frontend());
        let groups = vif.multicast_control.then(|| multicast_request(&*backend));
        let guard = sources.policy(backend.mac());
        let membership = vif.membership()?;
        let flooding = vif.flooding();
        let (toolstack, limits) = self.with_toolstack(id, &name, &vif);
        let (enabled, gro) = (vif.enabled, vif.gro);
        let rules = Rules { guard, limits, enabled, membership, flooding, gro };
        let wrappers = Wrappers::new(&name, rules, self.config.daemon.capture);
        let (port, reason, address_owner) = (None, None, None);
        let interface = Interface {
            guest,
            name,
            vif,
            backend,
            wrappers,
            lends,
            port,
            carried: Carried::default(),
            reason,
            address_owner,
            has_address: false,
            device,
            toolstack,
        };
        self.interfaces.insert(id, interface);
        if let Some(path) = groups {
            // If this fails, as when all watches are used up, the frontend has as long as it is connected what it asked for first.
            let _ = self.store().watch(&path, &id.to_string());
        }
        self.store().watch(&state, &id.to_string()).map_err(|error| error.to_string())
    }

    /// Forgets an interface, and removes its remaining nodes.
    fn unplug(&mut self, id: VifId) {
        self.release_queue(id);
        let Some(mut interface) = self.interfaces.remove(&id) else { return };
        if let Some(port) = interface.port {
            device::detach(interface.device.as_mut(), &self.datapath, &port);
        }
        self.abandon_device(interface.device);
        let state = format!("{}/state", interface.backend.frontend());
        // The watch ends with the domain anyway, so an error does not matter.
        let _ = self.store().unwatch(&state, &id.to_string());
        if interface.vif.multicast_control {
            let groups = multicast_request(&*interface.backend);
            let _ = self.store().unwatch(&groups, &id.to_string());
        }
        if let Err(error) = interface.backend.remove() {
            warn!(vif = %id, %error, "removing the remaining nodes");
        }
        self.note_closed(id);
        self.teach_waiting();
    }

    fn frontend_changed(&mut self, id: VifId) {
        if self.waits_for_script(id) {
            return;
        }
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        match interface.backend.frontend_changed() {
            Ok(Transition::None) => {}
            Ok(Transition::Connect { queues, tasks }) => self.connect(id, queues, tasks),
            Ok(Transition::Disconnect) => self.disconnect(id, Reason::FrontendClosed),
            Ok(Transition::Remove) if !self.platform.ends_with_its_node() => {
                self.disconnect(id, Reason::FrontendClosed);
            }
            Ok(Transition::Remove) => {
                info!(guest = interface.name, "removed");
                self.unplug(id);
            }
            // The state is read again when the store is back.
            Err(VifError::Store(StoreError::Gone(reason))) => {
                warn!(vif = %id, reason, "the store is away");
            }
            Err(error) => self.disconnect(id, Reason::NotConnected(error.to_string())),
        }
    }

    fn connect(&mut self, id: VifId, queues: Vec<port::Queue>, tasks: Vec<Box<dyn port::Task>>) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let count = queues.len();
        // It may have changed since the backend offered it.
        let coalescing = interface.vif.coalescing().unwrap_or_default();
        let wrap = |mut queue: port::Queue| {
            queue.egress.set_coalescing(coalescing);
            interface.wrappers.wrap(queue)
        };
        let queues = queues.into_iter().map(wrap).collect();
        let name = &interface.name;
        let device = interface.device.as_mut();
        let wrappers = &interface.wrappers;
        let port = device::attach(device, &self.datapath, name, queues, tasks, wrappers);
        interface.port = Some(port);
        interface.reason = None;
        self.teach(id);
        self.assign_queues();
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let name = &interface.name;
        match interface.backend.connected() {
            Ok(()) => info!(guest = name, queues = count, "connected"),
            Err(error) => self.disconnect(id, Reason::NotConnected(error.to_string())),
        }
    }

    fn disconnect(&mut self, id: VifId, reason: Reason) {
        // Before its port goes: the frontend's buffers come back first.
        self.release_queue(id);
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let name = &interface.name;
        interface.address_owner = None;
        if let Some(port) = interface.port.take() {
            info!(guest = name, %reason, "disconnected");
            device::detach(interface.device.as_mut(), &self.datapath, &port);
            interface.carried.end(&port);
        } else {
            warn!(guest = name, %reason, "not connected");
        }
        interface.reason = Some(reason);
        if let Err(error) = interface.backend.disconnected() {
            warn!(guest = name, %error, "writing the state to the store");
        }
        self.teach_waiting();
    }

    /// Leaves a guest connected for the next daemon. Its states stay as they are, and the frames that it
    /// sends wait in its rings.
    fn leave(&mut self, id: VifId) {
        self.release_queue(id);
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        if let Some(port) = interface.port.take() {
            info!(guest = interface.name, "left connected for the next daemon");
            device::detach(interface.device.as_mut(), &self.datapath, &port);
        }
    }

    /// Disables the interface of a guest whose queue broke; other guests do not notice. Notes the
    /// failure of an uplink.
    fn fail(&mut self, port: &Arc<Port>, reason: &str) {
        let is_its = |interface: &Interface| {
            interface.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port))
        };
        let found = self.interfaces.iter().find(|(_, interface)| is_its(interface));
        match found.map(|(id, _)| *id) {
            Some(id) => self.disconnect(id, Reason::Disabled(reason.to_owned())),
            None => warn!(port = port.name(), reason, "port failed"),
        }
        if let Some(machine) = self.machines.iter_mut().find(|machine| machine.is_at(port)) {
            machine.unplug(Reason::Disabled(reason.to_owned()), &self.datapath);
        }
        self.fail_device(port, reason);
        if let Some(uplink) = self.uplinks.iter_mut().find(|uplink| uplink.is_at(port)) {
            uplink.fail(reason, &self.datapath);
        }
    }
}

/// Where a frontend says whether it wants the multicast groups of its list only.
fn multicast_request(backend: &dyn Backend) -> String {
    format!("{}/{}", backend.frontend(), keys::REQUEST_MULTICAST_CONTROL)
}
