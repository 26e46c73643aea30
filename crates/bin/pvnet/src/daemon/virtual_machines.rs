//! The network devices of virtual machines.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use control_socket::{PortKind, PortState, PortStatus, Reason};
use datapath::{Datapath, Port};
use hypervisor::Meter;
use port::Queue;
use tracing::{info, warn};
use vhost_user::{Device, Ended, Link, Mode, Pace, Session, Socket};
use wire::ethernet::MacAddr;

use crate::config::{self, Config};
use crate::daemon::device::{self, DeviceOptions, GuestDevice};
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::status::counted;
use crate::daemon::thread::spawn_for_client;
use crate::daemon::wrap::Wrappers;

/// A port for a virtual machine, whether one uses it or not.
pub(super) struct VirtualMachine {
    pub(super) name: String,
    mac: Option<MacAddr>,
    /// The socket's file, if this process made it.
    socket: Option<PathBuf>,
    pub(super) wrappers: Wrappers,
    /// None while its rings are not served.
    pub(super) port: Option<Arc<Port>>,
    /// Why they are not.
    reason: Option<Reason>,
    /// Down while the port is disabled.
    link: Arc<Link>,
    /// Its interface on the host, if it is not in the switch.
    device: Option<GuestDevice>,
}

impl VirtualMachine {
    /// Whether this is its port.
    pub(super) fn is_at(&self, port: &Arc<Port>) -> bool {
        self.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port))
    }

    /// Its rings can be served.
    pub(super) fn plug(&mut self, queues: Vec<Queue>, datapath: &Datapath) {
        let count = queues.len();
        let queues = queues.into_iter().map(|queue| self.wrappers.wrap(queue)).collect();
        let device = self.device.as_mut();
        let port = device::attach(device, datapath, &self.name, queues, Vec::new());
        if let Some(mac) = self.mac.filter(|_| self.device.is_none())
            && let Err(error) = datapath.teach(port.id(), mac)
        {
            warn!(port = self.name, %mac, %error, "its address can be taken");
        }
        self.port = Some(port);
        self.reason = None;
        self.link.set(true);
        info!(port = self.name, queues = count, "up");
    }

    /// Its rings must not be used any more.
    pub(super) fn unplug(&mut self, why: Reason, datapath: &Datapath) {
        // One that was disabled keeps its reason.
        if let Some(port) = self.port.take() {
            device::detach(self.device.as_mut(), datapath, &port);
            info!(port = self.name, %why, "down");
            self.link.set(!matches!(why, Reason::Disabled(_)));
            self.reason = Some(why);
        }
    }

    /// Notes if its device broke with this port.
    pub(super) fn fail_device(&mut self, port: &Arc<Port>, reason: &str, datapath: &Datapath) {
        if let Some(device) = &mut self.device {
            device.fail(port, reason, datapath);
            self.follow_device();
        }
    }

    /// Looks whether its device is there.
    pub(super) fn look_for_device(&mut self, datapath: &Datapath) {
        if let Some(device) = &mut self.device {
            device.look(datapath);
            self.follow_device();
        }
    }

    /// The guest has a link only if it has a device.
    fn follow_device(&self) {
        if let Some(device) = self.device.as_ref().filter(|_| self.port.is_some()) {
            self.link.set(device.is_there());
        }
    }

    pub(super) fn status(&self) -> PortStatus {
        let stalled = self.port.as_ref().is_some_and(|port| port.is_stalled());
        let status = PortStatus {
            mac: self.mac.map(|mac| mac.to_string()),
            reason: self.reason.clone().or(stalled.then_some(Reason::Stalled)),
            ..PortStatus::new(
                &self.name,
                PortKind::Guest,
                if self.port.is_some() { PortState::Up } else { PortState::Down },
            )
        };
        let status = self.wrappers.describe(status);
        let status = match &self.device {
            Some(device) => device.describe(status),
            None => status,
        };
        match &self.port {
            Some(port) => counted(status, port),
            None => status,
        }
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        if let Some(path) = &self.socket {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The virtual machine's port of this name.
pub(super) fn named<'a>(
    machines: &'a mut [VirtualMachine],
    name: &str,
) -> Option<&'a mut VirtualMachine> {
    machines.iter_mut().find(|machine| machine.name == name)
}

/// Tells the control thread what a session says.
struct Messenger {
    name: String,
    events: mpsc::Sender<Event>,
}

impl Device for Messenger {
    fn start(&self, queues: Vec<Queue>) {
        // After the control thread has ended, the queues are dropped, and nobody serves them.
        let _ = self.events.send(Event::RingsReady { name: self.name.clone(), queues });
    }

    fn stop(&self, why: &str) {
        let (answer, answered) = mpsc::channel();
        let (name, why) = (self.name.clone(), Reason::NotConnected(why.to_owned()));
        if self.events.send(Event::RingsStopped { name, why, answer }).is_ok() {
            // Ends when they are stopped, or with the control thread, which stops them too.
            let _ = answered.recv();
        }
    }
}

/// Opens the sockets of all ports, and waits for their front-ends.
pub(super) fn attach(
    config: &Config,
    meter: &Arc<Meter>,
    workers: usize,
    events: &mpsc::Sender<Event>,
) -> Result<Vec<VirtualMachine>, Error> {
    config.ports.iter().map(|port| attach_one(port, config, meter, workers, events)).collect()
}

fn attach_one(
    port: &config::Port,
    config: &Config,
    meter: &Arc<Meter>,
    workers: usize,
    events: &mpsc::Sender<Event>,
) -> Result<VirtualMachine, Error> {
    let name = port.name.clone();
    let failed = |reason: String| Error::Port { name: name.clone(), reason };
    let path = &port.socket;
    let socket = Socket::open(port.mode(), path);
    let socket = socket.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let sources = port.sources().map_err(failed)?;
    let policy = port.mac.and_then(|mac| sources.policy(mac));
    let wrappers = Wrappers::new(&name, policy, &port.limit, config.daemon.capture);
    let open = |device: config::Device| {
        let options = DeviceOptions::named(device, workers);
        GuestDevice::open(options, meter)
    };
    let host_device = port.device().map(open).transpose().map_err(failed)?;
    let device = Arc::new(Messenger { name: name.clone(), events: events.clone() });
    let (options, mac, meter) = (port.offered(), port.mac, meter.clone());
    let link = Arc::<Link>::default();
    let (device_link, config_space) = (link.clone(), port.config_space);
    spawn_for_client("vhost-user", move || {
        let mut pace = Pace::default();
        loop {
            let stream = socket.next();
            std::thread::sleep(pace.begin(Instant::now()));
            info!(port = device.name, "a front-end is connected");
            let ended = match Session::new(options, device.clone(), meter.clone()) {
                Ok(session) => session
                    .of_device(mac, device_link.clone())
                    .offering_config_space(config_space)
                    .run(stream),
                Err(error) => Ended { why: error.to_string(), is_hostile: false },
            };
            let Ended { why, is_hostile } = ended;
            warn!(port = device.name, why, "its front-end's session has ended");
            if is_hostile {
                warn!(port = device.name, "its socket is closed until the daemon starts again");
                return;
            }
        }
    })?;
    Ok(VirtualMachine {
        socket: (port.mode() == Mode::Server).then(|| path.clone()),
        name,
        mac: port.mac,
        wrappers,
        port: None,
        reason: Some(Reason::WaitingForFrontend),
        link,
        device: host_device,
    })
}
