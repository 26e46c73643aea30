//! The uplinks of the configuration.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use control_socket::Reason;
use datapath::{Datapath, Port};
use netback::RxChannel;
use port::{Coalescing, Queue};
use tracing::{info, warn};
use uplink::{DirectIngress, GuestQueue, TapIngress};

use crate::config::{Config, Platform, Queues, Uplink};
use crate::daemon::back_end::BackEnds;
use crate::daemon::carried::Carried;
use crate::daemon::error::Error;
use crate::daemon::event::{BackEndChange, Event};
use crate::daemon::guest_queues::{GuestQueues, TapQueues};
use crate::daemon::nics::{CardQueues, Nics};
use crate::daemon::platform::DeviceServices;
use crate::daemon::uplink_device::{self, Device, ForGuests, Opened, UplinkInterface, Wanted};
use crate::daemon::uplink_queues::{self, Handles, Watch};
use crate::daemon::wrap::{Rules, Wrappers};
use crate::daemon::xdp_queues::XdpQueues;
use crate::netns;

/// Receive buffers of each uplink queue that guests may keep at a time. One that needs more copies
/// takes the driver domain's time instead. A ring's worth, so that one guest can be late by a ring.
const SPARE_BUFFERS: usize = 256;

/// The time between two looks at what a device's driver says.
const LOOK: Duration = Duration::from_secs(1);

/// An uplink.
pub(super) struct PluggedUplink {
    pub(super) config: Uplink,
    /// None while it has no device.
    pub(super) port: Option<Arc<Port>>,
    /// What it has carried before that.
    pub(super) carried: Carried,
    pub(super) wrappers: Wrappers,
    /// Its queues for guests, if it has some.
    pub(super) guest_queues: Option<Box<dyn GuestQueues>>,
    /// Why it does not work, or not any more.
    pub(super) failure: Option<Reason>,
    /// For its statistics, while it has a device.
    pub(super) interface: Option<UplinkInterface>,
    /// Its back-ends, if it is a port of theirs.
    pub(super) back_ends: Option<BackEnds>,
    /// Its macvtap, if it has one.
    _macvtap: Option<netns::Macvtap>,
    /// What is seen of its device beside its frames.
    pub(super) watch: Watch,
    handles: Handles,
    /// Whether its device was deleted.
    is_deleted: bool,
    /// Whether somebody has taken its tap out of its bridge.
    is_astray: bool,
    /// What else is wrong with its device, which is there, and when it was looked at.
    complaint: Option<String>,
    looked: Instant,
}

impl PluggedUplink {
    /// An uplink without a device, for this reason.
    fn without_device(config: Uplink, wrappers: Wrappers, failure: Reason) -> Self {
        Self {
            config,
            port: None,
            wrappers,
            carried: Carried::default(),
            guest_queues: None,
            failure: Some(failure),
            interface: None,
            back_ends: None,
            _macvtap: None,
            watch: Watch::Nothing,
            handles: Handles::default(),
            is_deleted: false,
            is_astray: false,
            complaint: None,
            looked: Instant::now(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// When a worker is woken up for frames that come in.
    fn coalescing(&self) -> Option<Coalescing> {
        // Checked when the configuration was read.
        self.config.coalescing().unwrap_or_default()
    }

    /// Sets those of its settings that change while it carries frames.
    pub(super) fn set(&mut self, new: &Uplink, datapath: &Datapath) {
        let before = self.coalescing();
        self.config = self.config.clone().taking(new);
        // No address of an uplink is taught.
        let _ = self.wrappers.set(rules(new), datapath, self.port.as_deref());
        if let Some(port) = self.port.as_deref().filter(|_| self.coalescing() != before) {
            datapath.coalesce(port, self.coalescing());
        }
    }

    /// Closes its device, and leaves it without one for this reason.
    pub(super) fn close(self, why: Reason, datapath: &Datapath) -> Self {
        let Self { config, port, wrappers, guest_queues, .. } = self;
        // Their sockets and queues belong to the port.
        drop(guest_queues);
        if let Some(port) = port {
            datapath.detach(port.id());
        }
        Self::without_device(config, wrappers, why)
    }

    /// Whether its device or its socket is open.
    pub(super) fn is_open(&self) -> bool {
        self.port.is_some() || self.back_ends.is_some()
    }

    /// A queue of it broke. A back-end may come again.
    pub(super) fn fail(&mut self, reason: &str, datapath: &Datapath) {
        if self.back_ends.is_some() {
            self.unplug(Reason::Disabled(reason.to_owned()), datapath);
        } else {
            self.failure = Some(Reason::DeviceFailed(reason.to_owned()));
        }
        if let Some(back_ends) = &self.back_ends {
            back_ends.break_off();
        }
    }

    /// Something happened to its back-end.
    pub(super) fn back_end_changed(&mut self, what: BackEndChange, datapath: &Datapath) {
        match what {
            BackEndChange::Ready(queues) => self.plug(queues, datapath),
            BackEndChange::Refused(why) => self.unplug(why, datapath),
            BackEndChange::Gone { why, answer } => {
                // One that broke its rings is gone already, with a better reason.
                if self.port.is_some() {
                    self.unplug(why, datapath);
                }
                let _ = answer.send(());
            }
        }
    }

    /// A worker sleeps in the memory of a guest to which it carries frames from a queue of this uplink: another handle of the device serves the
    /// others.
    pub(super) fn replace_sleeping_ingress(&self, queue: usize, datapath: &Datapath) {
        if let Some(port) = &self.port
            && let Some(ingress) = self.handles.ingress(&self.config, queue)
        {
            let ingress = self.wrappers.wrap_ingress(ingress);
            datapath.replace_sleeping_ingress(port, queue, ingress, self.coalescing());
        }
    }

    /// The same of frames out of this uplink.
    pub(super) fn replace_sleeping_egress(&self, datapath: &Datapath) {
        if let Some(port) = &self.port {
            datapath.replace_sleeping_egress(port, |queue| {
                let egress = self.handles.egress(&self.config, queue)?;
                Some(self.wrappers.wrap_egress(egress))
            });
        }
    }

    /// Whether this is its port.
    pub(super) fn is_at(&self, port: &Arc<Port>) -> bool {
        self.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port))
    }

    /// Notes if its device was deleted.
    pub(super) fn look_for_device(&mut self) {
        if let Some(name) = self.watch.look().filter(|_| !self.is_deleted) {
            let why = Reason::DeviceFailed(format!("{name}: the interface was deleted"));
            warn!(uplink = self.name(), %why, "down");
            self.failure = Some(why);
            self.is_deleted = true;
        }
        self.look_for_bridge();
        self.look_for_complaints();
    }

    /// Notes if part of what its device has does not come here.
    fn look_for_complaints(&mut self) {
        // Not at each event: the kernel asks the driver, under the lock of all interfaces.
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let complaint = self.watch.complaint();
        if complaint != self.complaint {
            match &complaint {
                Some(complaint) => warn!(uplink = self.name(), complaint, "frames go elsewhere"),
                None => info!(uplink = self.name(), "all frames come here again"),
            }
            self.complaint = complaint;
        }
    }

    /// Notes if its tap was taken out of its bridge, which may have been deleted and made again.
    fn look_for_bridge(&mut self) {
        let Uplink { tap, bridge: Some(bridge), namespace: None, .. } = &self.config else {
            return;
        };
        let is_astray = self.port.is_some() && !netns::is_in_bridge(tap, bridge);
        if is_astray != self.is_astray {
            if is_astray {
                warn!(uplink = self.name(), bridge, "its tap is not in its bridge any more");
            } else {
                info!(uplink = self.name(), bridge, "its tap is in its bridge again");
            }
            self.is_astray = is_astray;
        }
    }

    /// Why its frames go astray although its device is there.
    pub(super) fn astray(&self) -> Option<Reason> {
        let Uplink { tap, bridge, .. } = &self.config;
        let bridge = bridge.as_ref().filter(|_| self.is_astray).map(|bridge| {
            format!("{tap} is not in bridge {bridge} any more: ip link set {tap} master {bridge}")
        });
        bridge.or_else(|| self.complaint.clone()).map(Reason::DeviceFailed)
    }

    /// Plugs in queues: a card serves its context, or a back-end its rings.
    pub(super) fn plug(&mut self, queues: Vec<Queue>, datapath: &Datapath) {
        let queues = queues.into_iter().map(|queue| self.wrappers.wrap(queue)).collect();
        let port = self.wrappers.attach(datapath, queues, Vec::new(), self.coalescing());
        self.port = Some(port);
        self.failure = None;
        if let Some(queues) = &mut self.guest_queues {
            queues.plugged(self.port.as_ref(), datapath, &self.wrappers);
        }
        info!(uplink = self.name(), "up");
    }

    /// Unplugs it: its card or its back-end serves it no more.
    pub(super) fn unplug(&mut self, why: Reason, datapath: &Datapath) {
        if let Some(port) = self.port.take() {
            if let Some(queues) = &mut self.guest_queues {
                queues.plugged(None, datapath, &self.wrappers);
            }
            datapath.detach(port.id());
            self.carried.end(&port);
            warn!(uplink = self.name(), %why, "down");
        }
        self.failure = Some(why);
    }
}

/// The uplink of this name.
pub(super) fn named<'a>(
    uplinks: &'a mut [PluggedUplink],
    name: &str,
) -> Option<&'a mut PluggedUplink> {
    uplinks.iter_mut().find(|uplink| uplink.name() == name)
}

/// The uplink whose back-ends have this number.
pub(super) fn with_back_ends(uplinks: &mut [PluggedUplink], id: u64) -> Option<&mut PluggedUplink> {
    let is_its =
        |uplink: &&mut PluggedUplink| uplink.back_ends.as_ref().is_some_and(|own| own.id() == id);
    uplinks.iter_mut().find(is_its)
}

/// Opens every uplink's device, in the order of the configuration. A card's context has none.
pub(super) fn open_devices(config: &Config) -> Result<Vec<Option<Opened>>, Error> {
    let open = |uplink: &Uplink| {
        let device =
            uplink.nic.is_none().then(|| open_device(uplink, config, config.daemon.workers));
        device.transpose()
    };
    config.uplinks.iter().map(open).collect()
}

/// Opens the device of an uplink that is no card's context, with so many queues for all guests.
fn open_device(uplink: &Uplink, config: &Config, shared: usize) -> Result<Opened, Error> {
    let failed = |reason: String| Error::Uplink { name: uplink.name.clone(), reason };
    let wanted = Wanted { shared, guests: guest_queues_of(uplink, config) };
    uplink_device::open(uplink, wanted).map_err(failed)
}

/// Plugs in every uplink's device. A card's context is plugged in when the card comes.
pub(super) fn attach(
    config: &Config,
    devices: Vec<Option<Opened>>,
    services: &DeviceServices,
    datapath: &Datapath,
    nics: Option<&Arc<Nics>>,
    events: &mpsc::Sender<Event>,
) -> Result<Vec<PluggedUplink>, Error> {
    let card_queues = |uplink: &Uplink| -> Option<Box<dyn GuestQueues>> {
        let nics = nics.filter(|_| uplink.queues == Queues::PerGuest)?;
        Some(Box::new(CardQueues::new(nics, &uplink.name, events)))
    };
    let attach = |(uplink, opened): (&Uplink, Option<Opened>)| {
        if let Some(opened) = opened {
            return plug_in(uplink, opened, config, services, datapath, events);
        }
        let wrappers = Wrappers::new(&uplink.name, rules(uplink), config.daemon.capture);
        let failure = Reason::NoCard(uplink.nic.clone().unwrap_or_default());
        let guest_queues = card_queues(uplink);
        let without = PluggedUplink::without_device(uplink.clone(), wrappers, failure);
        Ok(PluggedUplink { guest_queues, ..without })
    };
    config.uplinks.iter().zip(devices).map(attach).collect()
}

/// Opens the device of an uplink that is no card's context, and plugs it in.
pub(super) fn open(
    uplink: &Uplink,
    config: &Config,
    services: &DeviceServices,
    datapath: &Datapath,
    events: &mpsc::Sender<Event>,
) -> Result<PluggedUplink, Error> {
    let opened = open_device(uplink, config, datapath.workers())?;
    plug_in(uplink, opened, config, services, datapath, events)
}

/// What the wrappers of an uplink enforce. It has no guard: its frames come from many sources.
fn rules(uplink: &Uplink) -> Rules {
    // Checked when the configuration was read.
    let membership = uplink.membership().unwrap_or_default();
    let flooding = uplink.flooding();
    let (limits, enabled, gro) = (uplink.limit, uplink.enabled, uplink.gro);
    Rules { guard: None, limits, enabled, membership, flooding, gro }
}

/// Plugs in an uplink with its device, or waits for its back-end.
fn plug_in(
    uplink: &Uplink,
    opened: Opened,
    config: &Config,
    services: &DeviceServices,
    datapath: &Datapath,
    events: &mpsc::Sender<Event>,
) -> Result<PluggedUplink, Error> {
    let wrappers = Wrappers::new(&uplink.name, rules(uplink), config.daemon.capture);
    let device = match opened {
        Opened::Device(device) => device,
        Opened::Socket(socket) => {
            let options = uplink.wanted_of_back_end(datapath.workers());
            let back_ends = BackEnds::start(uplink, options, socket, &services.meter, events)
                .map_err(Error::system("wait for an uplink's back-end"))?;
            let failure = Reason::WaitingForBackend;
            let without = PluggedUplink::without_device(uplink.clone(), wrappers, failure);
            return Ok(PluggedUplink { back_ends: Some(back_ends), ..without });
        }
    };
    let mut vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
    // On Xen guests copy from their pools only.
    let is_machine = config.daemon.platform == Platform::Machine;
    let kept = is_machine && vifs.any(|vif| vif.rx == RxChannel::GuestCopy);
    let spare = if kept { SPARE_BUFFERS } else { 0 };
    attach_one(uplink, device, wrappers, spare, services, datapath)
}

fn attach_one(
    uplink: &Uplink,
    device: Device,
    wrappers: Wrappers,
    spare: usize,
    services: &DeviceServices,
    datapath: &Datapath,
) -> Result<PluggedUplink, Error> {
    let failed = |reason: String| Error::Uplink { name: uplink.name.clone(), reason };
    let Device { shared, for_guests, macvtap, interface } = device;
    let no_memory = || Error::system("memory for an uplink");
    let (queues, watch, handles) =
        uplink_queues::shared(uplink, shared, spare, services).map_err(no_memory())?;
    let first = queues.len();
    let queues = queues.into_iter().map(|queue| wrappers.wrap(queue)).collect();
    let coalescing = uplink.coalescing().map_err(failed)?;
    let port = wrappers.attach(datapath, queues, Vec::new(), coalescing);
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
                let ingress = wrappers.wrap_ingress(Box::new(ingress));
                datapath.add_ingress(&port, ingress, coalescing);
                queue
            });
            Some(Box::new(TapQueues::new(steering, first, queues, port.id())))
        }
        ForGuests::Sockets(xdp, queues) => {
            let namespace = uplink.namespace.as_deref();
            Some(Box::new(XdpQueues::new(namespace, &uplink.device, xdp, queues, port.clone())))
        }
    };
    Ok(PluggedUplink {
        config: uplink.clone(),
        port: Some(port),
        wrappers,
        carried: Carried::default(),
        guest_queues,
        failure: None,
        interface: Some(interface),
        back_ends: None,
        _macvtap: macvtap,
        watch,
        handles,
        is_deleted: false,
        is_astray: false,
        complaint: None,
        looked: Instant::now(),
    })
}

/// How many queues of an uplink are kept for guests.
fn guest_queues_of(uplink: &Uplink, config: &Config) -> usize {
    match uplink.queues {
        Queues::Shared | Queues::Pairs(_) => 0,
        Queues::PerGuest => {
            uplink.guest_queues.map_or_else(|| config.direct_vifs().count(), usize::from).max(1)
        }
    }
}
