//! `[daemon]`, `[xen]` and `[switch]`: the daemon's own settings.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use control_socket::DIRECTORY;
use cpus::CpuList;
use datapath::BalanceRule;
use poller::Polling;
use port::LENT_MAX;
use schemars::JsonSchema;
use serde::Deserialize;
use wire::netif::guest_copy::POOL_PAGES_MAX;

use super::flooding::Multicast;
use super::port_settings::Attach;
use super::port_settings::socket::{Group, group, socket_mode};
use super::table::{AT_START, Effort, table};
use crate::log::LogFormat;

table! {
    /// `[daemon]`
    Daemon [Effort = AT_START] {
        /// The folder of the sockets.
        directory: PathBuf = DIRECTORY.into();
        /// The folder of files that mirrors write.
        recordings: PathBuf = RECORDINGS.into();
        /// The permissions of the socket where guests join.
        #[serde(deserialize_with = "socket_mode")]
        join_mode: u32 = SOCKET_MODE;
        /// Its group; the daemon's, or the folder's, if absent.
        #[serde(deserialize_with = "group")]
        #[schemars(with = "Option<Group>")]
        join_group: Option<u32> = None;
        /// The permissions of the control socket.
        #[serde(deserialize_with = "socket_mode")]
        control_mode: u32 = SOCKET_MODE;
        /// The group of the control socket; the daemon's, or the folder's, if absent.
        #[serde(deserialize_with = "group")]
        #[schemars(with = "Option<Group>")]
        control_group: Option<u32> = None;
        /// The permissions of the socket where cards join.
        #[serde(deserialize_with = "socket_mode")]
        nic_mode: u32 = SOCKET_MODE;
        /// The platform whose guests are served.
        platform: PlatformKind = PlatformKind::Machine;
        /// Threads that carry frames; one for each of `cpus`, or as the machine's CPUs suggest, if absent.
        workers: Option<usize> = None;
        /// The CPUs of these threads, one each; without it they run where the scheduler puts them.
        #[serde(deserialize_with = "cpu_list")]
        #[schemars(with = "Option<String>")]
        cpus: Option<CpuList> = None;
        /// Whether queues get other workers when these have too much to do.
        rebalance: Rebalance = Rebalance::default(), Effort::InPlace;
        /// Seconds between two checks of the workers' loads.
        rebalance_interval_s: u64 = 5, Effort::InPlace;
        /// Per cent of its time that the busiest worker spends on queues before any moves.
        #[serde(deserialize_with = "percent")]
        rebalance_threshold: u8 = 70, Effort::InPlace;
        /// Per cent of that time that the moves must save.
        #[serde(deserialize_with = "percent")]
        rebalance_gain: u8 = 10, Effort::InPlace;
        /// How a worker waits for frames.
        poll: Poll = Poll::default();
        /// Microseconds for which a worker polls at most before it sleeps, while round trips are under way; the platform's if absent.
        poll_us: Option<u64> = None;
        /// Whether the machine's CPUs sleep lightly while traffic flows.
        low_latency: bool = false;
        /// The address where metrics are served.
        metrics: Option<SocketAddr> = None;
        /// Whether hypervisor time is measured from the start.
        meter: bool = false;
        /// Whether `pvnet capture` and mirrors may record what ports carry.
        capture: bool = true, Effort::InPlace;
        /// What the daemon gives up when it has started.
        sandbox: SandboxLevel = SandboxLevel::default();
        /// How its log is written.
        log: LogFormat = LogFormat::default();
    }
}

/// `poll`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// Polls for a while where that helps, then sleeps.
    #[default]
    Adaptive,
    /// Never sleeps.
    Always,
    /// Sleeps at once.
    Never,
}

impl Poll {
    /// The same for a thread that polls a wait for `limit` at most.
    pub fn limited_to(self, limit: Duration) -> Polling {
        match self {
            Self::Adaptive => Polling::UpTo(limit),
            Self::Always => Polling::Always,
            Self::Never => Polling::UpTo(Duration::ZERO),
        }
    }
}

/// `rebalance`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rebalance {
    /// Queues move when that helps.
    #[default]
    Auto,
    /// They stay where they are.
    Off,
}

/// The most seconds between two checks of the loads.
const INTERVAL_MAX: u64 = 3600;
/// The most workers that a datapath has.
const WORKERS_MAX: usize = 64;

impl Daemon {
    /// How many threads carry frames: one per CPU of `cpus`, or as many as the machine's CPUs suggest.
    pub fn workers(&self) -> usize {
        let named = self.cpus.as_ref().map(CpuList::len);
        self.workers.or(named).unwrap_or_else(|| default_workers(cpus()))
    }

    /// For how long a worker polls at most before it sleeps. Domains of a Xen host share its processors: a worker that polls takes
    /// them from the guest that it waits for, and cannot see that it does.
    pub fn poll_limit(&self) -> Duration {
        match (self.poll, self.poll_us, self.platform) {
            (Poll::Never, ..) => Duration::ZERO,
            (_, Some(poll_us), _) => Duration::from_micros(poll_us),
            (Poll::Adaptive, None, PlatformKind::Xen) => Duration::ZERO,
            (Poll::Adaptive | Poll::Always, None, _) => poller::POLL,
        }
    }

    /// When queues get other workers; none if they do not.
    pub fn balance_rule(&self) -> Option<BalanceRule> {
        let part = |percent: u8| f64::from(percent) / 100.0;
        (self.rebalance == Rebalance::Auto).then(|| BalanceRule {
            interval: Duration::from_secs(self.rebalance_interval_s),
            threshold: part(self.rebalance_threshold),
            gain: part(self.rebalance_gain),
        })
    }

    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let workers = self.workers();
        if let Some(cpus) = &self.cpus
            && cpus.len() != workers
        {
            return Err(format!(
                "daemon.workers is {workers}, and daemon.cpus = \"{cpus}\" are {}: each worker has one of them, so leave workers out",
                cpus.len()
            ));
        }
        if !(1..=INTERVAL_MAX).contains(&self.rebalance_interval_s) {
            return Err(format!(
                "daemon.rebalance_interval_s is {}, not 1 to {INTERVAL_MAX}",
                self.rebalance_interval_s
            ));
        }
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(format!("daemon.workers is {workers}, not 1 to {WORKERS_MAX}"));
        }
        Ok(())
    }
}

/// A part of something, in per cent.
fn percent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let percent = u8::deserialize(deserializer).ok().filter(|percent| (1..=100).contains(percent));
    percent
        .ok_or_else(|| serde::de::Error::custom("is not a whole number from 1 to 100 (per cent)"))
}

/// `cpus`
fn cpu_list<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<CpuList>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
}

/// The CPUs of the driver domain, when this is called first: later on the threads may be bound to some of them.
pub(super) fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// The most workers by default.
const WORKERS_DEFAULT_MAX: usize = 4;
/// The most queues of a vif by default, as xen-netback has them.
const QUEUES_DEFAULT_MAX: u32 = 8;

/// The workers by default: one per CPU. Two workers on two CPUs take them from the guests, and a stream gets slower.
pub(super) fn default_workers(cpus: usize) -> usize {
    if cpus <= 2 { 1 } else { cpus.min(WORKERS_DEFAULT_MAX) }
}

/// The queues that a vif is offered by default: one per CPU of the driver domain. Its guest takes as many as it has CPUs.
pub fn default_queues() -> u32 {
    queues_for(cpus())
}

pub(super) fn queues_for(cpus: usize) -> u32 {
    u32::try_from(cpus).unwrap_or(u32::MAX).clamp(1, QUEUES_DEFAULT_MAX)
}

/// The folder of files that mirrors write. The package's unit makes it.
const RECORDINGS: &str = "/var/lib/pvnet";
/// Only the daemon's user, and root.
const SOCKET_MODE: u32 = 0o600;

/// `platform`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlatformKind {
    /// Guests are processes that join: `pvnet guest`.
    #[default]
    Machine,
    /// Guests are domains of a Xen host; the daemon runs in dom0 or in a driver domain.
    Xen,
}

table! {
    /// `[xen]`
    Xen [Effort = AT_START] {
        /// The backends' type: the name of their folder in the store.
        backend: String = "vif".to_owned();
        /// What happens to the guests when the daemon stops.
        on_stop: OnStop = OnStop::Keep;
        /// Pages that are granted to each guest that copies an uplink's frames itself.
        guest_copy_pages: usize = GUEST_COPY_PAGES;
        /// What guests are joined to, unless their own table says so.
        attach: Attach = Attach::default();
    }
}

/// A page for each slot of a ring.
const GUEST_COPY_PAGES: usize = 256;
/// Pages that one unsegmented frame may need.
const GUEST_COPY_PAGES_MIN: usize = LENT_MAX;

impl Xen {
    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.backend.is_empty() || self.backend.contains('/') {
            return Err(format!("xen.backend is {:?}, not a folder's name", self.backend));
        }
        if !(GUEST_COPY_PAGES_MIN..=POOL_PAGES_MAX).contains(&self.guest_copy_pages) {
            return Err(format!(
                "xen.guest_copy_pages is {}, not {GUEST_COPY_PAGES_MIN} to {POOL_PAGES_MAX}",
                self.guest_copy_pages
            ));
        }
        Ok(())
    }
}

/// `on_stop`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnStop {
    /// They stay connected and wait for the next daemon.
    Keep,
    /// They are disconnected.
    Close,
}

table! {
    /// `[switch]`
    Switch [Effort = AT_START] {
        /// Seconds until an address is forgotten.
        age_seconds: u32 = switch::Limits::default().age_seconds;
        /// Most addresses that the switch learns from one port.
        addresses_per_port: u32 = switch::Limits::default().per_port;
        /// Copies of flooded frames that one port may cause per second; 0 for no limit.
        flood_copies_per_second: u32 = switch::FLOOD_COPIES, Effort::InPlace;
        /// Who gets the frames of multicast groups.
        multicast: Multicast = Multicast::default(), Effort::InPlace;
        /// Whether MAC addresses are part of the hash that spreads flows over queues.
        hash_macs: bool = false;
    }
}

/// What the daemon gives up when it has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxLevel {
    /// Everything that the configuration, as it is, does not need.
    #[default]
    Full,
    /// The same, but it can still open devices for further uplinks.
    Devices,
    /// Nothing.
    Off,
}
