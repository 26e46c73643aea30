//! The ports of the daemon, whatever they are made of.
//!
//! A [`PluggedPort`] is what the control thread has of each: a [`Record`], the same for all, and a [`Source`], where its queues come
//! from. A source serves what happens to it, and answers with the [`Transition`] that follows; it attaches and detaches nothing after it
//! was opened.

mod back_end;
pub(super) mod device;
mod front_end;
mod guest_queues;
mod uplink;
mod uplink_device;
mod uplink_queues;
pub(super) mod vif;
mod virtual_machine;
mod xdp_queues;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use control_socket::{PortKind, PortState, PortStatus, Reason};
use datapath::{Datapath, Port};
use hypervisor::Meter;
use port::{Coalescing, Queue, Task};
use vhost_user::Mode;
use wire::ethernet::MacAddr;
use xenstore::Store;

use crate::config::{self, Config, Guest, Rules};
use crate::daemon::backends::VifId;
use crate::daemon::carried::Carried;
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::limits::Limits;
use crate::daemon::platform::Platform;
use crate::daemon::sandbox::Reach;
use crate::daemon::wrap::Wrappers;
use device::GuestDevice;

pub(super) use front_end::FrontEndChange;
pub(super) use guest_queues::{GuestQueues, QueueChange, Receiver};
pub(super) use virtual_machine::warn_of_shortages;

/// A port, in the order in which they are listed. The numbers are never given again, as names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PortId {
    /// A guest's interface.
    Vif(VifId),
    /// A virtual machine's port.
    Machine(u64),
    /// An uplink.
    Uplink(u64),
}

/// What ports are opened with, and live in.
pub(super) struct Host {
    /// What runs, or will with the next connection.
    pub(super) config: Config,
    pub(super) platform: Arc<dyn Platform>,
    pub(super) datapath: Datapath,
    pub(super) limits: Arc<Limits>,
    pub(super) events: mpsc::Sender<Event>,
    /// Where the daemon may make sockets.
    pub(super) reach: Reach,
}

impl Host {
    pub(super) fn store(&self) -> &dyn Store {
        &**self.platform.store()
    }

    fn meter(&self) -> &Arc<Meter> {
        self.platform.meter()
    }

    /// Has the control thread hear of a port.
    fn events_of(&self, port: &Record) -> PortEvents {
        PortEvents { port: port.identity.id, events: self.events.clone() }
    }
}

/// What happened to a port.
pub(super) enum PortEvent {
    /// Its other side serves these queues, as was agreed with a virtual machine's front-end.
    Ready { queues: Vec<Queue>, agreed: Option<Arc<config::Port>> },
    /// It does not any more.
    Gone(Reason),
    /// It could not be agreed with.
    Refused(Reason),
    /// Something happened to a virtual machine's front-end.
    FrontEnd(FrontEndChange),
    /// Something happened to a queue that it keeps for a guest.
    Queue(QueueChange),
    /// The state of an interface's frontend, in the store, has changed.
    Frontend,
    /// The toolstack has written something for an interface: perhaps that its script has run.
    Script,
    /// The toolstack has changed what it wants of an interface.
    Wish,
}

/// Tells the control thread what happens to a port.
#[derive(Clone)]
pub(super) struct PortEvents {
    port: PortId,
    events: mpsc::Sender<Event>,
}

impl PortEvents {
    /// Tells it. Whoever waits for the result knows that it is served: queues that are gone are not used any more.
    pub(super) fn tell(&self, what: PortEvent) -> mpsc::Receiver<()> {
        let (done, served) = mpsc::channel();
        // After the control thread has ended, nobody uses a queue.
        let _ = self.events.send(Event::Port { port: self.port, what, done });
        served
    }
}

/// What the control thread does with a port after something has happened to it.
pub(super) enum Transition {
    None,
    /// Attaches these queues and tasks; then see [`Source::attached`].
    Connect {
        queues: Vec<Queue>,
        tasks: Vec<Box<dyn Task>>,
    },
    /// Drops its queues, for this reason; then see [`Source::detached`].
    Disconnect(Reason),
    /// Drops its queues, and forgets it; see [`Source::close`].
    Remove,
}

/// Whether the switch keeps a port's address for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Address {
    /// It was not asked to, as the port is, or where it is.
    #[default]
    Untaught,
    Kept,
    /// The port of this name has it.
    Taken(String),
    /// It has no place for it.
    Refused,
}

/// What only one port can have at a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// An interface on the host, in a namespace.
    Interface(Option<String>, String),
    Socket(PathBuf),
    /// A card's context for the driver domain.
    Context(String),
}

/// What a port needs to be opened, and while it is.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// A socket is made in this folder.
    pub(super) folder: Option<PathBuf>,
    /// A socket of others is connected to.
    pub(super) connects: bool,
    /// A device of the host is opened.
    pub(super) device: bool,
    /// Its network namespace must be there, if it has one,
    pub(super) namespace: Option<String>,
    /// and in it this interface.
    pub(super) interface: Option<String>,
    /// Later, programs are run there,
    pub(super) programs: bool,
    /// the maps of BPF programs are changed;
    pub(super) bpf: bool,
    /// and sockets on a device are opened.
    pub(super) sockets: bool,
}

impl Needs {
    /// Of a socket that this side makes, or connects to.
    fn of_socket(side: Mode, socket: &Path) -> Self {
        match side {
            Mode::Server => Self { folder: socket.parent().map(Path::to_owned), ..Self::default() },
            Mode::Client => Self { connects: true, ..Self::default() },
        }
    }

    /// What the daemon opens after its start, where it is not the socket that fails.
    pub(super) fn is_socket(&self) -> bool {
        !self.device && (self.connects || self.folder.is_some())
    }
}

/// Which port it is.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) id: PortId,
    /// The kind of its table in the configuration.
    pub(super) table: &'static str,
    pub(super) name: String,
    /// What is behind it, for operators.
    pub(super) kind: PortKind,
}

/// What a port is to the daemon, whatever it is made of.
pub(super) struct Record {
    pub(super) identity: Identity,
    /// Whether its source is open.
    pub(super) is_open: bool,
    pub(super) wrappers: Wrappers,
    /// None while it has no queues.
    pub(super) port: Option<Arc<Port>>,
    /// What it has carried before it got the queues that it has.
    pub(super) carried: Carried,
    /// For operators: why it does not work.
    pub(super) reason: Option<Reason>,
    pub(super) address: Address,
    /// Its interface on the host, if it is not in the switch.
    pub(super) device: Option<GuestDevice>,
    /// Its queues for guests, if it keeps some.
    pub(super) guest_queues: Option<Box<dyn GuestQueues>>,
}

impl Record {
    fn new(identity: Identity, rules: Rules, config: &Config) -> Self {
        Self {
            wrappers: Wrappers::new(&identity.name, rules, config.daemon.capture),
            identity,
            is_open: false,
            port: None,
            carried: Carried::default(),
            reason: None,
            address: Address::default(),
            device: None,
            guest_queues: None,
        }
    }

    /// Attaches queues: to the switch, or to the port's device.
    fn attach(
        &mut self,
        queues: Vec<Queue>,
        tasks: Vec<Box<dyn Task>>,
        coalescing: Option<Coalescing>,
        datapath: &Datapath,
    ) -> Arc<Port> {
        let queues = queues.into_iter().map(|queue| self.wrappers.wrap(queue)).collect();
        let port = match &mut self.device {
            Some(device) => device.attach(datapath, &self.identity.name, queues, tasks),
            None => self.wrappers.attach(datapath, queues, tasks, coalescing),
        };
        self.port = Some(port.clone());
        self.reason = None;
        if let Some(queues) = &mut self.guest_queues {
            queues.plugged(self.port.as_ref(), datapath, &self.wrappers);
        }
        port
    }

    /// Drops its queues. Returns whether it had some.
    pub(super) fn detach(&mut self, datapath: &Datapath) -> bool {
        self.address = Address::Untaught;
        let Some(port) = self.port.take() else { return false };
        if let Some(queues) = &mut self.guest_queues {
            queues.plugged(None, datapath, &self.wrappers);
        }
        if let Some(device) = &mut self.device {
            device.detach(datapath);
        }
        datapath.detach(port.id());
        self.carried.end(&port);
        true
    }

    /// Has the wrappers enforce other rules.
    fn enforce(&mut self, rules: Rules, datapath: &Datapath) {
        if rules != *self.wrappers.rules()
            && self.wrappers.set(rules, datapath, self.port.as_deref())
        {
            self.address = Address::Untaught;
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.identity.name
    }

    /// Why it is not opened.
    fn failed(&self, reason: String) -> Error {
        let Identity { table, name, .. } = self.identity.clone();
        Error::Port { table, name, reason }
    }

    /// Why it does not work, for the log.
    fn why(&self) -> Option<String> {
        self.reason.as_ref().map(ToString::to_string)
    }

    /// Whether this is its port.
    pub(super) fn is_at(&self, port: &Arc<Port>) -> bool {
        self.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port))
    }
}

/// Where a port's queues come from.
pub(super) trait Source: Send {
    /// What it needs; nothing if others open it.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// What no other port can have while it has it.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }

    /// Opens that for which the daemon gives up its rights after its start.
    ///
    /// # Errors
    /// It is not there, or cannot be used; the end of a sentence about the port.
    fn prepare(&mut self, config: &Config) -> Result<(), String> {
        let _ = config;
        Ok(())
    }

    /// Opens it, prepared or adopted.
    ///
    /// # Errors
    /// Something is not there, or cannot be used.
    fn open(&mut self, port: &mut Record, host: &Host) -> Result<(), Error>;

    /// Gives back what it has. Its port has no queues any more.
    fn close(self: Box<Self>, port: Record, host: &Host) {
        let _ = (port, host);
    }

    /// Puts the settings that it runs with into the place of those of a configuration.
    fn write_running(&self, config: &mut Config);

    /// Whether settings are agreed with its other side.
    fn is_connected(&self) -> bool {
        false
    }

    /// Takes those settings of the host's configuration that change now.
    ///
    /// # Errors
    /// They do not fit to what the toolstack says.
    fn set(&mut self, port: &mut Record, host: &Host) -> Result<(), String>;

    /// Serves what happened to it.
    fn serve(&mut self, port: &mut Record, what: PortEvent, host: &Host) -> Transition;

    /// A queue of its port broke.
    fn fail(&mut self, port: &mut Record, reason: &str) -> Transition {
        let _ = port;
        Transition::Disconnect(Reason::Disabled(reason.to_owned()))
    }

    /// Its queues are attached.
    ///
    /// # Errors
    /// They cannot be used after all.
    fn attached(&mut self, port: &Record) -> Result<(), Reason>;

    /// Its queues are dropped, if it had some, for the reason in its record.
    fn detached(&mut self, port: &Record, had_queues: bool);

    /// Ends what is agreed with its other side, which may come again, or may not until the port is added again.
    fn hang_up(&mut self, may_return: bool) {
        let _ = may_return;
    }

    /// Whether its other side stays connected when the daemon ends, for the next one.
    fn outlives_the_daemon(&self, host: &Host) -> bool {
        let _ = host;
        false
    }

    /// Looks whether what it has is still there. Called now and then.
    fn look(&mut self, port: &mut Record) {
        let _ = port;
    }

    /// Adds what it knows to a status; `devices` are the interfaces of the daemon's namespace.
    fn describe(&self, port: &Record, status: PortStatus, devices: &Interfaces) -> PortStatus;

    /// The address of what is behind it, if that is one station.
    fn mac(&self) -> Option<MacAddr> {
        None
    }

    /// When a worker is woken up for frames that come in.
    fn coalescing(&self) -> Option<Coalescing> {
        None
    }

    /// The guest whose interface it is, with the settings with which it has joined but for what changed in place since.
    fn guest(&self) -> Option<(VifId, &Guest)> {
        None
    }

    /// Whether an uplink may put frames into its buffers.
    fn lends(&self) -> bool {
        false
    }

    /// How many bytes the files of its guest's memory have now, if the guest can change that.
    fn memory_in_use(&self) -> Option<u64> {
        None
    }

    /// Gets new queues: a worker sleeps with this one's in the memory of another guest.
    fn renew(&mut self, port: &Record, datapath: &Datapath) {
        let _ = (port, datapath);
    }

    /// A worker sleeps in the memory of a guest to which it carries frames from a queue of this port: another handle serves the others.
    fn replace_sleeping_ingress(&self, port: &Record, queue: usize, datapath: &Datapath) {
        let _ = (port, queue, datapath);
    }

    /// The same of frames to this port.
    fn replace_sleeping_egress(&self, port: &Record, datapath: &Datapath) {
        let _ = (port, datapath);
    }
}

/// The tables of a configuration whose ports the daemon opens itself, those first that it opens before it gives up its rights.
pub(super) const TABLES: [&str; 2] = ["uplink", "port"];

/// The ports of the tables of one kind, to be opened; or only that of this name. Those of guests come with the guests.
///
/// # Errors
/// Keys of a table do not fit together, which was checked when the configuration was read.
pub(super) fn of_tables(
    config: &Config,
    table: &str,
    name: Option<&str>,
) -> Result<Vec<PluggedPort>, Error> {
    let is_wanted = |own: &str| name.is_none_or(|name| name == own);
    match table {
        "uplink" => {
            let wanted = config.uplinks.iter().filter(|uplink| is_wanted(&uplink.name));
            wanted.map(|uplink| uplink::closed(uplink, config)).collect()
        }
        "port" => {
            let wanted = config.ports.iter().filter(|port| is_wanted(&port.name));
            wanted.map(|port| virtual_machine::closed(port, config)).collect()
        }
        _ => Ok(Vec::new()),
    }
}

/// A port of the daemon.
pub(super) struct PluggedPort {
    pub(super) record: Record,
    pub(super) source: Box<dyn Source>,
}

impl PluggedPort {
    /// A port that is not open yet.
    pub(super) fn closed(
        identity: Identity,
        source: impl Source + 'static,
        rules: Result<Rules, String>,
        config: &Config,
    ) -> Result<Self, Error> {
        let Identity { table, name, .. } = identity.clone();
        let rules = rules.map_err(|reason| Error::Port { table, name, reason })?;
        let record = Record::new(identity, rules, config);
        Ok(Self { record, source: Box::new(source) })
    }

    /// See [`Source::prepare`].
    pub(super) fn prepare(&mut self, config: &Config) -> Result<(), Error> {
        self.source.prepare(config).map_err(|reason| self.record.failed(reason))
    }

    /// Opens it.
    ///
    /// # Errors
    /// Something is not there, or cannot be used.
    pub(super) fn open(mut self, host: &Host) -> Result<Self, Error> {
        self.prepare(&host.config)?;
        let Self { record, source } = &mut self;
        match source.open(record, host) {
            Ok(()) => record.is_open = true,
            Err(error) => {
                record.detach(&host.datapath);
                return Err(error);
            }
        }
        Ok(self)
    }

    /// Whether it is of this table of the configuration: of a guest, by the guest's name or by that of the interface.
    pub(super) fn is_of(&self, table: &str, name: &str) -> bool {
        let is_its = |(_, guest): (_, &Guest)| guest.name == name;
        let identity = &self.record.identity;
        identity.table == table
            && (identity.name == name || self.source.guest().is_some_and(is_its))
    }

    /// Whether it has a place that another one wants.
    pub(super) fn has_any(&self, places: &[Place]) -> bool {
        let device = self.record.device.as_ref();
        let device = device.map(|device| Place::Interface(None, device.name()));
        let own = if self.record.is_open { self.source.places() } else { Vec::new() };
        own.iter().chain(&device).any(|own| places.contains(own))
    }

    /// Serves what happened to it.
    pub(super) fn serve(&mut self, what: PortEvent, host: &Host) -> Transition {
        let Self { record, source } = self;
        match (what, &mut record.guest_queues) {
            (PortEvent::Queue(change), Some(queues)) => {
                queues.changed(change, &host.datapath, &record.wrappers);
                Transition::None
            }
            (what, _) => source.serve(record, what, host),
        }
    }

    /// Attaches queues to the datapath.
    pub(super) fn attach(
        &mut self,
        queues: Vec<Queue>,
        tasks: Vec<Box<dyn Task>>,
        datapath: &Datapath,
    ) {
        self.record.attach(queues, tasks, self.source.coalescing(), datapath);
    }

    /// Drops its queues, if it has some, for a reason.
    pub(super) fn disconnect(&mut self, why: Reason, datapath: &Datapath) {
        let had_queues = self.record.detach(datapath);
        self.record.reason = Some(why);
        self.source.detached(&self.record, had_queues);
    }

    /// Gives back all that it has.
    pub(super) fn close(mut self, host: &Host) {
        // Their sockets and queues belong to the port.
        self.record.guest_queues = None;
        self.record.detach(&host.datapath);
        self.source.close(self.record, host);
    }

    /// What an uplink's queue for a guest is given to, if it may have one: only a guest that has its address may, because frames in its
    /// queue are for nobody else.
    pub(super) fn receiver(&self) -> Option<Receiver<'_>> {
        let Self { record, source } = self;
        let has_address = source.lends() && record.address == Address::Kept;
        let port = record.port.as_ref().filter(|_| has_address)?;
        let ((id, guest), mac) = (source.guest()?, source.mac()?);
        Some(Receiver { id, guest: &guest.name, name: record.name(), mac, port })
    }

    /// Its status; `devices` are the interfaces of the daemon's namespace.
    pub(super) fn status(&self, devices: &Interfaces) -> PortStatus {
        let Self { record, source } = self;
        let port = record.port.as_deref();
        let state = if port.is_some() { PortState::Up } else { PortState::Down };
        let taken = match &record.address {
            Address::Taken(owner) => Some(Reason::AddressTaken(owner.clone())),
            _ => None,
        };
        let is_stalled = port.is_some_and(Port::is_stalled);
        let guest_queues = record.guest_queues.as_ref().map(|queues| queues.status());
        let status = PortStatus {
            mac: source.mac().map(|mac| mac.to_string()),
            reason: record.reason.clone().or(taken).or(is_stalled.then_some(Reason::Stalled)),
            guest_queues: guest_queues.unwrap_or_default(),
            ..PortStatus::new(record.name(), record.identity.kind, state)
        };
        let status = record.wrappers.describe(source.describe(record, status, devices));
        let status = match &record.device {
            Some(device) => device.describe(status, devices),
            None => status,
        };
        record.carried.describe(status, port)
    }
}
