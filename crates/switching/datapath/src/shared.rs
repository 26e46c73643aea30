//! What the workers of a datapath share: the ports, the switch's table, the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use port::{Doorbell, Egress};
use switch::{MacTable, Membership, NO_VLAN, PortId, PortSet, StormControl};

use crate::config::Config;
use crate::domains::Domains;
use crate::port::Port;

/// Addresses that the table of one VLAN can hold.
const VLAN_CAPACITY: usize = 2048;

/// A queue broke and was dropped. Reported once per port, for the first of its queues that breaks.
#[derive(Debug)]
pub struct Failure {
    /// The port it belonged to. It may be detached already, and its number reused.
    pub port: Arc<Port>,
    /// Why, for an operator.
    pub reason: String,
}

/// Called for each failure, on a worker's thread: it must not block.
pub type FailureSink = Box<dyn Fn(Failure) + Send + Sync>;

/// The ports at one moment.
#[derive(Clone, Default)]
pub(crate) struct Ports {
    /// By number.
    pub(crate) list: Vec<Option<Arc<Port>>>,
    /// The numbers of those that flood to each other: all, or those without a VLAN.
    pub(crate) all: PortSet,
    /// None if no port is in a VLAN or isolated.
    pub(crate) domains: Option<Arc<Domains>>,
}

impl Ports {
    #[inline]
    pub(crate) fn get(&self, PortId(port): PortId) -> Option<&Arc<Port>> {
        self.list.get(usize::from(port))?.as_ref()
    }

    /// The membership of a port, if it is in a VLAN or isolated.
    #[inline]
    pub(crate) fn member(&self, port: PortId) -> Option<(&Domains, &Membership)> {
        let domains = self.domains.as_deref()?;
        Some((domains, &**domains.member(port)?))
    }

    /// The same with another membership of a port, which may have come or gone too.
    fn set_member(
        &mut self,
        id: PortId,
        membership: Option<Arc<Membership>>,
        table: impl Fn(u16) -> MacTable,
    ) {
        let numbers = (0..).zip(&self.list).filter(|(_, port)| port.is_some());
        let ports: PortSet = numbers.map(|(number, _)| PortId(number)).collect();
        let old = self.domains.take();
        if old.is_some() || membership.is_some() {
            let domains = old.as_deref().cloned().unwrap_or_default();
            self.domains = domains.with(id, membership, &ports, table).map(Arc::new);
        }
        let without_vlan = self.domains.as_ref().map(|domains| {
            domains.get(NO_VLAN).map(|domain| domain.reach(false).clone()).unwrap_or_default()
        });
        self.all = without_vlan.unwrap_or(ports);
    }
}

/// What workers share.
pub(crate) struct Shared {
    pub(crate) table: MacTable,
    ports: RwLock<Arc<Ports>>,
    /// Counts changes of `ports`. A worker reads it once per round, and takes the lock only after a
    /// change.
    pub(crate) generation: AtomicU64,
    /// How many ports were ever attached.
    attached: AtomicU64,
    pub(crate) started: Instant,
    pub(crate) poll: Duration,
    /// What each port may flood, in copies per second.
    flood_copies: u32,
    hash_macs: bool,
    failures: FailureSink,
    pub(crate) doorbells: Box<[Doorbell]>,
}

impl Shared {
    /// Nothing attached yet, for so many workers.
    pub(crate) fn of(
        config: &Config,
        failures: FailureSink,
        workers: usize,
    ) -> std::io::Result<Arc<Self>> {
        let doorbells = (0..workers).map(|_| Doorbell::new()).collect::<Result<_, _>>()?;
        let table = MacTable::new(config.capacity, config.limits);
        Ok(Arc::new(Self::new(table, config, failures, doorbells)))
    }

    fn new(
        table: MacTable,
        config: &Config,
        failures: FailureSink,
        doorbells: Box<[Doorbell]>,
    ) -> Self {
        let &Config { poll, flood_copies, hash_macs, .. } = config;
        Self {
            table,
            ports: RwLock::default(),
            generation: AtomicU64::new(0),
            attached: AtomicU64::new(0),
            started: Instant::now(),
            poll,
            flood_copies,
            hash_macs,
            failures,
            doorbells,
        }
    }

    pub(crate) fn ports(&self) -> Arc<Ports> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports that a port has failed.
    pub(crate) fn fail(&self, port: &Arc<Port>, reason: String) {
        if port.fail() {
            (self.failures)(Failure { port: Arc::clone(port), reason });
        }
    }

    /// The switch's clock.
    pub(crate) fn seconds(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Ports) -> R) -> R {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        let mut copy = Ports::clone(&ports);
        let result = change(&mut copy);
        *ports = Arc::new(copy);
        self.generation.fetch_add(1, Ordering::Release);
        result
    }

    pub(crate) fn add(
        &self,
        name: &str,
        egress: Vec<Box<dyn Egress>>,
        membership: Option<Membership>,
    ) -> Arc<Port> {
        self.change(|ports| {
            let list = &mut ports.list;
            let number = list.iter().position(Option::is_none).unwrap_or(list.len());
            let id = PortId(u16::try_from(number).unwrap_or(u16::MAX));
            let serial = self.attached.fetch_add(1, Ordering::Relaxed);
            let storm_control = StormControl::new(self.flood_copies);
            let port = Arc::new(Port::new(id, serial, name, egress, self.hash_macs, storm_control));
            if number == list.len() {
                list.push(None);
            }
            list[number] = Some(port.clone());
            ports.set_member(id, membership.map(Arc::new), |vlan| self.vlan_table(vlan));
            port
        })
    }

    /// A port is in other VLANs from now on.
    pub(crate) fn set_member(&self, id: PortId, membership: Option<Membership>) {
        self.change(|ports| {
            ports.set_member(id, membership.map(Arc::new), |vlan| self.vlan_table(vlan));
        });
    }

    fn vlan_table(&self, vlan: u16) -> MacTable {
        self.table.beside(VLAN_CAPACITY, vlan)
    }

    /// Forgets every address of a port.
    pub(crate) fn forget(&self, id: PortId) {
        self.table.forget_port(id);
        if let Some(domains) = &self.ports().domains {
            domains.tables().for_each(|(_, table)| table.forget_port(id));
        }
    }

    pub(crate) fn remove(&self, id: PortId) -> Option<Arc<Port>> {
        self.change(|ports| {
            let port = ports.list.get_mut(usize::from(id.0))?.take();
            ports.set_member(id, None, |vlan| self.vlan_table(vlan));
            port
        })
    }
}
