//! A port of the daemon: its record and its source.

use std::time::Instant;

use control_socket::{LastDisabled, PortKind, PortState, PortStatus, Reason, TableKind};
use datapath::{Datapath, Port, PortParts};
use port::{Queue, Task};

use super::guest_queues::Receiver;
use super::port_event::{PortEvent, Transition};
use super::record::{Address, Host, Identity, Record};
use super::source::{Place, Source};
use crate::config::{Config, Guest, Rules};
use crate::daemon::error::Error;
use crate::daemon::interfaces::Interfaces;

/// A port of the daemon.
pub(in crate::daemon) struct PluggedPort {
    pub(in crate::daemon) record: Record,
    pub(in crate::daemon) source: Box<dyn Source>,
}

impl PluggedPort {
    /// A port that is not open yet.
    pub(in crate::daemon) fn closed(
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
    pub(in crate::daemon) fn prepare(&mut self, config: &Config) -> Result<(), Error> {
        self.source.prepare(config).map_err(|reason| self.record.failed(reason))
    }

    /// Opens it.
    ///
    /// # Errors
    /// Something is not there, or cannot be used.
    pub(in crate::daemon) fn open(mut self, host: &Host) -> Result<Self, Error> {
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
    pub(in crate::daemon) fn is_of(&self, table: TableKind, name: &str) -> bool {
        let is_its = |(_, guest): (_, &Guest)| guest.name == name;
        let identity = &self.record.identity;
        identity.table == table
            && (identity.name == name || self.source.guest().is_some_and(is_its))
    }

    /// Whether it has a place that another one wants.
    pub(in crate::daemon) fn has_any(&self, places: &[Place]) -> bool {
        let device = self.record.device.as_ref();
        let device = device.map(|device| Place::Interface(None, device.name()));
        let own = if self.record.is_open { self.source.places() } else { Vec::new() };
        own.iter().chain(&device).any(|own| places.contains(own))
    }

    /// Serves what happened to it.
    pub(in crate::daemon) fn serve(&mut self, what: PortEvent, host: &Host) -> Transition {
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
    pub(in crate::daemon) fn attach(
        &mut self,
        queues: Vec<Queue>,
        tasks: Vec<Box<dyn Task>>,
        datapath: &Datapath,
    ) {
        let (coalescing, memory) = (self.source.coalescing(), self.source.memory());
        let steers_flows = self.source.steers_flows();
        let parts = PortParts { queues, tasks, coalescing, memory, steers_flows };
        self.record.attach(parts, datapath);
    }

    /// Drops its queues, if it has some, for a reason.
    pub(in crate::daemon) fn disconnect(&mut self, why: Reason, datapath: &Datapath) {
        let had_queues = self.record.detach(datapath);
        if let Reason::Disabled(how) = &why {
            self.record.last_disabled = Some((Instant::now(), how.clone()));
        }
        self.record.reason = Some(why);
        self.source.detached(&self.record, had_queues);
    }

    /// Gives back all that it has.
    pub(in crate::daemon) fn close(mut self, host: &Host) {
        // Their sockets and queues belong to the port.
        self.record.guest_queues = None;
        self.record.detach(&host.datapath);
        self.source.close(self.record, host);
    }

    /// What an uplink's queue for a guest is given to, if it may have one: only a guest that has its address may, because frames in its
    /// queue are for nobody else.
    pub(in crate::daemon) fn receiver(&self) -> Option<Receiver<'_>> {
        let Self { record, source } = self;
        let has_address = source.lends() && record.address == Address::Kept;
        let port = record.port.as_ref().filter(|_| has_address)?;
        let ((id, guest), mac) = (source.guest()?, source.mac()?);
        Some(Receiver { id, guest: &guest.name, name: record.name(), mac, port })
    }

    /// Its status; `devices` are the interfaces of the daemon's namespace.
    pub(in crate::daemon) fn status(&self, devices: &Interfaces) -> PortStatus {
        let Self { record, source } = self;
        let port = record.port.as_deref();
        let state = if port.is_some() { PortState::Up } else { PortState::Down };
        let taken = match &record.address {
            Address::Taken(owner) => Some(Reason::AddressTaken(owner.clone())),
            _ => None,
        };
        // The protocol's kind: what is behind the port, for operators.
        let kind = if source.leads_out() { PortKind::Uplink } else { PortKind::Guest };
        let is_stalled = port.is_some_and(Port::is_stalled);
        let guest_queues = record.guest_queues.as_ref().map(|queues| queues.status());
        let status = PortStatus {
            mac: source.mac().map(|mac| mac.to_string()),
            reason: record.reason.clone().or(taken).or(is_stalled.then_some(Reason::Stalled)),
            last_disabled: record.last_disabled.as_ref().map(|(when, how)| LastDisabled {
                reason: how.clone(),
                seconds_ago: when.elapsed().as_secs(),
            }),
            guest_queues: guest_queues.unwrap_or_default(),
            ..PortStatus::new(record.name(), kind, state)
        };
        let status = source.describe(record, status, devices);
        let status = record.wrappers.describe(status, !source.leads_out());
        let status = match &record.device {
            Some(device) => device.describe(status, devices),
            None => status,
        };
        record.carried.describe(status, port)
    }
}
