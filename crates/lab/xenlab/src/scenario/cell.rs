//! One frontend with one backend: a cell of the matrix.

use std::fmt;
use std::str::FromStr;

use lab::Progress;
use schemars::JsonSchema;
use serde::Serialize;

use super::backend::{self, Backend, RunningBackend};
use super::check::{self, Features, Rates};
use super::{BACKEND_ADDRESS, BOOT_TIMEOUT, COMMAND_TIMEOUT, GUEST_ADDRESS, PREFIX};
use crate::host::{Domu, DomuConfig, Host, Job};
use crate::{Result, UnknownName};

/// How many echoes are sent each way.
const PINGS: u32 = 5;
/// The size of the file that is sent each way, in MiB.
const FILE: u32 = 4;

/// A frontend and a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The guest's end.
    pub frontend: Frontend,
    /// The other end.
    pub backend: Backend,
}

impl Pair {
    /// All pairs.
    pub const ALL: [Self; 6] = [
        Self { frontend: Frontend::Stock, backend: Backend::Stock },
        Self { frontend: Frontend::Stock, backend: Backend::Pvnet },
        Self { frontend: Frontend::Pvnet, backend: Backend::Stock },
        Self { frontend: Frontend::Pvnet, backend: Backend::Pvnet },
        Self { frontend: Frontend::Stock, backend: Backend::PvnetDomain },
        Self { frontend: Frontend::Pvnet, backend: Backend::PvnetDomain },
    ];

    /// Whether it needs the program `pvnet`.
    #[must_use]
    pub fn needs_pvnet(self) -> bool {
        self != Self::ALL[0]
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.frontend.name(), self.backend.name())
    }
}

impl FromStr for Pair {
    type Err = UnknownName;

    fn from_str(name: &str) -> std::result::Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|pair| pair.to_string() == name);
        known.ok_or_else(|| UnknownName::new("pair", name, &Self::ALL))
    }
}

/// The result for one pair.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Cell {
    /// The guest's end.
    pub frontend: &'static str,
    /// The other end.
    pub backend: &'static str,
    /// Echoes that were answered and echoes that were sent, of both directions together.
    pub ping: [u64; 2],
    /// TCP throughput.
    #[serde(flatten)]
    pub rates: Rates,
    /// Whether a file arrived unchanged, in both directions.
    pub sha256_ok: bool,
    /// The negotiated features.
    pub features: Features,
    /// Remains of the interface and of the guest, and the toolstack's complaints.
    pub left: Vec<String>,
}

impl Cell {
    /// Whether all checks passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.ping[0] == self.ping[1] && self.sha256_ok && self.left.is_empty()
    }
}

/// Connects a pair on a freshly booted host and checks the traffic. TCP runs for `seconds` in each direction.
pub fn cell(host: &Host, pair: Pair, seconds: u32, progress: &Progress) -> Result<Cell> {
    progress.step(format!("{pair}: start the backend"));
    let backend = pair.backend.start(host)?;
    observe(host, pair, &backend, seconds, progress)
        .map_err(|error| backend::explain(error, &backend))
}

fn observe(
    host: &Host,
    pair: Pair,
    backend: &RunningBackend,
    seconds: u32,
    progress: &Progress,
) -> Result<Cell> {
    progress.step(format!("{pair}: boot a guest"));
    let guest = host.create(&DomuConfig::new("guest").vif(backend.vif()), BOOT_TIMEOUT)?;
    let _frontend = pair.frontend.start(&guest)?;
    let (inner, outer) = (guest.shell(), backend.shell());
    progress.step(format!("{pair}: ping"));
    let pings =
        [check::ping(outer, GUEST_ADDRESS, PINGS)?, check::ping(inner, BACKEND_ADDRESS, PINGS)?];
    let sum = |count: fn(&lab::Ping) -> u64| pings.iter().map(count).sum();
    progress.step(format!("{pair}: send a file each way, compare by SHA-256"));
    let sha256_ok = check::same_file(inner, outer, BACKEND_ADDRESS, FILE)?
        && check::same_file(outer, inner, GUEST_ADDRESS, FILE)?;
    progress.step(format!("{pair}: TCP each way"));
    let rates = check::throughput(inner, outer, seconds)?;
    let features = check::features(host.dom0(), &guest)?;
    progress.step(format!("{pair}: unplug the interface, plug it in, destroy the guest"));
    let left = check::ends(host.dom0(), &guest, &backend.vif())?;
    Ok(Cell {
        frontend: pair.frontend.name(),
        backend: pair.backend.name(),
        ping: [sum(|ping| ping.received), sum(|ping| ping.sent)],
        rates,
        sha256_ok,
        features,
        left,
    })
}

named::named! {
    /// A frontend.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Frontend {
        /// The kernel's xen-netfront.
        Stock => "stock",
        /// `pvnet frontend`, a process.
        Pvnet => "pvnet",
    }
}

impl Frontend {
    /// Starts it in a guest that has a vif, and waits until its `eth0` has a carrier and
    /// [`GUEST_ADDRESS`](super::GUEST_ADDRESS).
    pub fn start(self, guest: &Domu) -> Result<RunningFrontend> {
        self.start_at(guest, GUEST_ADDRESS)
    }

    /// As [`start`](Self::start), with another address.
    pub fn start_at(self, guest: &Domu, address: &str) -> Result<RunningFrontend> {
        let shell = guest.shell();
        let process = match self {
            Self::Stock => {
                shell.run(&stock(address), COMMAND_TIMEOUT)?;
                None
            }
            Self::Pvnet => Some(shell.spawn(&pvnet(address))?),
        };
        let words =
            process.as_ref().map_or(String::new(), |job| format!("; tail -n 20 {}", job.file()));
        let connected = format!(
            "grep -q 1 /sys/class/net/eth0/carrier && ip -br addr show dev eth0 | grep -F {address} || \
             {{ ip -br link{words}; false; }}"
        );
        shell.until(&format!("{}'s connection", self.name()), &connected, COMMAND_TIMEOUT)?;
        Ok(RunningFrontend { process })
    }
}

/// A frontend that is connected.
#[derive(Debug)]
pub struct RunningFrontend {
    process: Option<Job>,
}

impl RunningFrontend {
    /// Its process, unless it is the stock one.
    #[must_use]
    pub fn process(&self) -> Option<&Job> {
        self.process.as_ref()
    }
}

/// Connects with the kernel's driver, as at a normal boot.
fn stock(address: &str) -> String {
    format!(
        "modprobe xen-netfront && until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
         ip addr add {address}/{PREFIX} dev eth0 && ip link set eth0 up"
    )
}

/// Connects with pvnet's. gntalloc's default limit is too low for a grant for each page of both rings.
fn pvnet(address: &str) -> String {
    format!(
        "modprobe xen-gntalloc limit=4096 && modprobe -a xen-evtchn tun\n\
         exec pvnet frontend --vif 0 --device eth0 --address {address}/{PREFIX}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pairs_name_is_read_back() {
        for pair in Pair::ALL {
            assert_eq!(pair.to_string().parse::<Pair>().expect("known"), pair);
        }
        let message = "stock-none".parse::<Pair>().expect_err("unknown").to_string();
        assert!(
            message.starts_with("no pair stock-none: choose one of stock-stock, "),
            "{message}"
        );
    }

    #[test]
    fn only_the_stock_pair_needs_no_pvnet() {
        assert_eq!(Pair::ALL.iter().filter(|pair| !pair.needs_pvnet()).count(), 1);
        assert!(!"stock-stock".parse::<Pair>().expect("known").needs_pvnet());
    }

    #[test]
    fn a_lost_echo_or_a_changed_file_or_a_node_that_is_left_is_not_sound() {
        let passed = Cell {
            frontend: "stock",
            backend: "stock",
            ping: [10, 10],
            rates: Rates { tx_mbps: 1.0, rx_mbps: 1.0 },
            sha256_ok: true,
            features: Features::default(),
            left: Vec::new(),
        };
        assert!(passed.passed());
        assert!(!Cell { ping: [9, 10], ..passed.clone() }.passed());
        assert!(!Cell { sha256_ok: false, ..passed.clone() }.passed());
        assert!(!Cell { left: vec!["a node is left".to_owned()], ..passed }.passed());
    }
}
