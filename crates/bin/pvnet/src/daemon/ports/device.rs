//! A guest's interface on the host: `attach = "device"`.
//!
//! ```text
//!  guest ── port ═══ a pair, outside of the switch ═══ port ── tap vif1.0 ── a bridge, OVS, routes
//! ```
//!
//! All guests have the same path through the workers; only what decides where a frame goes differs (`Datapath::pair`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use control_socket::{PortState, PortStatus, Reason, TableKind};
use datapath::{Datapath, MemorySleep, Port, PortMemory, PortParts};
use offload::Features;
use port::Queue;
use tracing::{info, warn};
use uplink::tap::TapQueue;
use uplink::{BufferOptions, Buffers, GuestTap, TapEgress, TapIngress};

use crate::config::{self, Config};
use crate::daemon::error::Error;
use crate::daemon::interfaces::{Interfaces, Side};
use crate::daemon::limits::DEVICE_QUEUES_MAX;
use crate::daemon::platform::DeviceServices;

/// The interval at which a device is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a device should be.
pub(super) struct DeviceOptions {
    /// The names that it may have, and at last the one that a new one gets.
    pub(super) names: Vec<String>,
    /// How many queues it has: one for each worker that may carry its frames.
    pub(super) queues: usize,
    /// What the network behind it can do with the guest's frames. The rest is done here.
    pub(super) features: Features,
    /// The MTU of a new one.
    pub(super) mtu: Option<u16>,
}

impl DeviceOptions {
    /// A device whose name is configured.
    pub(super) fn named(device: config::HostDevice, queues: usize) -> Self {
        let config::HostDevice { name, capabilities, mtu } = device;
        Self { names: name.into_iter().collect(), queues, features: capabilities.features(), mtu }
    }
}

/// The device of one port.
pub(in crate::daemon) struct GuestDevice {
    options: DeviceOptions,
    services: DeviceServices,
    /// None after it was deleted.
    tap: Option<GuestTap>,
    /// The guest's port and the tap's, while the guest is connected.
    guest: Option<Arc<Port>>,
    port: Option<Arc<Port>>,
    /// Why there is no tap.
    failure: Option<String>,
    checked: Instant,
}

impl GuestDevice {
    /// Opens the device, and makes it if there is none.
    pub(super) fn open(options: DeviceOptions, services: DeviceServices) -> Result<Self, String> {
        let queues = options.queues.clamp(1, DEVICE_QUEUES_MAX);
        let options = DeviceOptions { queues, ..options };
        let tap = open(&options)?;
        Ok(Self {
            options,
            services,
            tap: Some(tap),
            guest: None,
            port: None,
            failure: None,
            checked: Instant::now(),
        })
    }

    /// Its name now.
    pub(super) fn name(&self) -> String {
        let name = self.tap.as_ref().and_then(GuestTap::name);
        name.or_else(|| self.options.names.last().cloned()).unwrap_or_default()
    }

    pub(super) fn mtu(&self) -> Option<u32> {
        self.tap.as_ref()?.mtu().ok()
    }

    /// Whether it was made just now.
    pub(super) fn is_new(&self) -> bool {
        self.tap.as_ref().is_some_and(GuestTap::is_new)
    }

    /// Whether it is there.
    pub(super) fn is_there(&self) -> bool {
        self.tap.is_some()
    }

    /// Attaches a guest's queues, all of whose frames go to the device, and its to them.
    pub(super) fn attach(
        &mut self,
        datapath: &Datapath,
        name: &str,
        parts: PortParts,
    ) -> Arc<Port> {
        // First: then the frames that wait in the guest's rings have somewhere to go.
        self.plug(datapath);
        let guest = datapath.attach_apart(name, parts, self.port.as_deref());
        self.guest = Some(guest.clone());
        self.set_carrier(true);
        guest
    }

    /// Detaches the device's own port: the guest's goes.
    pub(super) fn detach(&mut self, datapath: &Datapath) {
        self.set_carrier(false);
        self.guest = None;
        if let Some(port) = self.port.take() {
            datapath.detach(port.id());
        }
    }

    /// Removes the device from the host.
    pub(super) fn delete(mut self, datapath: &Datapath) {
        self.detach(datapath);
        let name = self.name();
        // Who deleted it before has done what was to do.
        if let Some(Err(error)) = self.tap.take().map(GuestTap::delete) {
            info!(device = name, %error, "not deleted");
        }
    }

    /// Notes that a port of the datapath broke. Returns whether it is the device's.
    pub(in crate::daemon) fn fail(
        &mut self,
        port: &Arc<Port>,
        reason: &str,
        datapath: &Datapath,
    ) -> bool {
        let is_its = self.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port));
        if is_its {
            self.lose(reason.to_owned(), datapath);
        }
        is_its
    }

    /// Notes if the device was deleted, and makes it again a moment later. Call it now and then.
    pub(in crate::daemon) fn check(&mut self, datapath: &Datapath) {
        if self.checked.elapsed() < CHECK_INTERVAL {
            return;
        }
        self.checked = Instant::now();
        match &self.tap {
            Some(tap) if tap.queues().iter().any(|queue| queue.is_deleted()) => {
                self.lose("it was deleted".to_owned(), datapath);
            }
            Some(_) => {}
            None => self.make_again(datapath),
        }
    }

    fn lose(&mut self, reason: String, datapath: &Datapath) {
        let name = self.name();
        if let Some(port) = self.port.take() {
            datapath.detach(port.id());
        }
        warn!(device = name, reason, "its guest has no network until it is made again");
        self.tap = None;
        self.failure = Some(reason);
        self.checked = Instant::now();
    }

    fn make_again(&mut self, datapath: &Datapath) {
        match open(&self.options) {
            Ok(tap) => {
                let device = tap.name().unwrap_or_default();
                let new = tap.is_new();
                self.tap = Some(tap);
                self.failure = None;
                if let Some(guest) = self.guest.clone() {
                    self.plug(datapath);
                    if let Some(port) = &self.port {
                        datapath.pair(&guest, port);
                    }
                    self.set_carrier(true);
                }
                match new {
                    true => warn!(
                        device,
                        "made again; put it back where it was, for example into its bridge"
                    ),
                    false => info!(device, "is there again"),
                }
            }
            Err(error) if self.failure.as_ref() != Some(&error) => {
                warn!(error, "a guest's device");
                self.failure = Some(error);
            }
            Err(_) => {}
        }
    }

    /// Attaches the tap's queues to the datapath.
    fn plug(&mut self, datapath: &Datapath) {
        let Some(tap) = &self.tap else { return };
        let queue = |tap: &Arc<TapQueue>| {
            let options = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };
            let DeviceServices { meter, memory } = &self.services;
            let buffers = Buffers::within(options, &**memory)?;
            let egress = TapEgress::new(meter.clone(), tap.clone(), self.options.features)
                .within(memory.clone());
            let ingress = TapIngress::new(meter.clone(), tap.clone(), buffers);
            let ingress = Box::new(ingress.with_back_pressure());
            Ok(Queue { ingress, egress: Box::new(egress) })
        };
        let queues: std::io::Result<Vec<_>> = tap.queues().iter().map(queue).collect();
        match queues {
            Ok(queues) => {
                let memory = PortMemory { sleep: MemorySleep::Never, ..PortMemory::default() };
                let parts = PortParts { queues, memory, ..PortParts::default() };
                self.port = Some(datapath.attach_apart(&self.name(), parts, None));
            }
            Err(error) => warn!(device = self.name(), %error, "no memory for its frames"),
        }
    }

    fn set_carrier(&self, is_on: bool) {
        if let Some(Err(error)) = self.tap.as_ref().map(|tap| tap.set_carrier(is_on)) {
            // It was deleted, which is noticed soon.
            info!(device = self.name(), %error, "its carrier");
        }
    }

    /// Completes the status of its port. `devices` are the interfaces of the daemon's namespace.
    pub(super) fn describe(&self, status: PortStatus, devices: &Interfaces) -> PortStatus {
        let name = self.name();
        let drops = devices.drops(&name, Side::Behind);
        let mut status = PortStatus { device: Some(name.clone()), device_drops: drops, ..status };
        if let Some(reason) = &self.failure {
            status.state = PortState::Down;
            status.reason = Some(Reason::NoDevice(format!("{name}: {reason}")));
        } else if status.reason.is_none()
            && self.tap.as_ref().is_some_and(|tap| tap.is_up().is_ok_and(|is_up| !is_up))
        {
            status.reason = Some(Reason::DeviceDown(name));
        }
        status
    }
}

fn open(options: &DeviceOptions) -> Result<GuestTap, String> {
    let existing = options.names.iter().find(|name| GuestTap::exists(name));
    let name = existing.or(options.names.last()).ok_or("a device without a name")?;
    let tap = GuestTap::open(name, options.queues).map_err(|error| error.to_string())?;
    if let Some(mtu) = options.mtu.filter(|_| tap.is_new()) {
        tap.set_mtu(mtu).map_err(|error| error.to_string())?;
    }
    Ok(tap)
}

/// Makes the devices of all guests and virtual machines, so that an operator finds them before their guests come. They stay.
pub(in crate::daemon) fn make_all(config: &Config) -> Result<(), Error> {
    config.devices().try_for_each(|(port, device)| make(port, &device).map(drop))
}

/// Makes those devices of a configuration that are not there, and returns them.
pub(in crate::daemon) fn make_missing(config: &Config) -> Result<Vec<GuestTap>, String> {
    let mut made = Vec::new();
    let is_missing = |device: &config::HostDevice| {
        device.name.as_deref().is_some_and(|name| !GuestTap::exists(name))
    };
    for (port, device) in config.devices().filter(|(_, device)| is_missing(device)) {
        match make(port, &device) {
            Ok(tap) => made.extend(tap),
            Err(error) => {
                unmake(made);
                return Err(error.to_string());
            }
        }
    }
    Ok(made)
}

/// Deletes devices that were made in vain.
pub(in crate::daemon) fn unmake(made: Vec<GuestTap>) {
    for tap in made {
        let device = tap.name().unwrap_or_default();
        if let Err(error) = tap.delete() {
            warn!(device, %error, "not deleted");
        }
    }
}

fn make(port: String, device: &config::HostDevice) -> Result<Option<GuestTap>, Error> {
    let Some(name) = &device.name else { return Ok(None) };
    let made = GuestTap::open(name, 1).and_then(|tap| {
        if let Some(mtu) = device.mtu.filter(|_| tap.is_new()) {
            tap.set_mtu(mtu)?;
        }
        Ok(Some(tap))
    });
    made.map_err(|error| Error::Port {
        table: TableKind::Port,
        name: port,
        reason: error.to_string(),
    })
}
