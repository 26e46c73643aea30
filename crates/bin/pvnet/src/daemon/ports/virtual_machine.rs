//! The network devices of virtual machines: their queues come from front-ends, at a socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use control_socket::{PortStatus, Reason, TableKind};
use datapath::{Datapath, MemorySleep, PortMemory};
use seqpacket::remove_socket;
use tracing::{info, warn};
use vhost_user::{Condition, Link, Mode};
use wire::ethernet::MacAddr;

use super::device::{DeviceOptions, GuestDevice};
use super::front_end::FrontEnds;
use super::plugged::PluggedPort;
use super::port_event::{FrontEndChange, PortEvent, PortId, Transition};
use super::record::{Host, Identity, Record};
use super::source::{Agreed, Needs, Place, Source};
use crate::config::{self, Config, Effort, taking};
use crate::daemon::carried::Carried;
use crate::daemon::error::Error;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::platform::DeviceServices;
use crate::daemon::socket_file;
use crate::daemon::thread::spawn_for_client;

/// Why a port is down whose neighbours made two workers sleep at once.
const NO_PLACE: &str = "two workers sleep in the memory of neighbours, with a queue of this port";

/// Whether its rings are being served anew, with the port in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Renewing {
    #[default]
    Not,
    /// The session has been asked to.
    Asked,
    /// The session has let go of the queues before.
    Begun,
}

/// The number of the next port.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A virtual machine's device, whether one uses it or not.
struct VirtualMachine {
    /// Its settings; a session keeps those that it agreed on when it began.
    config: config::Port,
    /// The settings of the session whose rings are served.
    agreed: Option<Arc<config::Port>>,
    /// None before it is open.
    open: Option<Open>,
    renewal: Renewing,
    rest: Rest,
}

/// A time in which nobody touches its memory.
#[derive(Default)]
struct Rest {
    until: Option<Instant>,
    /// The queues that are served from then on.
    queues: Option<Vec<port::Queue>>,
}

/// What an open port has.
struct Open {
    front_ends: Arc<FrontEnds>,
    /// The socket's file, if this process made it.
    socket: Option<PathBuf>,
    /// Down while the port is disabled or set down, or its device is not there.
    link: Arc<Link>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.front_ends.stop();
        if let Some(path) = &self.socket {
            // Somebody may have removed it already.
            let _ = remove_socket(path);
        }
    }
}

/// The port of a table.
pub(super) fn closed(port: &config::Port, config: &Config) -> Result<PluggedPort, Error> {
    let id = PortId::Machine(NEXT.fetch_add(1, Ordering::Relaxed));
    let (config_of_port, renewal, rest) = (port.clone(), Renewing::Not, Rest::default());
    let source = VirtualMachine { config: config_of_port, agreed: None, open: None, renewal, rest };
    let identity = Identity { id, table: TableKind::Port, name: port.name.clone() };
    PluggedPort::closed(identity, source, port.rules(), config)
}

impl VirtualMachine {
    /// The settings with which its rings are served, or would be.
    fn running(&self) -> config::Port {
        let Some(agreed) = &self.agreed else { return self.config.clone() };
        taking((**agreed).clone(), &self.config, Effort::InPlace)
    }

    /// Has the wrappers enforce what the settings say.
    fn enforce(&self, port: &mut Record, datapath: &Datapath) {
        match self.running().rules() {
            Ok(rules) => port.enforce(rules, datapath),
            // Checked when the configuration was read.
            Err(reason) => warn!(port = port.name(), reason, "its rules stay as they are"),
        }
    }

    /// The guest has a link unless its port is disabled or set down, or its device is not there.
    fn set_link(&self, port: &Record) {
        let is_disabled = matches!(port.reason, Some(Reason::Disabled(_)));
        let has_device = port.device.as_ref().is_none_or(GuestDevice::is_there);
        if let Some(Open { link, .. }) = &self.open {
            link.set(self.config.settings.enabled && !is_disabled && has_device);
        }
    }

    /// Its rings can be served.
    fn ready(&mut self, port: &mut Record, queues: Vec<port::Queue>, host: &Host) -> Transition {
        if self.rest.until.is_some() {
            self.rest.queues = Some(queues);
            return Transition::None;
        }
        self.enforce(port, &host.datapath);
        self.renewal = Renewing::Not;
        let Some(own) = port.port.as_ref() else {
            return Transition::Connect { queues, tasks: Vec::new() };
        };
        let queues = queues.into_iter().map(|queue| port.wrappers.wrap(queue)).collect();
        if host.datapath.resume_port(own, queues, None) {
            info!(port = port.name(), "its rings are served anew");
            return Transition::None;
        }
        // Its front-end may come again.
        self.hang_up(true);
        Transition::Disconnect(Reason::NotConnected(NO_PLACE.to_owned()))
    }

    /// Its session says that its rings must not be used any more.
    fn gone(&mut self, port: &Record, why: Reason) -> Transition {
        self.rest.queues = None;
        match self.renewal {
            // They are not used any more already.
            Renewing::Asked => {
                self.renewal = Renewing::Begun;
                Transition::None
            }
            Renewing::Not | Renewing::Begun if port.port.is_some() => Transition::Disconnect(why),
            // One that was disabled keeps its reason.
            Renewing::Not | Renewing::Begun => Transition::None,
        }
    }

    /// Notes what happened to its front-end, unless there is a better reason.
    fn front_end_changed(&self, port: &mut Record, change: FrontEndChange) -> Transition {
        let is_served = matches!(change, FrontEndChange::Settled(Condition::Served));
        // It went, or its driver stopped, before its rings were served anew: they will not be.
        let goes = self.renewal != Renewing::Not && !is_served;
        // One that was disabled keeps its reason.
        if matches!(port.reason, Some(Reason::Disabled(_))) {
            return Transition::None;
        }
        let reason = match change {
            // The front-end says it again each time that it comes.
            FrontEndChange::Ended(why) => Reason::FrontendGone(why),
            FrontEndChange::Settled(condition) => {
                // What was carried was in memory that is shared.
                let is_carrying =
                    !goes && port.port.as_ref().is_some_and(|port| !Carried::of(port).is_nothing());
                let reason = match condition {
                    Condition::Served => {
                        info!(port = port.name(), "its front-end shares memory with us");
                        port.reason = None;
                        return Transition::None;
                    }
                    _ if is_carrying => return Transition::None,
                    Condition::NoMemory => Reason::NoSharedMemory,
                    Condition::NoDriver => Reason::NoDriver,
                    Condition::Stopped => Reason::DriverStopped,
                };
                match reason {
                    Reason::NoSharedMemory => warn!(port = port.name(), "{reason}"),
                    _ => info!(port = port.name(), "{reason}"),
                }
                reason
            }
        };
        if goes {
            return Transition::Disconnect(reason);
        }
        port.reason = Some(reason);
        Transition::None
    }
}

impl Source for VirtualMachine {
    fn needs(&self) -> Needs {
        let settings = &self.config.settings;
        let device = self.config.device().is_some_and(|device| device.name.is_some());
        Needs { device, ..Needs::of_socket(settings.socket_side(), &settings.socket) }
    }

    fn places(&self) -> Vec<Place> {
        let device = self.config.device().and_then(|device| device.name);
        let device = device.map(|name| Place::Interface(None, name));
        device.into_iter().chain([Place::Socket(self.config.settings.socket.clone())]).collect()
    }

    /// Opens its socket, and waits for its front-ends.
    fn open(&mut self, record: &mut Record, host: &Host) -> Result<(), Error> {
        let port = &self.config;
        let settings = &port.settings;
        let (path, side) = (&settings.socket, settings.socket_side());
        let socket = socket_file::open(side, path, settings.socket_file());
        let socket =
            socket.map_err(|error| record.failed(format!("{}: {error}", path.display())))?;
        let workers = host.datapath.workers();
        let open_device = |device: config::HostDevice| {
            let services = DeviceServices::with_ordinary_memory(host.meter().clone());
            GuestDevice::open(DeviceOptions::named(device, workers), services)
        };
        let device = port.device().map(open_device).transpose();
        record.device = device.map_err(|reason| record.failed(reason))?;
        let front_ends = FrontEnds::new(port.clone(), host.front_ends.clone(), host.limits.clone());
        let front_ends = front_ends.map_err(Error::system("open a port"))?;
        let link = Arc::<Link>::default();
        link.set(settings.enabled);
        let (served, device_link) = (front_ends.clone(), link.clone());
        let (meter, events) = (host.meter().clone(), host.events_of(record));
        let serve = move || served.serve(&socket, &device_link, &meter, &events);
        spawn_for_client("vhost-user", serve)?;
        let socket = (side == Mode::Server).then(|| path.clone());
        self.open = Some(Open { front_ends, socket, link });
        record.reason = Some(Reason::WaitingForFrontend);
        Ok(())
    }

    fn write_running(&self, config: &mut Config) {
        if let Some(port) = config.ports.iter_mut().find(|port| port.name == self.config.name) {
            *port = self.running();
        }
    }

    fn agreed_by(&self) -> Option<Agreed> {
        self.agreed.is_some().then_some(Agreed::ByDaemon)
    }

    /// The guard, the limits and whether it is enabled count at once, the others from the next session on.
    fn set(&mut self, port: &mut Record, host: &Host) -> Result<(), String> {
        let new = host.config.ports.iter().find(|other| other.name == self.config.name);
        let Some(new) = new else { return Ok(()) };
        self.config = new.clone();
        if let Some(Open { front_ends, .. }) = &self.open {
            front_ends.set(new.clone());
        }
        self.set_link(port);
        self.enforce(port, &host.datapath);
        Ok(())
    }

    fn serve(&mut self, port: &mut Record, what: PortEvent, host: &Host) -> Transition {
        match what {
            PortEvent::Ready { queues, agreed } => {
                self.agreed = agreed;
                self.ready(port, queues, host)
            }
            PortEvent::Gone(why) => self.gone(port, why),
            PortEvent::FrontEnd(change) => self.front_end_changed(port, change),
            PortEvent::HeldUp(time) => {
                if let Some(rest) = port.suspicion.charge(time, Instant::now()) {
                    self.rest(port, &host.datapath, rest);
                }
                Transition::None
            }
            _ => Transition::None,
        }
    }

    fn attached(&mut self, port: &Record) -> Result<(), Reason> {
        self.set_link(port);
        let queues = port.port.as_ref().map(|port| port.queues());
        info!(port = port.name(), queues, "up");
        Ok(())
    }

    fn detached(&mut self, port: &Record, had_queues: bool) {
        (self.agreed, self.renewal, self.rest.queues) = (None, Renewing::Not, None);
        if had_queues {
            info!(port = port.name(), why = port.why(), "down");
        }
        self.set_link(port);
    }

    fn hang_up(&mut self, may_return: bool) {
        match &self.open {
            Some(open) if may_return => open.front_ends.hang_up(),
            Some(open) => open.front_ends.stop(),
            None => {}
        }
    }

    fn condemn(&mut self, what: &str) -> Reason {
        if let Some(open) = &self.open {
            open.front_ends.condemn(what);
        }
        Reason::Disabled(format!("{what}; add the port again to let it come back"))
    }

    fn condemned(&self) -> Option<Reason> {
        self.open.as_ref()?.front_ends.condemned().map(Reason::FrontendGone)
    }

    /// Its device may be gone, or there again, and its rest over.
    fn check(&mut self, port: &mut Record, host: &Host) -> Transition {
        self.set_link(port);
        if self.rest.until.take_if(|until| *until <= Instant::now()).is_none() {
            return Transition::None;
        }
        let queues = self.rest.queues.take();
        queues.map_or(Transition::None, |queues| self.ready(port, queues, host))
    }

    fn describe(&self, _: &Record, status: PortStatus, _: &Interfaces) -> PortStatus {
        let front_ends = self.open.as_ref().map(|open| &open.front_ends);
        PortStatus {
            mapped_memory: front_ends.map(|front_ends| front_ends.memory()),
            refused_connections: front_ends.map_or(0, |front_ends| front_ends.refused()),
            reason: status.reason.or(self.rest.until.map(|_| Reason::HeldWorkersUp)),
            ..status
        }
    }

    fn mac(&self) -> Option<MacAddr> {
        self.agreed.as_deref().unwrap_or(&self.config).settings.mac
    }

    fn memory_in_use(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.front_ends.memory_in_use())
    }

    /// A driver sends through the queue of the CPU, and gets the frames of a queue on that CPU.
    fn steers_flows(&self) -> bool {
        true
    }

    /// Its rings are served anew.
    fn memory(&self) -> PortMemory {
        PortMemory { sleep: MemorySleep::AtWill, is_replaceable: true, borrows: false }
    }

    /// Frames for it wait meanwhile.
    fn renew(&mut self, port: &Record, datapath: &Datapath) {
        // Once it is asked for, no thread gets its queues before they are served anew.
        let is_due = self.renewal == Renewing::Not;
        if let (Some(port), Some(open), true) = (&port.port, &self.open, is_due) {
            datapath.suspend_port(port);
            self.renewal = Renewing::Asked;
            open.front_ends.renew();
        }
    }

    fn rest(&mut self, port: &Record, datapath: &Datapath, time: Duration) {
        warn!(port = port.name(), "{}", Reason::HeldWorkersUp);
        self.rest.until = Some(Instant::now() + time);
        self.renew(port, datapath);
    }
}
