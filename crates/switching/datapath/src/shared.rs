//! What the workers of a datapath share: the ports, the switch's table, the clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use poller::Alarm;
use port::{Doorbell, Egress};
use switch::multicast::{Router, Snooping, SnoopingCounts};
use switch::{MacTable, Membership, NO_VLAN, PortId, PortSet, StormControl};

use crate::activity::TICK;
use crate::domains::Domains;
use crate::port::{MemorySleep, Peer, Port, PortMemory};
use crate::{Config, Datapath};

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

/// What a worker waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// A page to be read or cleared, or nobody knows what.
    #[default]
    Unknown,
    /// A hole in the file of the memory.
    Hole,
    /// The lock of this process's address space. Whoever has it waits for something else: this worker's turn may be of any port.
    Lock,
}

/// A worker was held up in the memory of one of these ports, or in a call for it.
#[derive(Clone, Debug)]
pub struct Sleep {
    /// The port whose queue or task had its turn.
    pub from: Option<Arc<Port>>,
    /// Which of its queues that was; none if it was a task, or one that was [added](crate::Datapath::add_ingress).
    pub queue: Option<usize>,
    /// The port to which its frames went, if they went to one.
    pub to: Option<Arc<Port>>,
    /// Whether these frames were copies: then it did not touch the memory of the port that they came from.
    pub are_copies: bool,
    /// How long the worker was held up, as far as was seen.
    pub time: Duration,
    /// What it waited for.
    pub cause: Cause,
    /// Whether one of them is detached since then, or is about to be.
    pub has_left: bool,
    /// Whether another thread took its place. Otherwise it slept often, for a short time each.
    pub is_replaced: bool,
}

/// Called for each sleep. It must not block.
pub type SleepSink = Box<dyn Fn(Sleep) + Send + Sync>;

/// Where a port is attached.
pub(crate) enum Attachment {
    /// To the switch: to some VLANs, or to the ports without one.
    Switch(Option<Membership>),
    /// To its peer only.
    Pair(Peer),
    /// To a mirror: it gets nothing else, and sends nothing.
    Target,
}

/// The ports at one moment.
#[derive(Clone, Default)]
pub(crate) struct Ports {
    /// By number.
    pub(crate) list: Vec<Option<Arc<Port>>>,
    /// Those that are being detached: a worker may sleep in their memory.
    pub(crate) leaving: Vec<Arc<Port>>,
    /// The numbers of those in the switch that flood to each other: all, or those without a VLAN.
    pub(crate) all: PortSet,
    /// None if no port is in a VLAN or isolated.
    pub(crate) domains: Option<Arc<Domains>>,
    /// Whether multicast frames go to their groups' members only.
    pub(crate) snoops: bool,
    /// Ports that get copies from a mirror and nothing else, and whose frames go nowhere.
    pub(crate) targets: PortSet,
    /// By number: the budgets of ports whose limit has changed since they were attached.
    pub(crate) flood_budgets: BTreeMap<u16, FloodBudget>,
}

/// What a port may flood.
#[derive(Clone)]
pub(crate) struct FloodBudget {
    control: Arc<StormControl>,
    /// Whether the limit is the port's own.
    is_own: bool,
}

impl Ports {
    /// Whether a worker may sleep in the memory of one of them.
    fn may_sleep(&self) -> bool {
        let mut all = self.list.iter().flatten().chain(&self.leaving);
        all.any(|port| port.memory().sleep != MemorySleep::Never)
    }

    #[inline]
    pub(crate) fn get(&self, PortId(port): PortId) -> Option<&Arc<Port>> {
        self.list.get(usize::from(port))?.as_ref()
    }

    /// The budget for what a port floods.
    #[inline]
    pub(crate) fn storm_control<'a>(&'a self, port: &'a Port) -> &'a StormControl {
        let changed = self.flood_budgets.get(&port.id().0);
        changed.map_or_else(|| port.storm_control(), |budget| &budget.control)
    }

    /// The membership of a port, if it is in a VLAN or isolated.
    #[inline]
    pub(crate) fn member(&self, port: PortId) -> Option<(&Domains, &Membership)> {
        let domains = self.domains.as_deref()?;
        Some((domains, &**domains.member(port)?))
    }

    /// The same with another membership of a port, which may have come or gone too. Only ports in the switch have one.
    fn set_member(
        &mut self,
        id: PortId,
        membership: Option<Arc<Membership>>,
        table: impl Fn(u16) -> MacTable,
    ) {
        let list = self.list.iter().flatten().filter(|port| port.peer().is_none());
        let ports: PortSet =
            list.map(|port| port.id()).filter(|id| !self.targets.contains(*id)).collect();
        let membership = membership.filter(|_| ports.contains(id));
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
    pub(crate) always_poll: bool,
    /// What each port may flood, in copies per second.
    flood_copies: AtomicU32,
    hash_macs: bool,
    failures: FailureSink,
    pub(crate) doorbells: Box<[Doorbell]>,
    /// The CPUs of workers, by number.
    pub(crate) cpus: Box<[usize]>,
    pub(crate) snooping: Snooping,
    /// Of the thread that watches for workers that sleep.
    pub(crate) sleepers: Alarm,
    /// Whether a worker may sleep in the memory of a port, so that it is watched while it works.
    watches: AtomicBool,
    pub(crate) on_sleep: OnceLock<SleepSink>,
}

impl Shared {
    /// Nothing attached yet, for `workers` workers.
    pub(crate) fn of(
        config: &Config,
        failures: FailureSink,
        workers: usize,
    ) -> std::io::Result<Arc<Self>> {
        let doorbells = (0..workers).map(|_| Doorbell::new()).collect::<Result<_, _>>()?;
        let table = MacTable::new(config.capacity, config.limits);
        Ok(Arc::new(Self::new(table, config, failures, doorbells, Alarm::new(TICK)?)))
    }

    fn new(
        table: MacTable,
        config: &Config,
        failures: FailureSink,
        doorbells: Box<[Doorbell]>,
        sleepers: Alarm,
    ) -> Self {
        let &Config { poll, always_poll, flood_copies, hash_macs, ref cpus, .. } = config;
        Self {
            table,
            ports: RwLock::default(),
            generation: AtomicU64::new(0),
            attached: AtomicU64::new(0),
            started: Instant::now(),
            poll,
            always_poll,
            flood_copies: flood_copies.into(),
            hash_macs,
            failures,
            doorbells,
            cpus: cpus.as_slice().into(),
            snooping: Snooping::default(),
            sleepers,
            watches: AtomicBool::default(),
            on_sleep: OnceLock::new(),
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
        let watches = copy.may_sleep();
        *ports = Arc::new(copy);
        let watched = self.watches.swap(watches, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::Release);
        if watches && !watched {
            // A worker that works has not set the alarm.
            self.sleepers.ring();
        }
        result
    }

    /// Whether workers are watched while they work.
    #[inline]
    pub(crate) fn watches(&self) -> bool {
        self.watches.load(Ordering::Acquire)
    }

    /// Adds a port.
    pub(crate) fn add(
        &self,
        name: &str,
        egress: Vec<Box<dyn Egress>>,
        attachment: Attachment,
        (memory, steers_flows): (PortMemory, bool),
    ) -> Arc<Port> {
        let is_target = matches!(attachment, Attachment::Target);
        let (membership, peer) = match attachment {
            Attachment::Switch(membership) => (membership, None),
            Attachment::Pair(peer) => (None, Some(peer)),
            Attachment::Target => (None, None),
        };
        self.change(|ports| {
            let list = &mut ports.list;
            let number = list.iter().position(Option::is_none).unwrap_or(list.len());
            let id = PortId(u16::try_from(number).unwrap_or(u16::MAX));
            let serial = self.attached.fetch_add(1, Ordering::Relaxed);
            let storm_control = StormControl::new(self.flood_copies.load(Ordering::Relaxed));
            let port = Port::new(id, serial, name, egress, storm_control)
                .with_peer(peer)
                .with_hashed_macs(self.hash_macs)
                // Flows of other stations, with the same addresses and ports, are one to its table.
                .with_steered_flows(steers_flows && !self.hash_macs)
                .with_workers(self.doorbells.len())
                .with_memory(memory);
            let port = Arc::new(port);
            if number == list.len() {
                list.push(None);
            }
            list[number] = Some(port.clone());
            if is_target {
                ports.targets.insert(id);
            }
            ports.set_member(id, membership.map(Arc::new), |vlan| self.vlan_table(vlan));
            port
        })
    }

    /// Has workers snoop on IGMP and MLD, or flood all multicast frames.
    fn snoop(&self, snoops: bool) {
        self.change(|ports| ports.snoops = snoops);
        if !snoops {
            self.snooping.reset();
        }
    }

    /// Ports without a limit of their own may flood `copies` per second from now on.
    fn limit_floods(&self, copies: u32) {
        self.flood_copies.store(copies, Ordering::Relaxed);
        self.change(|ports| {
            let numbers: Vec<_> = ports.list.iter().flatten().map(|port| port.id().0).collect();
            for number in numbers {
                let budget =
                    FloodBudget { control: Arc::new(StormControl::new(copies)), is_own: false };
                let known = ports.flood_budgets.entry(number).or_insert_with(|| budget.clone());
                if !known.is_own {
                    *known = budget;
                }
            }
        });
    }

    /// A port may flood `copies` per second from now on; `None`: as many as others.
    fn limit_floods_of(&self, PortId(port): PortId, copies: Option<u32>) {
        let is_own = copies.is_some();
        let copies = copies.unwrap_or_else(|| self.flood_copies.load(Ordering::Relaxed));
        if !is_own && !self.ports().flood_budgets.contains_key(&port) {
            return;
        }
        self.change(|ports| {
            let control = Arc::new(StormControl::new(copies));
            ports.flood_budgets.insert(port, FloodBudget { control, is_own });
        });
    }

    /// A port is in other VLANs from now on.
    pub(crate) fn set_member(&self, id: PortId, membership: Option<Membership>) {
        self.change(|ports| {
            ports.set_member(id, membership.map(Arc::new), |vlan| self.vlan_table(vlan));
        });
    }

    /// A port is a mirror's target from now on, or is in the switch again.
    pub(crate) fn set_target(&self, id: PortId, is_target: bool, membership: Option<Membership>) {
        self.change(|ports| {
            match is_target {
                true => ports.targets.insert(id),
                false => ports.targets.remove(id),
            }
            ports.set_member(id, membership.map(Arc::new), |vlan| self.vlan_table(vlan));
        });
    }

    fn vlan_table(&self, vlan: u16) -> MacTable {
        self.table.beside(VLAN_CAPACITY, vlan)
    }

    /// Forgets every address of a port, and its groups; of one that `is_gone`, its settings too.
    pub(crate) fn forget(&self, id: PortId, is_gone: bool) {
        self.snooping.forget(id, is_gone);
        self.table.forget_port(id);
        if let Some(domains) = &self.ports().domains {
            domains.tables().for_each(|(_, table)| table.forget_port(id));
        }
    }

    /// A port that was removed is closed.
    pub(crate) fn release(&self, port: &Arc<Port>) {
        self.change(|ports| ports.leaving.retain(|other| !Arc::ptr_eq(other, port)));
    }

    pub(crate) fn remove(&self, id: PortId) -> Option<Arc<Port>> {
        self.change(|ports| {
            ports.flood_budgets.remove(&id.0);
            ports.targets.remove(id);
            let port = ports.list.get_mut(usize::from(id.0))?.take();
            ports.set_member(id, None, |vlan| self.vlan_table(vlan));
            ports.leaving.extend(port.clone());
            port
        })
    }
}

impl Datapath {
    /// Sends the frames of a multicast group to its members and to routers only, as far as members are known
    /// ([`switch::multicast`]); or floods them.
    pub fn snoop(&self, snoops: bool) {
        self.shared.snoop(snoops);
    }

    /// Sets the copies of flooded frames that each port may cause per second, those with a limit of their own excepted; zero for no
    /// limit. A port whose limit changes has a full budget.
    pub fn limit_floods(&self, copies: u32) {
        self.shared.limit_floods(copies);
    }

    /// Sets the same for one port; none for the limit of the others.
    pub fn limit_floods_of(&self, port: PortId, copies: Option<u32>) {
        self.shared.limit_floods_of(port, copies);
    }

    /// Says whether multicast routers are behind a port. Without this there are none.
    pub fn set_router(&self, port: PortId, router: Router) {
        self.shared.snooping.set_router(port, router);
    }

    /// What is known of multicast groups; none while they are flooded.
    pub fn multicast(&self) -> Option<SnoopingCounts> {
        self.shared.ports().snoops.then(|| self.shared.snooping.counts())
    }
}
