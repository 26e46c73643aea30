//! The network devices of virtual machines.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use control_socket::{PortKind, PortState, PortStatus, Reason};
use datapath::{Datapath, Port};
use hypervisor::Meter;
use port::Queue;
use seqpacket::remove_socket;
use tracing::{info, warn};
use vhost_user::{Condition, Link, Mode};
use wire::ethernet::MacAddr;

use crate::config::{self, Config};
use crate::daemon::carried::Carried;
use crate::daemon::device::{self, DeviceOptions, GuestDevice};
use crate::daemon::error::Error;
use crate::daemon::event::{Event, FrontEndChange};
use crate::daemon::front_end::FrontEnds;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::limits::{Limits, PortsCost};
use crate::daemon::mirrors::MirrorRole;
use crate::daemon::platform::DeviceServices;
use crate::daemon::socket_file;
use crate::daemon::status::stalled;
use crate::daemon::thread::spawn_for_client;
use crate::daemon::wrap::{Rules, Wrappers};
use crate::log::OPERATOR;

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

/// A port for a virtual machine, whether one uses it or not.
pub(super) struct VirtualMachine {
    /// Its settings; a session keeps those that it agreed on when it began.
    pub(super) config: config::Port,
    /// The settings of the session whose rings are served.
    agreed: Option<Arc<config::Port>>,
    front_ends: Arc<FrontEnds>,
    /// The socket's file, if this process made it.
    socket: Option<PathBuf>,
    pub(super) wrappers: Wrappers,
    /// None while its rings are not served.
    pub(super) port: Option<Arc<Port>>,
    renewal: Renewing,
    /// What it has carried before that.
    carried: Carried,
    /// Why they are not.
    reason: Option<Reason>,
    /// Down while the port is disabled or set down, or its device is not there.
    link: Arc<Link>,
    /// Its interface on the host, if it is not in the switch.
    device: Option<GuestDevice>,
}

impl VirtualMachine {
    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether this is its port.
    pub(super) fn is_at(&self, port: &Arc<Port>) -> bool {
        self.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port))
    }

    /// The settings with which its rings are served, or would be.
    pub(super) fn running(&self) -> config::Port {
        let Some(agreed) = &self.agreed else { return self.config.clone() };
        (**agreed).clone().taking(&self.config)
    }

    /// The name of its interface on the host.
    pub(super) fn device(&self) -> Option<String> {
        self.device.as_ref().map(GuestDevice::name)
    }

    /// Whether a front-end's rings are served.
    pub(super) fn is_connected(&self) -> bool {
        self.agreed.is_some()
    }

    /// Its rings can be served, as was agreed in the session.
    pub(super) fn plug(
        &mut self,
        agreed: Arc<config::Port>,
        queues: Vec<Queue>,
        datapath: &Datapath,
    ) {
        let mac = agreed.mac;
        self.agreed = Some(agreed);
        self.enforce(datapath);
        let count = queues.len();
        let queues: Vec<_> = queues.into_iter().map(|queue| self.wrappers.wrap(queue)).collect();
        if std::mem::take(&mut self.renewal) == Renewing::Begun
            && let Some(port) = &self.port
        {
            if datapath.resume_port(port, queues, None) {
                info!(port = self.name(), "its rings are served anew");
            } else {
                // Its front-end may come again.
                self.hang_up(Reason::NotConnected(NO_PLACE.to_owned()), datapath);
            }
            return;
        }
        let device = self.device.as_mut();
        let (name, wrappers) = (&self.config.name, &self.wrappers);
        let port = device::attach(device, datapath, name, queues, Vec::new(), wrappers);
        self.port = Some(port);
        self.teach(mac, datapath);
        self.reason = None;
        self.set_link();
        info!(port = self.name(), queues = count, "up");
    }

    /// Teaches the switch its address.
    fn teach(&self, mac: Option<MacAddr>, datapath: &Datapath) {
        if let (Some(port), Some(mac), None) = (&self.port, mac, &self.device)
            && let Err(error) = datapath.teach(port.id(), mac)
        {
            warn!(port = self.name(), %mac, %error, "its address can be taken");
        }
    }

    /// Its rings must not be used any more.
    pub(super) fn unplug(&mut self, why: Reason, datapath: &Datapath) {
        // One that was disabled keeps its reason.
        self.renewal = Renewing::Not;
        if let Some(port) = self.port.take() {
            device::detach(self.device.as_mut(), datapath, &port);
            self.carried.end(&port);
            info!(port = self.name(), %why, "down");
            self.reason = Some(why);
            self.set_link();
        }
        self.agreed = None;
    }

    /// Notes what happened to its front-end, unless there is a better reason.
    pub(super) fn front_end_changed(&mut self, change: FrontEndChange, datapath: &Datapath) {
        // It went, or its driver stopped, before its rings were served anew: they will not be.
        if self.renewal != Renewing::Not
            && !matches!(change, FrontEndChange::Settled(Condition::Served))
        {
            self.unplug(Reason::DriverStopped, datapath);
        }
        // One that was disabled keeps its reason.
        if matches!(self.reason, Some(Reason::Disabled(_))) {
            return;
        }
        let reason = match change {
            FrontEndChange::Ended(why) => {
                // The front-end says it again each time that it comes.
                self.reason = Some(Reason::FrontendGone(why));
                return;
            }
            FrontEndChange::Settled(Condition::Served) => {
                info!(port = self.name(), "its front-end shares memory with us");
                self.reason = None;
                return;
            }
            FrontEndChange::Settled(Condition::NoMemory) => Reason::NoSharedMemory,
            FrontEndChange::Settled(Condition::NoDriver) => Reason::NoDriver,
            FrontEndChange::Settled(Condition::Stopped) => Reason::DriverStopped,
        };
        // What was carried was in memory that is shared.
        let is_carrying = self.port.as_ref().is_some_and(|port| !Carried::of(port).is_nothing());
        match reason {
            _ if is_carrying => return,
            Reason::NoSharedMemory => warn!(port = self.name(), "{reason}"),
            _ => info!(port = self.name(), "{reason}"),
        }
        self.reason = Some(reason);
    }

    /// Sets the port's settings. The guard, the limits and whether it is enabled count at once, the others from the next session on.
    pub(super) fn set(&mut self, config: config::Port, datapath: &Datapath) {
        self.front_ends.set(config.clone());
        self.config = config;
        self.set_link();
        self.enforce(datapath);
    }

    /// Sets what it has to do with mirrors.
    pub(super) fn set_role(&mut self, role: MirrorRole, datapath: &Datapath) {
        if self.wrappers.set_role(role, datapath, self.port.as_deref()) {
            self.teach(self.running().mac, datapath);
        }
    }

    /// How many bytes the files of its guest's memory have now.
    pub(super) fn memory_in_use(&self) -> u64 {
        self.front_ends.memory_in_use()
    }

    /// Has its rings served anew: a worker sleeps in the memory of another guest, and has this one's queue. Frames for it wait meanwhile.
    pub(super) fn renew(&mut self, datapath: &Datapath) {
        if let Some(port) = &self.port {
            datapath.suspend_port(port);
            self.renewal = Renewing::Asked;
            self.front_ends.renew();
        }
    }

    /// Its session says that its rings must not be used any more.
    pub(super) fn rings_stopped(&mut self, why: Reason, datapath: &Datapath) {
        match self.renewal {
            // They are not used any more already.
            Renewing::Asked => self.renewal = Renewing::Begun,
            Renewing::Not | Renewing::Begun => self.unplug(why, datapath),
        }
    }

    /// Ends the present session, and lets no other begin until the port is added again.
    pub(super) fn cut_off(&mut self, why: Reason, datapath: &Datapath) {
        warn!(port = self.name(), %why, "its socket is closed until the port is added again");
        self.front_ends.stop();
        self.unplug(why.clone(), datapath);
        // Also if its rings were not served any more.
        self.reason = Some(why);
        self.set_link();
    }

    /// Ends the present session: the front-end may come again.
    pub(super) fn hang_up(&mut self, why: Reason, datapath: &Datapath) {
        self.unplug(why, datapath);
        self.front_ends.hang_up();
    }

    /// Has the wrappers enforce what the settings say.
    fn enforce(&mut self, datapath: &Datapath) {
        match rules(&self.running()) {
            Ok(rules) if rules == *self.wrappers.rules() => {}
            Ok(rules) => {
                if self.wrappers.set(rules, datapath, self.port.as_deref()) {
                    self.teach(self.running().mac, datapath);
                }
            }
            // Checked when the configuration was read.
            Err(reason) => warn!(port = self.name(), reason, "its rules stay as they are"),
        }
    }

    /// Notes if its device broke with this port.
    pub(super) fn fail_device(&mut self, port: &Arc<Port>, reason: &str, datapath: &Datapath) {
        if let Some(device) = &mut self.device {
            device.fail(port, reason, datapath);
            self.set_link();
        }
    }

    /// Looks whether its device is there.
    pub(super) fn look_for_device(&mut self, datapath: &Datapath) {
        if let Some(device) = &mut self.device {
            device.look(datapath);
            self.set_link();
        }
    }

    /// The guest has a link unless its port is disabled or set down, or its device is not there.
    fn set_link(&self) {
        let is_disabled = matches!(self.reason, Some(Reason::Disabled(_)));
        let has_device = self.device.as_ref().is_none_or(GuestDevice::is_there);
        self.link.set(self.config.enabled && !is_disabled && has_device);
    }

    /// Its status; `devices` are the interfaces of the daemon's namespace.
    pub(super) fn status(&self, devices: &Interfaces) -> PortStatus {
        let mac = self.running().mac;
        let status = PortStatus {
            mac: mac.map(|mac| mac.to_string()),
            reason: self.reason.clone().or_else(|| stalled(self.port.as_deref())),
            mapped_memory: Some(self.front_ends.memory()),
            refused_connections: self.front_ends.refused(),
            ..PortStatus::new(
                self.name(),
                PortKind::Guest,
                if self.port.is_some() { PortState::Up } else { PortState::Down },
            )
        };
        let status = self.wrappers.describe(status);
        let status = match &self.device {
            Some(device) => device.describe(status, devices),
            None => status,
        };
        self.carried.describe(status, self.port.as_deref())
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        self.front_ends.stop();
        if let Some(path) = &self.socket {
            // Somebody may have removed it already.
            let _ = remove_socket(path);
        }
    }
}

/// The virtual machine's port of this number.
pub(super) fn numbered(machines: &mut [VirtualMachine], id: u64) -> Option<&mut VirtualMachine> {
    machines.iter_mut().find(|machine| machine.front_ends.id() == id)
}

/// Opens the sockets of all ports, and waits for their front-ends.
pub(super) fn attach(
    config: &Config,
    meter: &Arc<Meter>,
    workers: usize,
    limits: &Arc<Limits>,
    events: &mpsc::Sender<Event>,
) -> Result<Vec<VirtualMachine>, Error> {
    warn_of_shortages(config, limits);
    let may_capture = config.daemon.capture;
    let open = |port| open(port, may_capture, meter, workers, limits, events);
    config.ports.iter().map(open).collect()
}

/// Says what the ports of a configuration may take beyond the limits of this process.
pub(super) fn warn_of_shortages(config: &Config, limits: &Limits) {
    for shortage in limits.shortages(PortsCost::of(&config.ports)) {
        warn!(
            target: OPERATOR,
            ports = config.ports.len(),
            "the virtual machines' ports together may take {shortage}; front-ends that come last may be refused"
        );
    }
}

/// Opens the socket of a port, and waits for its front-ends.
pub(super) fn open(
    port: &config::Port,
    may_capture: bool,
    meter: &Arc<Meter>,
    workers: usize,
    limits: &Arc<Limits>,
    events: &mpsc::Sender<Event>,
) -> Result<VirtualMachine, Error> {
    let failed = |reason: String| Error::Port { name: port.name.clone(), reason };
    let path = &port.socket;
    let socket = socket_file::open(port.mode(), path, port.socket_file());
    let socket = socket.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let open_device = |device: config::Device| {
        let services = DeviceServices::with_ordinary_memory(meter.clone());
        GuestDevice::open(DeviceOptions::named(device, workers), services)
    };
    let device = port.device().map(open_device).transpose().map_err(failed)?;
    let wrappers = Wrappers::new(&port.name, rules(port).map_err(failed)?, may_capture);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let front_ends = FrontEnds::new(id, port.clone(), limits.clone());
    let front_ends = front_ends.map_err(Error::system("open a port"))?;
    let link = Arc::<Link>::default();
    link.set(port.enabled);
    let (served, device_link) = (front_ends.clone(), link.clone());
    let (meter, events) = (meter.clone(), events.clone());
    spawn_for_client("vhost-user", move || served.serve(&socket, &device_link, &meter, &events))?;
    Ok(VirtualMachine {
        socket: (port.mode() == Mode::Server).then(|| path.clone()),
        config: port.clone(),
        agreed: None,
        front_ends,
        wrappers,
        port: None,
        renewal: Renewing::Not,
        carried: Carried::default(),
        reason: Some(Reason::WaitingForFrontend),
        link,
        device,
    })
}

/// What the wrappers of a port enforce.
fn rules(port: &config::Port) -> Result<Rules, String> {
    let sources = port.sources()?;
    let guard = port.mac.and_then(|mac| sources.policy(mac));
    let membership = port.membership()?;
    let flooding = port.flooding();
    let (limits, enabled, gro) = (port.limit, port.enabled, port.gro);
    Ok(Rules { guard, limits, enabled, membership, flooding, gro })
}
