//! `[daemon]`, `[xen]` and `[switch]`: the daemon's own settings.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use control_socket::DIRECTORY;
use port::LENT_MAX;
use serde::Deserialize;
use wire::netif::guest_copy::POOL_PAGES_MAX;

use super::attach::Attach;
use super::flooding::Multicast;
use super::sandbox::Sandbox;
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
        join_group: Option<u32> = None;
        /// The permissions of the control socket.
        #[serde(deserialize_with = "socket_mode")]
        control_mode: u32 = SOCKET_MODE;
        /// The group of the control socket; the daemon's, or the folder's, if absent.
        #[serde(deserialize_with = "group")]
        control_group: Option<u32> = None;
        /// The permissions of the socket where cards join.
        #[serde(deserialize_with = "socket_mode")]
        nic_mode: u32 = SOCKET_MODE;
        /// The platform whose guests are served.
        platform: Platform = Platform::Machine;
        /// Threads that carry frames.
        workers: usize = default_workers(cpus());
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
        sandbox: Sandbox = Sandbox::default();
        /// How its log is written.
        log: LogFormat = LogFormat::default();
    }
}

impl Daemon {
    /// For how long a worker polls at most before it sleeps. Domains of a Xen host share its processors: a worker that polls takes
    /// them from the guest that it waits for, and cannot see that it does.
    pub fn poll(&self) -> Duration {
        match (self.poll_us, self.platform) {
            (Some(poll_us), _) => Duration::from_micros(poll_us),
            (None, Platform::Machine) => poller::POLL,
            (None, Platform::Xen) => Duration::ZERO,
        }
    }
}

/// The CPUs of the driver domain.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
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

/// The permissions of a socket that need not be given.
pub(super) fn socket_mode_if_any<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    socket_mode(deserializer).map(Some)
}

/// The permissions of a socket, as TOML's octal number.
fn socket_mode<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let mode = u32::deserialize(deserializer)?;
    if mode > 0o777 {
        let error = format!("{mode} is not a mode; write it as an octal number, such as 0o660");
        return Err(serde::de::Error::custom(error));
    }
    Ok(mode)
}

/// `platform`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// Guests are processes that join: `pvnet guest`.
    #[default]
    Machine,
    /// Guests are domains of a Xen host; the daemon runs in dom0 or in a driver domain.
    Xen,
}

/// A group of this machine: its number, or its name.
pub(super) fn group<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Group {
        Number(u32),
        Name(String),
    }
    let name = match Group::deserialize(deserializer)? {
        Group::Number(number) => return Ok(Some(number)),
        Group::Name(name) => name,
    };
    let groups = std::fs::read_to_string(GROUPS).map_err(serde::de::Error::custom)?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(&*name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    let unknown = || serde::de::Error::custom(format!("no group {name:?} in {GROUPS}"));
    number.map(Some).ok_or_else(unknown)
}

/// The groups of this machine.
const GROUPS: &str = "/etc/group";

table! {
    /// `[xen]`
    Xen [Effort = AT_START] {
        /// The backends' type: the name of their folder in the store.
        backend: String = "vif".to_owned();
        /// What happens to the guests when the daemon stops.
        on_stop: OnStop = OnStop::Keep;
        /// Pages that are granted to each guest that copies an uplink's frames itself.
        guest_copy_pages: usize = GUEST_COPY_PAGES;
        /// What guests are joined to that do not say so themselves.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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
