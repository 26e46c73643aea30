//! What `pvnet status` shows, as the daemon tells it: JSON, one object.

use datapath::Port;
use frame::DropReason;
use hypervisor::{Counted, Hypervisor, Meter};
use netback::PersistentGrants;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use xenstore::XenbusState;

use crate::daemon::cpu::CpuStatus;
use crate::daemon::memory::MemoryStatus;

/// The daemon and its ports at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's process.
    pub pid: u32,
    /// The kernel's numbers of the threads that carry frames.
    pub worker_threads: Vec<u32>,
    /// Whose processor time was spent; absent where the machine does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStatus>,
    /// What was asked of the hypervisor since the start, while the meter was on.
    pub meter: MeterStatus,
    /// Every port.
    pub ports: Vec<PortStatus>,
    /// Guests of the configuration that have not joined.
    pub absent: Vec<String>,
    /// What the switch has learnt.
    pub addresses: Vec<Address>,
}

#[cfg(test)]
impl Status {
    /// A daemon of which nothing is known but its ports.
    pub fn of_ports(ports: Vec<PortStatus>) -> Self {
        let meter = MeterStatus::new(&Meter::default(), &ports);
        let (worker_threads, absent, addresses) = (vec![], vec![], vec![]);
        Self { pid: 0, worker_threads, cpu: None, meter, ports, absent, addresses }
    }
}

/// What was asked of the hypervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeterStatus {
    /// Whether it counts now.
    pub on: bool,
    /// How many there were of everything that is [counted](Counted::ALL), by name.
    pub counts: BTreeMap<String, u64>,
    /// Bytes that guests copied between their stacks' taps and their granted pages, meter or no
    /// meter. Nobody counts them there: it is what their ports carried, both ways.
    pub guest_bytes: u64,
    /// Time in grant and event operations.
    pub nanoseconds: u64,
}

impl MeterStatus {
    /// What a meter shows, of a daemon with these ports.
    pub(super) fn new(meter: &Meter, ports: &[PortStatus]) -> Self {
        let guests = ports.iter().filter(|port| port.kind == "guest");
        Self {
            on: meter.is_on(),
            counts: Counted::ALL.map(|what| (what.name().to_owned(), meter.count(what))).into(),
            guest_bytes: guests.map(|port| port.rx.bytes + port.tx.bytes).sum(),
            nanoseconds: meter.nanoseconds(),
        }
    }

    /// How many there were; none of what this daemon does not count.
    pub fn count(&self, what: Counted) -> u64 {
        self.counts.get(what.name()).copied().unwrap_or(0)
    }
}

/// One port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// `guest` or `uplink`.
    pub kind: String,
    /// The guest's domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<u16>,
    /// The guest's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Whether it carries traffic: `up` or `down`.
    pub state: String,
    /// Why it does not, or not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The guest's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// The guest's pages that stay mapped, if its frontend has some of its own choice mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_grants: Option<PersistentStatus>,
    /// Queues each way.
    pub queues: usize,
    /// Frames and bytes from the port into the switch.
    pub rx: Traffic,
    /// Frames and bytes from the switch out of the port.
    pub tx: Traffic,
    /// Frames that went nowhere, by reason; those with none are left out.
    pub drops: BTreeMap<String, u64>,
}

/// Persistent grants of all queues of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentStatus {
    /// Pages that are mapped.
    pub mapped: usize,
    /// Most that can be.
    pub bound: usize,
}

impl PersistentStatus {
    /// Those of these queues; none of a guest that has none.
    pub(super) fn of<H: Hypervisor>(queues: &[Arc<PersistentGrants<H>>]) -> Option<Self> {
        let sum = |of: fn(&PersistentGrants<H>) -> usize| queues.iter().map(|q| of(q)).sum();
        let (mapped, bound) = (sum(PersistentGrants::mapped), sum(PersistentGrants::bound));
        (!queues.is_empty()).then_some(Self { mapped, bound })
    }
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames, GSO frames counted once.
    pub frames: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
}

/// An address the switch has learnt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub mac: String,
    /// The number of the port it lives on.
    pub port: u16,
    /// Seconds since it was last seen.
    pub age: u32,
}

impl From<&switch::Entry> for Address {
    fn from(entry: &switch::Entry) -> Self {
        Self { mac: entry.mac.to_string(), port: entry.port.0, age: entry.age }
    }
}

impl PortStatus {
    /// A guest's port, connected or not.
    pub(super) fn guest<H: Hypervisor>(
        name: &str,
        domain: u16,
        mac: &str,
        state: XenbusState,
        reason: Option<String>,
        port: Option<&Port<H>>,
    ) -> Self {
        let up = state == XenbusState::Connected;
        let stalled = || "the guest takes no frames: its receive ring is empty".to_owned();
        let reason = reason.or_else(|| port.filter(|p| p.is_stalled()).map(|_| stalled()));
        let this = Self {
            name: name.to_owned(),
            kind: "guest".to_owned(),
            domain: Some(domain),
            mac: Some(mac.to_owned()),
            state: if up { "up" } else { "down" }.to_owned(),
            reason,
            memory: None,
            persistent_grants: None,
            queues: 0,
            rx: Traffic::default(),
            tx: Traffic::default(),
            drops: BTreeMap::new(),
        };
        this.counted(port)
    }

    /// An uplink's port.
    pub(super) fn uplink<H: Hypervisor>(port: &Port<H>) -> Self {
        let this = Self {
            name: port.name().to_owned(),
            kind: "uplink".to_owned(),
            domain: None,
            mac: None,
            state: "up".to_owned(),
            reason: None,
            memory: None,
            persistent_grants: None,
            queues: 0,
            rx: Traffic::default(),
            tx: Traffic::default(),
            drops: BTreeMap::new(),
        };
        this.counted(Some(port))
    }

    fn counted<H: Hypervisor>(mut self, port: Option<&Port<H>>) -> Self {
        let Some(port) = port else { return self };
        let counts = port.counters().snapshot();
        self.queues = port.queues();
        self.rx = Traffic { frames: counts.rx_frames, bytes: counts.rx_bytes };
        self.tx = Traffic { frames: counts.tx_frames, bytes: counts.tx_bytes };
        self.drops = DropReason::ALL
            .iter()
            .zip(counts.drops)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.name().to_owned(), count))
            .collect();
        self
    }
}
