//! The control thread: owns the interfaces and reacts to their events.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use capture::{Capture, Request};
use control_socket::{Reason, Status};
use datapath::{Datapath, Failure, Port, TeachError};
use hypervisor::DomId;
use netback::{Offered, VifError};
use tracing::{info, warn};
use xenstore::{Store, StoreError, WatchEvent, XenbusState};

use crate::config::{Config, EVERY_GUEST, Guest, Vif, default_queues};
use crate::daemon::backends::{Backends, Presence, VifId};
use crate::daemon::cpu::Stopwatch;
use crate::daemon::event::{Event, NewInterface};
use crate::daemon::platform::{Backend, Platform, Transition};
use crate::daemon::status;
use crate::daemon::uplinks::{self, PluggedUplink};
use crate::daemon::wrap::Wrappers;

/// The interval at which the switch forgets old addresses.
const SWEEP: Duration = Duration::from_secs(1);

/// A guest's interface.
struct Interface {
    /// Its guest's name in the configuration.
    guest: String,
    /// Its port's name.
    name: String,
    backend: Box<dyn Backend>,
    wrappers: Wrappers,
    port: Option<Arc<Port>>,
    /// For operators: why it is not connected.
    reason: Option<Reason>,
    /// The guest whose port has its address, if that is another one.
    address_owner: Option<String>,
}

/// The control thread's state.
pub(super) struct Control {
    config: Config,
    platform: Arc<dyn Platform>,
    datapath: Datapath,
    uplinks: Vec<PluggedUplink>,
    interfaces: BTreeMap<VifId, Interface>,
    stopwatch: Stopwatch,
}

impl Control {
    pub(super) fn new(
        config: Config,
        platform: Arc<dyn Platform>,
        datapath: Datapath,
        uplinks: Vec<PluggedUplink>,
    ) -> Self {
        let stopwatch = Stopwatch::start();
        Self { config, platform, datapath, uplinks, interfaces: BTreeMap::new(), stopwatch }
    }

    fn store(&self) -> &dyn Store {
        &**self.platform.store()
    }

    /// Serves events until [`Event::Stop`]. Then it disconnects the guests, or leaves them connected for
    /// the next daemon.
    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Event>) {
        loop {
            match inbox.recv_timeout(SWEEP) {
                Ok(Event::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.serve(event),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            self.datapath.sweep();
            self.refresh_wrappers();
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
            Event::UplinkUp { name, queue } => {
                if let Some(uplink) = uplinks::named(&mut self.uplinks, &name) {
                    uplink.plug(*queue, &self.datapath);
                }
            }
            Event::UplinkDown { name, why, answer } => {
                if let Some(uplink) = uplinks::named(&mut self.uplinks, &name) {
                    uplink.unplug(why, &self.datapath);
                }
                let _ = answer.send(());
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
            Event::Stop => {}
        }
    }

    fn store_changed(&mut self, event: &WatchEvent) {
        if let Ok(id) = event.token.parse() {
            self.frontend_changed(id);
        } else if event.token == Backends::TOKEN {
            match self.platform.backends().parse(&event.path) {
                Some(id) => self.look_for(id),
                None => self.look_for_all(),
            }
        }
    }

    /// Looks for all backends: after the start, and when the store has come back.
    fn look_for_all(&mut self) {
        match self.platform.backends().list(self.store()) {
            Ok(present) => {
                let served = self.interfaces.keys().copied();
                let ids: std::collections::BTreeSet<_> = served.chain(present).collect();
                ids.into_iter().for_each(|id| self.look_for(id));
            }
            Err(error) => warn!(%error, "looking for interfaces"),
        }
    }

    /// Serves an interface that the toolstack has created, or forgets one that it has removed.
    fn look_for(&mut self, id: VifId) {
        match self.platform.backends().presence(self.store(), id) {
            Ok(presence) => match (presence, self.interfaces.contains_key(&id)) {
                (Presence::Wanted, false) => self.plug_named(id),
                (Presence::Gone, true) => {
                    info!(vif = %id, "removed");
                    self.unplug(id);
                }
                (Presence::Wanted | Presence::Leaving, true) => {}
                (Presence::Leaving | Presence::Gone, false) => {}
            },
            // Frames are carried on while the store is away.
            Err(error) => warn!(vif = %id, %error, "looking for an interface"),
        }
    }

    /// Serves an interface that was found in the store.
    fn plug_named(&mut self, id: VifId) {
        let name = self.platform.backends().name(self.store(), id);
        let guest = self.config.guest(&name).unwrap_or_default();
        let vif = self.with_addresses(id, guest.vifs.into_iter().next().unwrap_or_default());
        let plugged = vif.and_then(|vif| {
            self.plug(NewInterface { id, guest: name.clone(), name: name.clone(), vif })
        });
        if let Err(reason) = plugged {
            warn!(vif = %id, guest = name, reason, "not served");
        }
    }

    /// Adds the toolstack's addresses if the configuration wants addresses checked and has none.
    fn with_addresses(&self, id: VifId, vif: Vif) -> Result<Vif, String> {
        if !vif.wants_addresses() {
            return Ok(vif);
        }
        let text = self.platform.backends().addresses(self.store(), id);
        let text = text.map_err(|error| error.to_string())?;
        let addresses = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        let guard_addresses = addresses.map_err(|error| format!("the toolstack's ip: {error}"))?;
        Ok(Vif { guard_addresses, ..vif })
    }

    /// Serves an interface.
    fn plug(&mut self, interface: NewInterface) -> Result<(), String> {
        let NewInterface { id, guest, name, vif } = interface;
        let sources = vif.sources()?;
        let offered = Offered {
            max_queues: vif.queues.unwrap_or_else(default_queues),
            features: vif.features(),
            split_event_channels: vif.split_event_channels,
            tx: vif.tx,
            rx: vif.rx,
            persistent_grants: vif.persistent_grants,
            coalescing: vif.coalescing()?,
        };
        let backend = self.platform.adopt(id, offered).map_err(|error| error.to_string())?;
        let state = format!("{}/state", backend.frontend());
        let policy = sources.policy(backend.mac());
        let may_capture = self.config.daemon.capture;
        let wrappers = Wrappers::new(&name, policy, &vif.limit, may_capture);
        let (port, reason, address_owner) = (None, None, None);
        let interface = Interface { guest, name, backend, wrappers, port, reason, address_owner };
        self.interfaces.insert(id, interface);
        self.store().watch(&state, &id.to_string()).map_err(|error| error.to_string())
    }

    /// Forgets an interface, and removes its remaining nodes.
    fn unplug(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.remove(&id) else { return };
        if let Some(port) = interface.port {
            self.datapath.detach(port.id());
        }
        let state = format!("{}/state", interface.backend.frontend());
        // The watch ends with the domain anyway, so an error does not matter.
        let _ = self.store().unwatch(&state, &id.to_string());
        if let Err(error) = interface.backend.remove() {
            warn!(vif = %id, %error, "removing the remaining nodes");
        }
        self.teach_waiting();
    }

    fn frontend_changed(&mut self, id: VifId) {
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
        let queues = queues.into_iter().map(|queue| interface.wrappers.wrap(queue)).collect();
        let name = &interface.name;
        interface.port = Some(self.datapath.attach(name, queues, tasks));
        interface.reason = None;
        self.teach(id);
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let name = &interface.name;
        match interface.backend.connected() {
            Ok(()) => info!(guest = name, queues = count, "connected"),
            Err(error) => self.disconnect(id, Reason::NotConnected(error.to_string())),
        }
    }

    fn disconnect(&mut self, id: VifId, reason: Reason) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let name = &interface.name;
        interface.address_owner = None;
        if let Some(port) = interface.port.take() {
            info!(guest = name, %reason, "disconnected");
            self.datapath.detach(port.id());
        } else {
            warn!(guest = name, %reason, "not connected");
        }
        interface.reason = Some(reason);
        if let Err(error) = interface.backend.disconnected() {
            warn!(guest = name, %error, "writing the state to the store");
        }
        self.teach_waiting();
    }

    /// Teaches the switch a guest's address. A guest that has the same address and was faster keeps it.
    fn teach(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.get(&id) else { return };
        let Some(port) = interface.port.as_deref() else { return };
        let mac = interface.backend.mac();
        let owner = match self.datapath.teach(port.id(), mac) {
            Ok(()) => None,
            Err(TeachError::Taken(other)) => {
                let has_it = |port: &Arc<Port>| port.id() == other;
                let mut others = self.interfaces.values();
                let owner = others.find(|owner| owner.port.as_ref().is_some_and(has_it));
                owner.map(|owner| owner.name.clone())
            }
            Err(error) => {
                warn!(guest = interface.name, %mac, %error, "its address can be taken");
                None
            }
        };
        if let Some(owner) = &owner
            && interface.address_owner.as_ref() != Some(owner)
        {
            warn!(guest = interface.name, %mac, owner, "another guest has its address");
        }
        if let Some(interface) = self.interfaces.get_mut(&id) {
            interface.address_owner = owner;
        }
    }

    /// Teaches the addresses that another guest had, which may have gone.
    fn teach_waiting(&mut self) {
        let waits = |interface: &Interface| interface.address_owner.is_some();
        let waiting = self.interfaces.iter().filter(|(_, interface)| waits(interface));
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.teach(id));
    }

    /// Leaves a guest connected for the next daemon. Its states stay as they are, and the frames that it
    /// sends wait in its rings.
    fn leave(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        if let Some(port) = interface.port.take() {
            info!(guest = interface.name, "left connected for the next daemon");
            self.datapath.detach(port.id());
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
        if let Some(uplink) = self.uplinks.iter_mut().find(|uplink| uplink.is_at(port)) {
            uplink.failure = Some(Reason::DeviceFailed(reason.to_owned()));
        }
    }

    /// Sets how much memory a guest should have. `with_contexts` is its domain if it has contexts.
    fn balloon(&self, name: &str, with_contexts: Option<DomId>, mib: usize) -> Result<(), String> {
        let mut vifs = self.interfaces.iter();
        let of_vif = vifs.find_map(|(id, vif)| (vif.guest == name).then_some(id.domain));
        let running = of_vif.or(with_contexts).zip(self.config.guest(name));
        let Some((domain, guest)) = running else {
            let configured = self.config.guests.iter().find(|guest| guest.name == name);
            return Err(configured.map_or_else(
                || format!("no guest {name:?} in the configuration; `pvnet status` lists them"),
                not_running,
            ));
        };
        let is_machine = self.config.daemon.platform == crate::config::Platform::Machine;
        if is_machine && !guest.balloon {
            return Err(format!(
                "guest {name:?} has no balloon, so that it can make no holes in its memory; set \
                 balloon = true in its configuration and start the daemon and the guest again"
            ));
        }
        let most = guest.memory_mib;
        if !(1..=most).contains(&mib) {
            return Err(format!(
                "{mib} MiB is not 1 to the {most} MiB of guest {name:?}; for more, raise its \
                 memory_mib in the configuration and start the daemon and the guest again"
            ));
        }
        self.platform.set_memory(name, domain, mib)
    }

    /// Starts a capture at the port of this name.
    fn capture(&self, request: &Request) -> Result<Capture, String> {
        let interfaces = self.interfaces.values();
        let guests = interfaces.map(|interface| (&*interface.name, &interface.wrappers));
        let uplinks = self.uplinks.iter().map(|uplink| (&*uplink.name, &uplink.wrappers));
        let ports: Vec<_> = guests.chain(uplinks).collect();
        if let Some((_, wrappers)) = ports.iter().find(|(name, _)| *name == request.port) {
            return wrappers.capture(&request.options);
        }
        let is_its = |guest: &&Guest| guest.vif_names().any(|name| name == request.port);
        Err(self.config.guests.iter().find(is_its).map_or_else(
            || {
                let names: Vec<_> = ports.iter().map(|(name, _)| *name).collect();
                format!("no port {:?} (there are: {})", request.port, names.join(", "))
            },
            not_running,
        ))
    }

    /// Puts wrappers around ports that need them now, and takes off those that are not needed any
    /// more.
    fn refresh_wrappers(&mut self) {
        for interface in self.interfaces.values_mut() {
            interface.wrappers.refresh(&self.datapath, interface.port.as_deref());
        }
        for uplink in &mut self.uplinks {
            uplink.wrappers.refresh(&self.datapath, uplink.port.as_deref());
        }
    }

    fn status(&self) -> Status {
        let guests = self.interfaces.iter().map(|(id, interface)| {
            let state = interface.backend.state();
            let why = match (state, &interface.reason) {
                (XenbusState::Connected, _) => {
                    interface.address_owner.clone().map(Reason::AddressTaken)
                }
                (_, Some(reason)) => Some(reason.clone()),
                (_, None) => Some(Reason::WaitingForFrontend),
            };
            let mac = interface.backend.mac().to_string();
            let port = interface.port.as_deref();
            let name = &interface.name;
            let status = status::guest(name, id.domain.0, &mac, state, why, port);
            let status = interface.wrappers.describe(status);
            interface.backend.describe(status)
        });
        let uplinks = self.uplinks.iter().map(status::uplink);
        let ports: Vec<_> = guests.chain(uplinks).collect();
        let absent = |guest: &&Guest| {
            !self.interfaces.values().any(|interface| interface.guest == guest.name)
        };
        let named = self.config.guests.iter().filter(|guest| guest.name != EVERY_GUEST);
        let absent = named.filter(absent);
        Status {
            nics: Vec::new(),
            pid: std::process::id(),
            worker_threads: self.datapath.worker_threads(),
            cpu: self.stopwatch.read(),
            meter: status::meter(self.platform.meter(), &ports),
            ports,
            learning: status::learning(self.datapath.learning()),
            absent: absent.map(|guest| guest.name.clone()).collect(),
            addresses: self.datapath.addresses().iter().map(status::address).collect(),
        }
    }
}

/// The error message for a guest that is configured but not running.
fn not_running(Guest { name, .. }: &Guest) -> String {
    format!("guest {name:?} is not running; start it: `pvnet guest {name}`")
}
