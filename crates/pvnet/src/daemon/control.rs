//! The control thread: owns the interfaces and reacts to what happens to them.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use datapath::{Datapath, Egress, Failure, Ingress, Port};
use hypervisor::{DomId, Store, StoreError, WatchEvent, XenbusState};
use machine::toolstack::{
    backend_path, create_domain, create_vif, remove_domain, set_memory_target,
};
use netback::{Change, Connection, ControlRing, Offered, PersistentGrants, Queue, Vif};
use offload::Features;
use rustix::event::{PollFd, PollFlags, poll};
use switch::PortId;
use tracing::{info, warn};

use crate::config::{Config, Guest};
use crate::daemon::cpu::Stopwatch;
use crate::daemon::status::{MeterStatus, PersistentStatus, PortStatus, Status};
use crate::daemon::{Error, Platform, spawn};

/// What the control thread is told.
pub(super) enum Event {
    /// A domain exists and wants its devices.
    Created { domain: DomId, name: String, answer: mpsc::Sender<Result<(), String>> },
    /// A domain is gone.
    Destroyed { domain: DomId, answer: mpsc::Sender<()> },
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
struct Interface {
    guest: Guest,
    vif: Vif<Platform>,
    port: Option<Arc<Port<Platform>>>,
    /// Its pages that stay mapped, while it is connected: nothing here keeps them.
    grants: Vec<Weak<PersistentGrants<Platform>>>,
    /// Why it is not connected, for an operator.
    reason: Option<String>,
}

/// The control thread's state.
pub(super) struct Control {
    config: Config,
    platform: Platform,
    store: Arc<dyn Store>,
    datapath: Datapath<Platform>,
    uplinks: Vec<Arc<Port<Platform>>>,
    interfaces: BTreeMap<DomId, Interface>,
    stopwatch: Stopwatch,
}

impl Control {
    pub(super) fn new(
        config: Config,
        platform: Platform,
        store: Arc<dyn Store>,
        datapath: Datapath<Platform>,
        uplinks: Vec<Arc<Port<Platform>>>,
    ) -> Self {
        let stopwatch = Stopwatch::start();
        let interfaces = BTreeMap::new();
        Self { config, platform, store, datapath, uplinks, interfaces, stopwatch }
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
        let domains: Vec<_> = self.interfaces.keys().copied().collect();
        for domain in domains {
            self.disconnect(domain, "the daemon is stopping".into());
        }
    }

    fn serve(&mut self, event: Event) {
        match event {
            Event::Created { domain, name, answer } => {
                // The session that asked may be gone already.
                let _ = answer.send(self.create(domain, &name));
            }
            Event::Destroyed { domain, answer } => {
                self.destroy(domain);
                let _ = answer.send(());
            }
            Event::Store { event, done } => {
                drop(done);
                if let Some(domain) = domain_of(&event.token) {
                    self.frontend_changed(domain);
                }
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

    /// Does what libxl does for a new domain, and announces its interface.
    fn create(&mut self, domain: DomId, name: &str) -> Result<(), String> {
        let known = self.config.guests.iter().find(|guest| guest.name == name);
        let guest = known.ok_or("unknown guest")?.clone();
        let store = &*self.store;
        create_domain(store, domain, name).map_err(|error| error.to_string())?;
        create_vif(store, domain, 0, &guest.mac.to_string()).map_err(|error| error.to_string())?;
        self.describe(domain, &guest).map_err(|error| error.to_string())?;
        set_memory_target(store, domain, guest.memory_mib * 1024)
            .map_err(|error| error.to_string())?;
        let workers = u32::try_from(self.datapath.workers()).unwrap_or(1);
        let offered = Offered {
            max_queues: guest.queues.unwrap_or(workers),
            features: guest.features(),
            split_event_channels: guest.split_event_channels,
            tx: guest.tx,
            rx: guest.rx,
            persistent_grants: guest.persistent_grants,
        };
        let path = backend_path(domain, 0);
        let vif = Vif::announce(self.platform.clone(), self.store.clone(), &path, offered)
            .map_err(|error| error.to_string())?;
        let state = format!("{}/state", vif.frontend());
        self.store.watch(&state, &domain.to_string()).map_err(|error| error.to_string())?;
        let interface = Interface { guest, vif, port: None, grants: Vec::new(), reason: None };
        self.interfaces.insert(domain, interface);
        Ok(())
    }

    /// What `pvnet guest` needs to know, where a domain finds its configuration on Xen.
    fn describe(&self, domain: DomId, guest: &Guest) -> Result<(), StoreError> {
        let data = format!("/local/domain/{domain}/data");
        let bit = |on| if on { "1" } else { "0" };
        let Features { sg, csum_v4, tso_v4, .. } = guest.features();
        for (key, value) in [
            ("addresses", guest.addresses.join(" ").as_str()),
            ("scatter-gather", bit(sg)),
            ("checksum-offload", bit(csum_v4)),
            ("group-pages", bit(guest.group_pages)),
            ("tcp-segmentation-offload", bit(tso_v4)),
        ] {
            self.store.write(None, &format!("{data}/{key}"), value)?;
        }
        Ok(())
    }

    fn destroy(&mut self, domain: DomId) {
        let Some(interface) = self.interfaces.remove(&domain) else { return };
        if let Some(port) = interface.port {
            self.datapath.detach(port.id());
        }
        let state = format!("{}/state", interface.vif.frontend());
        // Both go when the domain does; nobody is left to be told of an error.
        let _ = self.store.unwatch(&state, &domain.to_string());
        let _ = remove_domain(&*self.store, domain);
    }

    fn frontend_changed(&mut self, domain: DomId) {
        let Some(interface) = self.interfaces.get_mut(&domain) else { return };
        match interface.vif.frontend_changed() {
            Ok(Change::None) => {}
            Ok(Change::Connect(connection)) => self.connect(domain, connection),
            Ok(Change::Disconnect | Change::Remove) => {
                self.disconnect(domain, "the frontend closed".into());
            }
            Err(error) => self.disconnect(domain, error.to_string()),
        }
    }

    fn connect(&mut self, domain: DomId, connection: Connection<Platform>) {
        let Some(interface) = self.interfaces.get_mut(&domain) else { return };
        let Connection { queues, control } = connection;
        let count = queues.len();
        let split = |queue: Queue<_>| (Egress::Netback(queue.rx), Ingress::Netback(queue.tx));
        let (egress, ingress) = queues.into_iter().map(split).unzip();
        let name = &interface.guest.name;
        let grants = control.iter().flat_map(ControlRing::grants);
        interface.grants = grants.map(Arc::downgrade).collect();
        interface.port = Some(self.datapath.attach(name, egress, ingress, control));
        interface.reason = None;
        match interface.vif.connected() {
            Ok(()) => info!(guest = name, queues = count, "connected"),
            Err(error) => self.disconnect(domain, error.to_string()),
        }
    }

    fn disconnect(&mut self, domain: DomId, reason: String) {
        let Some(interface) = self.interfaces.get_mut(&domain) else { return };
        let name = &interface.guest.name;
        if let Some(port) = interface.port.take() {
            info!(guest = name, reason, "disconnected");
            self.datapath.detach(port.id());
        } else {
            warn!(guest = name, reason, "not connected");
        }
        interface.reason = Some(reason);
        if let Err(error) = interface.vif.disconnected() {
            warn!(guest = name, %error, "the store");
        }
    }

    /// A queue broke: its guest's interface is disabled, with the reason; nobody else notices.
    fn fail(&mut self, port: PortId, reason: &str) {
        let of_port =
            |interface: &Interface| interface.port.as_ref().is_some_and(|own| own.id() == port);
        let found = self.interfaces.iter().find(|(_, interface)| of_port(interface));
        match found.map(|(domain, _)| *domain) {
            Some(domain) => self.disconnect(domain, format!("disabled: {reason}")),
            None => warn!(port = port.0, reason, "port failed"),
        }
    }

    /// Writes how much memory a guest should have where its balloon looks for it.
    fn balloon(&self, name: &str, mib: usize) -> Result<(), String> {
        let is_named = |(_, interface): &(_, &Interface)| interface.guest.name == name;
        let Some((domain, interface)) = self.interfaces.iter().find(is_named) else {
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
        set_memory_target(&*self.store, *domain, mib * 1024).map_err(|error| error.to_string())
    }

    fn status(&self) -> Status {
        let guests = self.interfaces.iter().map(|(domain, interface)| {
            let state = interface.vif.state();
            let why = match (state, &interface.reason) {
                (XenbusState::Connected, _) => None,
                (_, Some(reason)) => Some(reason.clone()),
                (_, None) => Some("waiting for the frontend".to_owned()),
            };
            let mac = interface.vif.mac().to_string();
            let port = interface.port.as_deref();
            let grants: Vec<_> = interface.grants.iter().filter_map(Weak::upgrade).collect();
            let status = PortStatus::guest(&interface.guest.name, domain.0, &mac, state, why, port);
            PortStatus { persistent_grants: PersistentStatus::of(&grants), ..status }
        });
        let uplinks = self.uplinks.iter().map(|port| PortStatus::uplink(port));
        let ports: Vec<_> = guests.chain(uplinks).collect();
        let absent = |guest: &&Guest| {
            !self.interfaces.values().any(|interface| interface.guest.name == guest.name)
        };
        let absent = self.config.guests.iter().filter(absent);
        Status {
            pid: std::process::id(),
            worker_threads: self.datapath.worker_threads(),
            cpu: self.stopwatch.read(),
            meter: MeterStatus::new(self.platform.meter(), &ports),
            ports,
            absent: absent.map(|guest| guest.name.clone()).collect(),
            addresses: self.datapath.addresses().iter().map(Into::into).collect(),
        }
    }
}

/// The domain a watch was set for: its token.
fn domain_of(token: &str) -> Option<DomId> {
    token.parse().ok().map(DomId)
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
