//! What all ports have, and what they live in.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use control_socket::{Reason, TableKind};
use datapath::{Datapath, Port, PortParts};
use hypervisor::Meter;
use vhost_user::Processes;
use xenstore::Store;

use super::device::GuestDevice;
use super::guest_queues::GuestQueues;
use super::port_event::PortId;
use super::suspicion::Suspicion;
use crate::config::{Config, Rules};
use crate::daemon::carried::Carried;
use crate::daemon::error::Error;
use crate::daemon::event::{Event, PortEvents};
use crate::daemon::limits::Limits;
use crate::daemon::platform::Platform;
use crate::daemon::reach::Reach;
use crate::daemon::wrap::Wrappers;

/// What ports are opened with, and live in.
pub(in crate::daemon) struct Host {
    /// What runs, or will with the next connection.
    pub(in crate::daemon) config: Config,
    pub(in crate::daemon) platform: Arc<dyn Platform>,
    pub(in crate::daemon) datapath: Datapath,
    pub(in crate::daemon) limits: Arc<Limits>,
    /// Those of virtual machines.
    pub(in crate::daemon) front_ends: Arc<Processes>,
    pub(in crate::daemon) events: mpsc::Sender<Event>,
    /// Where the daemon may make sockets.
    pub(in crate::daemon) reach: Reach,
}

impl Host {
    pub(in crate::daemon) fn store(&self) -> &dyn Store {
        &**self.platform.store()
    }

    pub(super) fn meter(&self) -> &Arc<Meter> {
        self.platform.meter()
    }

    /// Has the control thread hear of a port.
    pub(super) fn events_of(&self, port: &Record) -> PortEvents {
        PortEvents { port: port.identity.id, events: self.events.clone() }
    }
}

/// Whether the switch keeps a port's address for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::daemon) enum Address {
    /// It was not asked to, as the port is, or where it is.
    #[default]
    Untaught,
    Kept,
    /// The port of this name has it.
    Taken(String),
    /// It has no place for it.
    Refused,
}

/// Which port it is.
#[derive(Clone, Debug)]
pub(in crate::daemon) struct Identity {
    pub(in crate::daemon) id: PortId,
    /// The kind of its table in the configuration.
    pub(in crate::daemon) table: TableKind,
    pub(in crate::daemon) name: String,
}

/// What a port is to the daemon, whatever it is made of.
pub(in crate::daemon) struct Record {
    pub(in crate::daemon) identity: Identity,
    /// Whether its source is open.
    pub(in crate::daemon) is_open: bool,
    pub(in crate::daemon) wrappers: Wrappers,
    /// None while it has no queues.
    pub(in crate::daemon) port: Option<Arc<Port>>,
    /// What it has carried before it got the queues that it has.
    pub(in crate::daemon) carried: Carried,
    /// For operators: why it does not work.
    pub(in crate::daemon) reason: Option<Reason>,
    /// When its other side last broke the protocol, and how. A guest that connects again is still one that did.
    pub(super) last_disabled: Option<(Instant, String)>,
    pub(in crate::daemon) address: Address,
    pub(in crate::daemon) suspicion: Suspicion,
    /// Its interface on the host, if it is not in the switch.
    pub(in crate::daemon) device: Option<GuestDevice>,
    /// Its queues for guests, if it keeps some.
    pub(in crate::daemon) guest_queues: Option<Box<dyn GuestQueues>>,
}

impl Record {
    pub(super) fn new(identity: Identity, rules: Rules, config: &Config) -> Self {
        Self {
            wrappers: Wrappers::new(&identity.name, rules, config.daemon.capture),
            identity,
            is_open: false,
            port: None,
            carried: Carried::default(),
            reason: None,
            last_disabled: None,
            address: Address::default(),
            suspicion: Suspicion::default(),
            device: None,
            guest_queues: None,
        }
    }

    /// Attaches queues: to the switch, or to the port's device.
    pub(super) fn attach(&mut self, mut parts: PortParts, datapath: &Datapath) -> Arc<Port> {
        parts.queues = parts.queues.into_iter().map(|queue| self.wrappers.wrap(queue)).collect();
        let port = match &mut self.device {
            Some(device) => device.attach(datapath, &self.identity.name, parts),
            None => self.wrappers.attach(parts, datapath),
        };
        self.wrappers.place(datapath, &port);
        port.suspect(self.suspicion.is_on(Instant::now()));
        self.port = Some(port.clone());
        self.reason = None;
        if let Some(queues) = &mut self.guest_queues {
            queues.plugged(self.port.as_ref(), datapath, &self.wrappers);
        }
        port
    }

    /// Drops its queues. Returns whether it had some.
    pub(in crate::daemon) fn detach(&mut self, datapath: &Datapath) -> bool {
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
    pub(super) fn enforce(&mut self, rules: Rules, datapath: &Datapath) {
        if rules != *self.wrappers.rules()
            && self.wrappers.set(rules, datapath, self.port.as_deref())
        {
            self.address = Address::Untaught;
        }
    }

    pub(in crate::daemon) fn name(&self) -> &str {
        &self.identity.name
    }

    /// Why it is not opened.
    pub(super) fn failed(&self, reason: String) -> Error {
        let Identity { table, name, .. } = self.identity.clone();
        Error::Port { table, name, reason }
    }

    /// Why it does not work, for the log.
    pub(super) fn why(&self) -> Option<String> {
        self.reason.as_ref().map(ToString::to_string)
    }

    /// Whether this is its port.
    pub(in crate::daemon) fn is_at(&self, port: &Arc<Port>) -> bool {
        self.port.as_ref().is_some_and(|own| Arc::ptr_eq(own, port))
    }
}
