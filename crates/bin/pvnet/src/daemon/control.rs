//! The control thread: owns the interfaces and reacts to what happens to them.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use control_socket::{PortStatus, Reason, Status};
use datapath::{Datapath, Egress, Failure, Ingress, Port};
use hypervisor::{Hypervisor, Metered, Store, StoreError, WatchEvent, XenbusState};
use machine::toolstack::set_memory_target;
use netback::{
    Anonymous, Change, Connection, ControlRing, Files, Ledgers, Offered, PersistentGrants, Queue,
    Vif, VifError,
};
use rustix::event::{PollFd, PollFlags, poll};
use switch::PortId;
use tracing::{info, warn};

use crate::config::{Config, EVERY_GUEST, Guest, OnStop, Platform};
use crate::daemon::backends::{Backends, Presence, VifId};
use crate::daemon::cpu::Stopwatch;
use crate::daemon::{Error, spawn, status};

/// What the control thread is told.
pub(super) enum Event {
    /// The toolstack has made an interface.
    Plugged { id: VifId, guest: Box<Guest>, answer: mpsc::Sender<Result<(), String>> },
    /// An interface is gone, and with it perhaps its domain.
    Unplugged { id: VifId, answer: mpsc::Sender<()> },
    /// Something changed in the store. The next change is told when `done` is dropped.
    Store { event: WatchEvent, done: mpsc::Sender<()> },
    /// A queue broke.
    Failure(Failure),
    /// Somebody wants to know how things are.
    Status(mpsc::Sender<Status>),
    /// Somebody wants a guest to have so many MiB of memory.
    Balloon { name: String, mib: usize, answer: mpsc::Sender<Result<(), String>> },
    /// Time to stop.
    Stop,
}

/// How often old addresses are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// A guest's interface.
struct Interface<H: Hypervisor> {
    guest: Guest,
    vif: Vif<H>,
    port: Option<Arc<Port<H>>>,
    /// Its pages that stay mapped, while it is connected: nothing here keeps them.
    grants: Vec<Weak<PersistentGrants<H>>>,
    /// Why it is not connected, for an operator.
    reason: Option<Reason>,
}

/// The control thread's state.
pub(super) struct Control<H: Hypervisor> {
    config: Config,
    platform: Metered<H>,
    store: Arc<dyn Store>,
    backends: Backends,
    datapath: Datapath<Metered<H>>,
    uplinks: Vec<Arc<Port<Metered<H>>>>,
    interfaces: BTreeMap<VifId, Interface<Metered<H>>>,
    stopwatch: Stopwatch,
}

impl<H: Hypervisor> Control<H> {
    pub(super) fn new(
        config: Config,
        platform: Metered<H>,
        store: Arc<dyn Store>,
        backends: Backends,
        datapath: Datapath<Metered<H>>,
        uplinks: Vec<Arc<Port<Metered<H>>>>,
    ) -> Self {
        let stopwatch = Stopwatch::start();
        let interfaces = BTreeMap::new();
        Self { config, platform, store, backends, datapath, uplinks, interfaces, stopwatch }
    }

    /// Serves events until told to stop, then leaves every guest in an orderly way.
    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Event>) {
        loop {
            match inbox.recv_timeout(SWEEP) {
                Ok(Event::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.serve(event),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            self.datapath.sweep();
        }
        let kept =
            self.config.daemon.platform == Platform::Xen && self.config.xen.on_stop == OnStop::Keep;
        let ids: Vec<_> = self.interfaces.keys().copied().collect();
        for id in ids {
            if kept {
                self.leave(id);
            } else {
                self.disconnect(id, Reason::Stopping);
            }
        }
    }

    fn serve(&mut self, event: Event) {
        match event {
            Event::Plugged { id, guest, answer } => {
                // The session that asked may be gone already.
                let _ = answer.send(self.plug(id, *guest));
            }
            Event::Unplugged { id, answer } => {
                self.unplug(id);
                let _ = answer.send(());
            }
            Event::Store { event, done } => {
                drop(done);
                self.store_changed(&event);
            }
            Event::Failure(Failure { port, reason }) => self.fail(port, &reason),
            Event::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Event::Balloon { name, mib, answer } => {
                let _ = answer.send(self.balloon(&name, mib));
            }
            Event::Stop => {}
        }
    }

    fn store_changed(&mut self, event: &WatchEvent) {
        if let Ok(id) = event.token.parse() {
            self.frontend_changed(id);
        } else if event.token == Backends::TOKEN {
            match self.backends.parse(&event.path) {
                Some(id) => self.look_for(id),
                None => self.look_for_all(),
            }
        }
    }

    /// Looks for the backends that there are: after the start, and when the store has come back.
    fn look_for_all(&mut self) {
        match self.backends.list(&*self.store) {
            Ok(present) => {
                let served = self.interfaces.keys().copied();
                let ids: std::collections::BTreeSet<_> = served.chain(present).collect();
                ids.into_iter().for_each(|id| self.look_for(id));
            }
            Err(error) => warn!(%error, "looking for interfaces"),
        }
    }

    /// Serves an interface that the toolstack has made, forgets one that it has removed.
    fn look_for(&mut self, id: VifId) {
        match self.backends.presence(&*self.store, id) {
            Ok(presence) => match (presence, self.interfaces.contains_key(&id)) {
                (Presence::Wanted, false) => self.plug_named(id),
                (Presence::Gone, true) => {
                    info!(vif = %id, "removed");
                    self.unplug(id);
                }
                (Presence::Wanted | Presence::Leaving, true) => {}
                (Presence::Leaving | Presence::Gone, false) => {}
            },
            // A store that is away for a while changes nothing for the frames.
            Err(error) => warn!(vif = %id, %error, "looking for an interface"),
        }
    }

    /// Serves an interface that was found in the store.
    fn plug_named(&mut self, id: VifId) {
        let name = self.backends.name(&*self.store, id);
        let guest = self.config.guest(&name).unwrap_or_default();
        if let Err(reason) = self.plug(id, guest) {
            warn!(vif = %id, guest = name, reason, "not served");
        }
    }

    /// Serves an interface.
    fn plug(&mut self, id: VifId, guest: Guest) -> Result<(), String> {
        let workers = u32::try_from(self.datapath.workers()).unwrap_or(1);
        let offered = Offered {
            max_queues: guest.queues.unwrap_or(workers),
            features: guest.features(),
            split_event_channels: guest.split_event_channels,
            tx: guest.tx,
            rx: guest.rx,
            persistent_grants: guest.persistent_grants,
        };
        let path = self.backends.path(id);
        let (platform, store) = (self.platform.clone(), self.store.clone());
        let vif = Vif::adopt(platform, store, &path, offered, self.ledgers(id))
            .map_err(|error| error.to_string())?;
        let state = format!("{}/state", vif.frontend());
        let interface = Interface { guest, vif, port: None, grants: Vec::new(), reason: None };
        self.interfaces.insert(id, interface);
        self.store.watch(&state, &id.to_string()).map_err(|error| error.to_string())
    }

    /// Where an interface's ledgers are: on Xen the rings outlive the daemon.
    fn ledgers(&self, id: VifId) -> Arc<dyn Ledgers> {
        match self.config.daemon.platform {
            Platform::Machine => Arc::new(Anonymous::default()),
            Platform::Xen => {
                let rings = self.config.daemon.directory.join("rings");
                Arc::new(Files::new(rings.join(format!("{}-{}", id.domain, id.handle))))
            }
        }
    }

    /// Forgets an interface, and removes what is left of it.
    fn unplug(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.remove(&id) else { return };
        if let Some(port) = interface.port {
            self.datapath.detach(port.id());
        }
        let state = format!("{}/state", interface.vif.frontend());
        // It goes when the domain does; nobody is left to be told of an error.
        let _ = self.store.unwatch(&state, &id.to_string());
        if let Err(error) = interface.vif.remove() {
            warn!(vif = %id, %error, "removing what is left");
        }
    }

    fn frontend_changed(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        match interface.vif.frontend_changed() {
            Ok(Change::None) => {}
            Ok(Change::Connect(connection)) => self.connect(id, connection),
            Ok(Change::Disconnect) => self.disconnect(id, Reason::FrontendClosed),
            // The guests of this machine are removed when their processes end.
            Ok(Change::Remove) if self.config.daemon.platform == Platform::Machine => {
                self.disconnect(id, Reason::FrontendClosed);
            }
            Ok(Change::Remove) => {
                info!(guest = interface.guest.name, "removed");
                self.unplug(id);
            }
            // Whatever changed is looked at when the store is back.
            Err(VifError::Store(StoreError::Gone(reason))) => warn!(vif = %id, reason, "the store"),
            Err(error) => self.disconnect(id, Reason::NotConnected(error.to_string())),
        }
    }

    fn connect(&mut self, id: VifId, connection: Connection<Metered<H>>) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let Connection { queues, control } = connection;
        let count = queues.len();
        let split = |queue: Queue<_>| (Egress::Netback(queue.rx), Ingress::Netback(queue.tx));
        let (egress, ingress) = queues.into_iter().map(split).unzip();
        let name = &interface.guest.name;
        let grants = control.iter().flat_map(ControlRing::grants);
        interface.grants = grants.map(Arc::downgrade).collect();
        let port = self.datapath.attach(name, egress, ingress, control);
        self.datapath.teach(port.id(), interface.vif.mac());
        interface.port = Some(port);
        interface.reason = None;
        match interface.vif.connected() {
            Ok(()) => info!(guest = name, queues = count, "connected"),
            Err(error) => self.disconnect(id, Reason::NotConnected(error.to_string())),
        }
    }

    fn disconnect(&mut self, id: VifId, reason: Reason) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        let name = &interface.guest.name;
        if let Some(port) = interface.port.take() {
            info!(guest = name, %reason, "disconnected");
            self.datapath.detach(port.id());
        } else {
            warn!(guest = name, %reason, "not connected");
        }
        interface.reason = Some(reason);
        if let Err(error) = interface.vif.disconnected() {
            warn!(guest = name, %error, "the store");
        }
    }

    /// Lets go of a guest that stays connected: its states stay as they are, what it sends waits
    /// in its rings, and the next daemon goes on with them.
    fn leave(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.get_mut(&id) else { return };
        if let Some(port) = interface.port.take() {
            info!(guest = interface.guest.name, "left connected for the next daemon");
            self.datapath.detach(port.id());
        }
    }

    /// A queue broke: its guest's interface is disabled, with the reason; nobody else notices.
    fn fail(&mut self, port: PortId, reason: &str) {
        let of_port =
            |interface: &Interface<_>| interface.port.as_ref().is_some_and(|own| own.id() == port);
        let found = self.interfaces.iter().find(|(_, interface)| of_port(interface));
        match found.map(|(id, _)| *id) {
            Some(id) => self.disconnect(id, Reason::Disabled(reason.to_owned())),
            None => warn!(port = port.0, reason, "port failed"),
        }
    }

    /// Writes how much memory a guest should have where its balloon looks for it.
    fn balloon(&self, name: &str, mib: usize) -> Result<(), String> {
        if self.config.daemon.platform == Platform::Xen {
            return Err(format!("on Xen memory is the toolstack's: `xl mem-set {name} {mib}m`"));
        }
        let is_named = |(_, interface): &(_, &Interface<_>)| interface.guest.name == name;
        let Some((id, interface)) = self.interfaces.iter().find(is_named) else {
            return Err(if self.config.guests.iter().any(|guest| guest.name == name) {
                format!("guest {name:?} is not running; start it: `pvnet guest {name}`")
            } else {
                format!("no guest {name:?} in the configuration; `pvnet status` shows who is")
            });
        };
        let most = interface.guest.memory_mib;
        if !(1..=most).contains(&mib) {
            return Err(format!(
                "{mib} MiB is not 1 to the {most} MiB of guest {name:?}; for more, raise its \
                 memory_mib in the configuration and start the daemon and the guest again"
            ));
        }
        set_memory_target(&*self.store, id.domain, mib * 1024).map_err(|error| error.to_string())
    }

    fn status(&self) -> Status {
        let guests = self.interfaces.iter().map(|(id, interface)| {
            let state = interface.vif.state();
            let why = match (state, &interface.reason) {
                (XenbusState::Connected, _) => None,
                (_, Some(reason)) => Some(reason.clone()),
                (_, None) => Some(Reason::WaitingForFrontend),
            };
            let mac = interface.vif.mac().to_string();
            let port = interface.port.as_deref();
            let grants: Vec<_> = interface.grants.iter().filter_map(Weak::upgrade).collect();
            let name = &interface.guest.name;
            let status = status::guest(name, id.domain.0, &mac, state, why, port);
            PortStatus { persistent_grants: status::persistent_grants(&grants), ..status }
        });
        let uplinks = self.uplinks.iter().map(|port| status::uplink(port));
        let ports: Vec<_> = guests.chain(uplinks).collect();
        let absent = |guest: &&Guest| {
            !self.interfaces.values().any(|interface| interface.guest.name == guest.name)
        };
        let named = self.config.guests.iter().filter(|guest| guest.name != EVERY_GUEST);
        let absent = named.filter(absent);
        Status {
            pid: std::process::id(),
            worker_threads: self.datapath.worker_threads(),
            cpu: self.stopwatch.read(),
            meter: status::meter(self.platform.meter(), &ports),
            ports,
            absent: absent.map(|guest| guest.name.clone()).collect(),
            addresses: self.datapath.addresses().iter().map(status::address).collect(),
        }
    }
}

/// Passes the store's watch events on to the control thread.
pub(super) fn forward_store_events(
    store: Arc<dyn Store>,
    events: mpsc::Sender<Event>,
) -> Result<(), Error> {
    spawn("store events", move || {
        loop {
            match store.event() {
                Ok(Some(event)) => {
                    let (done, taken) = mpsc::channel();
                    if events.send(Event::Store { event, done }).is_err() {
                        return;
                    }
                    // One at a time: a guest that writes its state without end fills the
                    // store's own queue, which is bounded, and not this channel (XSA-326).
                    let _ = taken.recv();
                }
                Ok(None) => {
                    let fd = store.event_fd();
                    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                    // An interrupted wait is begun anew.
                    let _ = poll(&mut fds, None);
                }
                Err(_) => return,
            }
        }
    })?;
    Ok(())
}
