//! The interfaces of guests, which a toolstack makes: their queues come from a backend.

use std::sync::Arc;

use control_socket::{IgnoredKey, PortState, PortStatus, Reason, TableKind, ToolstackStatus};
use datapath::{MemorySleep, PortMemory};
use netback::VifError;
use tracing::{info, warn};
use wire::ethernet::MacAddr;
use wire::netif::keys;
use xenstore::{StoreError, XenbusState};

use super::device::{DeviceOptions, GuestDevice};
use super::plugged::PluggedPort;
use super::port_event::{PortEvent, PortId, Transition};
use super::record::{Host, Identity, Record};
use super::source::{Agreed, Source};
use crate::config::{self, Config, Effort, Guest, Rules, Vif, default_queues, taking};
use crate::daemon::backends::VifId;
use crate::daemon::error::Error;
use crate::daemon::event::NewInterface;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::platform::{Backend, Platform};

/// A guest's interface.
struct GuestInterface {
    id: VifId,
    /// Its port's name.
    name: String,
    /// Its guest's settings: as at its join, with later changes in place.
    guest: Guest,
    /// Its settings, the same way, with the toolstack's addresses.
    vif: Vif,
    backend: Box<dyn Backend>,
    platform: Arc<dyn Platform>,
    /// Whether an uplink may put frames into its buffers.
    lends: bool,
    /// What became of what the toolstack wants of it.
    toolstack: ToolstackStatus,
}

/// Serves an interface that a toolstack has created.
pub(in crate::daemon) fn adopt(
    interface: NewInterface,
    host: &Host,
) -> Result<PluggedPort, String> {
    let NewInterface { id, guest, name, vif } = interface;
    if host.config.guest(&guest.name).is_none() {
        return Err(format!("guest {:?} is not in the configuration any more", guest.name));
    }
    vif.settings.sources()?;
    let config::Daemon { platform, poll, .. } = host.config.daemon;
    let lends = vif.has_own_queue(platform);
    let offered = vif.offered(if lends { 1 } else { default_queues() }, platform, poll);
    let device = open_device(id, &name, &vif, host)?;
    let backend = match host.platform.adopt(id, offered) {
        Ok(backend) => backend,
        Err(error) => {
            abandon(device, host);
            return Err(error.to_string());
        }
    };
    let toolstack = ToolstackStatus::default();
    let platform = host.platform.clone();
    let mut interface =
        GuestInterface { id, name, guest, vif, backend, platform, lends, toolstack };
    let rules = interface.rules_of(&interface.vif, host)?;
    let (id, name) = (PortId::Vif(id), interface.name.clone());
    let identity = Identity { id, table: TableKind::Guest, name };
    let record = Record { device, is_open: true, ..Record::new(identity, rules.0, &host.config) };
    interface.toolstack = rules.1;
    Ok(PluggedPort { record, source: Box::new(interface) })
}

impl GuestInterface {
    /// Where its frontend says something.
    fn frontend(&self, key: &str) -> String {
        format!("{}/{key}", self.backend.frontend())
    }

    /// What is enforced of such settings, and what became of what the toolstack wants. That is logged if it was not so before.
    fn rules_of(&self, vif: &Vif, host: &Host) -> Result<(Rules, ToolstackStatus), String> {
        let rules = vif.rules(self.backend.mac())?;
        // Where a daemon admits its guests, there is no other toolstack.
        if !host.platform.ends_with_its_node() {
            return Ok((rules, ToolstackStatus::default()));
        }
        let wishes = host.platform.backends().wishes(host.store(), self.id);
        let has_device = host.config.device_of(vif, Some(&self.name)).is_some();
        let (status, limits) = wishes.apply(vif.settings.limit, has_device);
        let is_new = |ignored: &&IgnoredKey| !self.toolstack.ignored.contains(ignored);
        for ignored in status.ignored.iter().filter(is_new) {
            warn!(guest = self.name, "{ignored}");
        }
        Ok((Rules { limits, ..rules }, status))
    }

    /// Whether its frontend could be connected, and a script has yet to put its device into its place.
    fn waits_for_script(&self, port: &mut Record, host: &Host) -> bool {
        let Some(device) = &port.device else { return false };
        let state = host.store().read(None, &self.frontend("state"));
        let is_ready = state.is_ok_and(|state| {
            XenbusState::parse(&state) == Some(XenbusState::Connected)
                && self.backend.state() == XenbusState::InitWait
        });
        let waits = is_ready && host.platform.backends().waits_for_script(host.store(), self.id);
        if waits {
            port.reason = Some(Reason::WaitingForScript(device.name()));
        }
        waits
    }

    fn frontend_changed(&mut self, port: &mut Record, host: &Host) -> Transition {
        // As long as its guest is there, its reason says why.
        if self.condemned().is_some() {
            return Transition::None;
        }
        if self.waits_for_script(port, host) {
            return Transition::None;
        }
        match self.backend.frontend_changed() {
            Ok(Transition::Connect { mut queues, tasks }) => {
                // It may have changed since the backend offered it.
                let coalescing = self.vif.settings.coalescing().unwrap_or_default();
                queues.iter_mut().for_each(|queue| queue.egress.set_coalescing(coalescing));
                Transition::Connect { queues, tasks }
            }
            Ok(Transition::Remove) if !host.platform.ends_with_its_node() => {
                Transition::Disconnect(Reason::FrontendClosed)
            }
            Ok(Transition::Remove) => {
                info!(guest = self.name, "removed");
                Transition::Remove
            }
            Ok(transition) => transition,
            // The state is read again when the store is back.
            Err(VifError::Store(StoreError::Gone(reason))) => {
                warn!(vif = %self.id, reason, "the store is away");
                Transition::None
            }
            Err(error) => Transition::Disconnect(Reason::NotConnected(error.to_string())),
        }
    }
}

impl Source for GuestInterface {
    /// Has the store say what its frontend does.
    fn open(&mut self, _: &mut Record, host: &Host) -> Result<(), Error> {
        let token = self.id.to_string();
        if self.vif.multicast_control {
            // If this fails, as when all watches are used up, the frontend has as long as it is connected what it asked for first.
            let _ = host.store().watch(&self.frontend(keys::REQUEST_MULTICAST_CONTROL), &token);
        }
        Ok(host.store().watch(&self.frontend("state"), &token)?)
    }

    /// Removes its remaining nodes.
    fn close(self: Box<Self>, port: Record, host: &Host) {
        abandon(port.device, host);
        let token = self.id.to_string();
        // The watch ends with the domain anyway, so an error does not matter.
        let _ = host.store().unwatch(&self.frontend("state"), &token);
        if self.vif.multicast_control {
            let _ = host.store().unwatch(&self.frontend(keys::REQUEST_MULTICAST_CONTROL), &token);
        }
        if let Err(error) = self.backend.remove() {
            warn!(vif = %self.id, %error, "cannot remove the remaining nodes");
        }
    }

    /// On a Xen host the guests are those that the toolstack has made, whatever tables there are.
    fn write_running(&self, config: &mut Config) {
        match config.guests.iter_mut().find(|guest| guest.name == self.guest.name) {
            Some(guest) => *guest = self.guest.clone(),
            None if config.daemon.platform == config::PlatformKind::Xen => {
                config.guests.push(self.guest.clone());
            }
            None => {}
        }
    }

    /// Each is, from when it was found on: its backend offers what was configured then.
    fn agreed_by(&self) -> Option<Agreed> {
        Some(match self.platform.ends_with_its_node() {
            true => Agreed::ByToolstack,
            false => Agreed::ByDaemon,
        })
    }

    fn set(&mut self, port: &mut Record, host: &Host) -> Result<(), String> {
        let Some(new) = host.config.guest(&self.guest.name) else { return Ok(()) };
        let index = match host.config.daemon.platform {
            config::PlatformKind::Machine => self.id.handle as usize,
            config::PlatformKind::Xen => 0,
        };
        let Some(of_new) = new.vifs.get(index) else { return Ok(()) };
        let mut guest = Guest { uid: new.uid, token_file: new.token_file, ..self.guest.clone() };
        let Some(vif) = guest.vifs.get_mut(index) else { return Ok(()) };
        *vif = taking(vif.clone(), of_new, Effort::InPlace);
        let vif = with_addresses(self.id, vif.clone(), host)?;
        let (rules, toolstack) = self.rules_of(&vif, host)?;
        let (before, coalescing) = (self.vif.settings.coalescing()?, vif.settings.coalescing()?);
        port.enforce(rules, &host.datapath);
        if coalescing != before {
            port.wrappers.coalesce(coalescing, &host.datapath, port.port.as_deref());
        }
        (self.guest, self.vif, self.toolstack) = (guest, vif, toolstack);
        Ok(())
    }

    fn serve(&mut self, port: &mut Record, what: PortEvent, host: &Host) -> Transition {
        let waits = matches!(port.reason, Some(Reason::WaitingForScript(_)));
        match what {
            PortEvent::Frontend => return self.frontend_changed(port, host),
            PortEvent::Script if waits => return self.frontend_changed(port, host),
            PortEvent::Wish => {
                if let Err(reason) = self.set(port, host) {
                    warn!(vif = %self.id, reason, "cannot apply what the toolstack has changed");
                }
            }
            _ => {}
        }
        Transition::None
    }

    fn attached(&mut self, port: &Record) -> Result<(), Reason> {
        self.backend.connected().map_err(|error| Reason::NotConnected(error.to_string()))?;
        let queues = port.port.as_ref().map(|port| port.queues());
        info!(guest = self.name, queues, "connected");
        Ok(())
    }

    fn detached(&mut self, port: &Record, had_queues: bool) {
        let (guest, reason) = (&self.name, port.why());
        match had_queues {
            true => info!(guest, reason, "disconnected"),
            false => warn!(guest, reason, "not connected"),
        }
        if let Err(error) = self.backend.disconnected() {
            warn!(guest, %error, "cannot write the state to the store");
        }
    }

    /// Its states stay as they are, and the frames that its guest sends wait in its rings.
    fn outlives_the_daemon(&self, host: &Host) -> bool {
        host.platform.keeps_guests()
    }

    fn describe(&self, _: &Record, status: PortStatus, _: &Interfaces) -> PortStatus {
        let is_connected = self.backend.state() == XenbusState::Connected;
        let (state, reason) = match is_connected {
            true => (PortState::Up, status.reason),
            false => (PortState::Down, status.reason.or(Some(Reason::WaitingForFrontend))),
        };
        let (domain, toolstack) = (Some(self.id.domain.0), self.toolstack.clone());
        self.backend.describe(PortStatus { domain, state, reason, toolstack, ..status })
    }

    fn mac(&self) -> Option<MacAddr> {
        Some(self.backend.mac())
    }

    fn guest(&self) -> Option<(VifId, &Guest)> {
        Some((self.id, &self.guest))
    }

    fn lends(&self) -> bool {
        self.lends
    }

    fn memory_in_use(&self) -> Option<u64> {
        self.platform.memory_in_use(self.id.domain)
    }

    fn memory(&self) -> PortMemory {
        let sleep = match self.platform.grants_are_pinned() {
            true => MemorySleep::Never,
            false if self.memory_in_use().is_some() => MemorySleep::AtWill,
            false => MemorySleep::Swapped,
        };
        PortMemory { sleep, ..PortMemory::default() }
    }

    /// All interfaces of its guest are cut off: they have one memory.
    fn condemn(&mut self, what: &str) -> Reason {
        self.platform.refuse_guest(&self.guest.name, what);
        refused(what)
    }

    fn condemned(&self) -> Option<Reason> {
        self.platform.refused_guest(&self.guest.name).map(|what| refused(&what))
    }
}

/// Why an interface is cut off.
fn refused(what: &str) -> Reason {
    Reason::Disabled(format!(
        "{what}; its guest may come back when it was taken out of the configuration and added again"
    ))
}

/// Adds the toolstack's addresses if the configuration wants addresses checked and has none.
pub(in crate::daemon) fn with_addresses(
    id: VifId,
    mut vif: Vif,
    host: &Host,
) -> Result<Vif, String> {
    if !vif.settings.wants_addresses() {
        return Ok(vif);
    }
    let text = host.platform.backends().addresses(host.store(), id);
    let text = text.map_err(|error| error.to_string())?;
    let addresses = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    vif.settings.guard_addresses =
        addresses.map_err(|error| format!("the toolstack's ip: {error}"))?;
    Ok(vif)
}

/// Opens an interface's device, if it should have one, and announces its MTU to the guest if nobody else does. A guest in the
/// switch gets the MTU of the configuration.
fn open_device(
    id: VifId,
    port: &str,
    vif: &Vif,
    host: &Host,
) -> Result<Option<GuestDevice>, String> {
    let (store, backends) = (host.store(), host.platform.backends());
    let tell_mtu = |mtu: Option<u32>| {
        if let Some(Err(error)) = mtu.map(|mtu| backends.tell_mtu(store, id, mtu)) {
            warn!(guest = port, %error, "cannot tell it its MTU");
        }
    };
    let Some(device) = host.config.device_of(vif, Some(port)) else {
        tell_mtu(host.config.mtu_of(vif).map(u32::from));
        return Ok(None);
    };
    let mut options = DeviceOptions::named(device, host.datapath.workers());
    let by_toolstack = host.platform.ends_with_its_node();
    if by_toolstack {
        options.names = backends.device_names(store, id);
        options.mtu = backends.mtu(store, id).or(options.mtu);
    }
    let device = GuestDevice::open(options, host.platform.device_services())?;
    info!(guest = port, device = device.name(), new = device.is_new(), "its device");
    tell_mtu(device.mtu().filter(|_| !by_toolstack));
    Ok(Some(device))
}

/// An interface is gone. The toolstack wants its device gone too; one with a name of its own stays for the next guest.
fn abandon(device: Option<GuestDevice>, host: &Host) {
    if let Some(device) = device.filter(|_| host.platform.ends_with_its_node()) {
        device.delete(&host.datapath);
    }
}
