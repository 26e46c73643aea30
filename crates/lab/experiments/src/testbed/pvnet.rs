//! pvnet under test: a daemon and two guests as processes.
//!
//! A guest with a virtio device:
//!
//! ```text
//!  namespace ── tap ── pvnet run: switch, driver of a vhost-user port ──► the port of the daemon under test
//! ```

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use accounting::Carried;
use clap::ValueEnum;
use control_socket::{GuestReport, PortKind, PortState, QueueReport, Status};
use lab::{Endpoint, Namespace, Offloads, Process};

use super::Subject;
use super::daemon::{Daemon, Ending, ports, pvnet, quoted, table};
use crate::error::{Error, Result};

named::named! {
    /// The kinds of guests' interfaces.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
    pub enum GuestKind {
        /// Process guests' vifs.
        #[default]
        Netif => "netif",
        /// Virtio devices with vhost-user ports.
        Virtio => "virtio",
    }
}

impl fmt::Display for GuestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the daemon and its guests are configured.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The daemon's workers; its default if absent.
    pub workers: Option<usize>,
    /// Queues of each guest, at most; as many as workers if absent.
    pub queues: Option<u32>,
    /// How long the daemon and the guests poll at most, in microseconds; their defaults if absent.
    pub poll_us: Option<u64>,
    /// Further lines of the table `[daemon]`.
    pub daemon: String,
    /// The kind of the guests' interfaces. Guests with virtio devices have all offloads, one queue, and do not outlive the daemon.
    pub kind: GuestKind,
    /// Further lines of each guest's table.
    pub guest: String,
    /// Offloads between guests and pvnet, in both directions.
    pub offloads: Offloads,
    /// Whether hypervisor time is measured.
    pub meter: bool,
    /// Whether the guests outlive the daemon.
    pub rejoin: bool,
    /// More tables for the configuration: other guests and uplinks.
    pub more: String,
}

/// A running daemon and two connected guests. Dropping it stops them and removes their files.
#[derive(Debug)]
pub struct Testbed {
    // Fields are dropped in this order, each before what it uses.
    guests: Vec<Process>,
    machines: Vec<Daemon>,
    daemon: Daemon,
    left: Endpoint,
    right: Endpoint,
    queues: Option<u32>,
    poll_us: Option<u64>,
    rejoin: bool,
}

/// How long a guest may take for a report on a busy machine.
const REPORT: Duration = Duration::from_secs(5);
/// How long guests wait for the next daemon.
const REJOIN: &str = "--rejoin=30";
/// The interface in each guest.
const DEVICE: &str = "eth0";
/// The guests' addresses.
const MACS: [&str; 2] = ["02:70:76:6e:00:01", "02:70:76:6e:00:02"];

impl Testbed {
    /// Starts everything; guests are connected on return. Nothing in it is shared with another
    /// testbed or daemon.
    pub fn start(setup: &Setup) -> Result<Self> {
        // The namespaces are made here, not by the guests, so that they are removed even if a guest is killed.
        let left = endpoint("pvnet-red", 1)?;
        let right = endpoint("pvnet-blue", 2)?;
        let config = |folder: &Path| config_text(setup, folder, [&left, &right]);
        let daemon = Daemon::start(config)?;
        let Setup { queues, poll_us, rejoin, .. } = *setup;
        let (guests, machines) = (Vec::new(), Vec::new());
        let mut testbed = Self { guests, machines, daemon, left, right, queues, poll_us, rejoin };
        match setup.kind {
            GuestKind::Netif => testbed.start_guests(setup.offloads)?,
            GuestKind::Virtio => testbed.start_machines()?,
        }
        Ok(testbed)
    }

    /// Ends the daemon and starts it again, under guests that must [outlive](Setup::rejoin) it. They may still be away on
    /// return.
    pub fn restart_daemon(&mut self, ending: Ending) -> Result<()> {
        self.daemon.restart(ending)
    }

    fn start_machines(&mut self) -> Result<()> {
        for (end, mac) in [&self.left, &self.right].into_iter().zip(MACS) {
            self.machines.push(start_machine(end, mac, self.daemon.folder())?);
        }
        self.wait("the guests' start", |status, _| up(status) == 2)
    }

    fn start_guests(&mut self, offloads: Offloads) -> Result<()> {
        let queues = self.queues;
        for end in [&self.left, &self.right] {
            let mut command = pvnet(None)?;
            command.arg("guest").arg("--directory").arg(self.daemon.folder());
            command.args(["--device", end.device]).args(flags(offloads));
            if let Some(queues) = queues {
                // By default a guest has at most one queue per CPU.
                command.args(["--queues", &queues.to_string()]);
            }
            command.args(self.poll_us.map(|poll_us| format!("--poll-us={poll_us}")));
            command.args(self.rejoin.then_some(REJOIN));
            command.arg(end.namespace.name());
            self.guests.push(Process::capture(command)?);
        }
        self.wait("the guests' start", |status, guests| {
            // A port is up before its interface has addresses; the guest prints when it has.
            up(status) == 2 && guests.iter().all(|guest| guest.stdout().contains("is up"))
        })?;
        if !offloads.gso {
            // Segmentation in the stack itself (GSO) does not depend on pvnet: ethtool switches it off.
            for end in [&self.left, &self.right] {
                Offloads { gso: false, ..Offloads::ALL }.apply(&end.namespace, end.device)?;
            }
        }
        Ok(())
    }

    /// The daemon's ports and counters.
    pub fn status(&self) -> Result<Status> {
        let no_answer = |_| Error::Status(format!("the daemon does not answer{}", self.said()));
        self.daemon.status().map_err(no_answer)
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// The processes of the left and the right guest.
    pub fn guests(&self) -> Vec<u32> {
        let machines = self.machines.iter().map(Daemon::pid);
        self.guests.iter().map(Process::pid).chain(machines).collect()
    }

    /// The folder of the daemon's sockets.
    pub fn folder(&self) -> &Path {
        self.daemon.folder()
    }

    /// The reports of the left guest's queues.
    pub fn left_queues(&mut self) -> Result<Vec<QueueReport>> {
        let Some(left) = self.guests.first_mut() else { return Ok(Vec::new()) };
        let line = left.report(REPORT)?;
        let report: GuestReport = serde_json::from_str(&line).map_err(report::Error::from)?;
        Ok(report.interfaces.into_iter().flat_map(|interface| interface.queues).collect())
    }

    fn wait(&mut self, what: &str, ready: impl Fn(&Status, &[Process]) -> bool) -> Result<()> {
        self.daemon.wait(what, &mut self.guests, ready)
    }

    fn said(&self) -> String {
        self.daemon.said(&self.guests)
    }
}

impl Subject for Testbed {
    fn name(&self) -> &'static str {
        "pvnet"
    }

    fn ends(&self) -> [&Endpoint; 2] {
        [&self.left, &self.right]
    }

    fn carried(&self) -> Result<Carried> {
        let status = self.status()?;
        if up(&status) != 2 {
            return Err(Error::Status(format!("{}{}", ports(&status), self.said())));
        }
        Ok(Carried::from(&status))
    }

    fn daemon(&self) -> Option<u32> {
        Some(self.pid())
    }
}

/// A namespace with the addresses that its guest will have: those of [`lab::VethBridge`].
fn endpoint(prefix: &str, host: u8) -> Result<Endpoint> {
    Ok(Endpoint {
        namespace: Namespace::create(prefix)?,
        device: DEVICE,
        ipv4: Ipv4Addr::new(10, 77, 0, host),
        ipv6: Ipv6Addr::new(0xfd70, 0x766e, 0x6574, 0, 0, 0, 0, u16::from(host)),
    })
}

/// `pvnet guest`'s flags for offloads that are off.
fn flags(offloads: Offloads) -> impl Iterator<Item = &'static str> {
    let flags =
        [(offloads.tso, "--no-tso"), (offloads.csum, "--no-csum"), (offloads.sg, "--no-sg")];
    flags.into_iter().filter(|(on, _)| !on).map(|(_, flag)| flag)
}

fn config_text(setup: &Setup, folder: &Path, ends: [&Endpoint; 2]) -> String {
    let mut text = format!("{}meter = {}\n", table(folder), setup.meter);
    if let Some(workers) = setup.workers {
        text += &format!("workers = {workers}\n");
    }
    if let Some(poll_us) = setup.poll_us {
        text += &format!("poll_us = {poll_us}\n");
    }
    text += &setup.daemon;
    for (end, mac) in ends.into_iter().zip(MACS) {
        text += &match setup.kind {
            GuestKind::Netif => format!(
                "\n[[guest]]\nname = \"{}\"\nmac = \"{mac}\"\naddresses = [\"{}/24\", \"{}/64\"]\n",
                end.namespace.name(),
                end.ipv4,
                end.ipv6
            ),
            GuestKind::Virtio => port(end, mac, folder),
        };
        if let Some(queues) = setup.queues {
            text += &format!("queues = {queues}\n");
        }
        text += &setup.guest;
    }
    text + "\n" + &setup.more
}

/// Starts a guest whose interface is a virtio device: a second daemon, whose uplinks are the namespace's device and the driver of the port.
fn start_machine(end: &Endpoint, mac: &str, folder: &Path) -> Result<Daemon> {
    let socket = quoted(&socket(end, folder));
    let guest = Daemon::start(|folder| {
        format!(
            "{}workers = 1\n\n[[uplink]]\nname = \"port\"\nkind = \"virtio-user\"\n\
             mode = \"client\"\nsocket = {socket}\n\n[[uplink]]\nname = \"guest\"\ntap = \"{}\"\n\
             namespace = \"{}\"\naddresses = [\"{}/24\", \"{}/64\"]\n",
            table(folder),
            end.device,
            end.namespace.name(),
            end.ipv4,
            end.ipv6
        )
    })?;
    // The port's guard accepts only this address.
    end.namespace.ip(&["link", "set", "dev", end.device, "address", mac])?;
    Ok(guest)
}

/// The table of its port in the configuration of the daemon under test, whose folder has the socket.
fn port(end: &Endpoint, mac: &str, folder: &Path) -> String {
    format!(
        "\n[[port]]\nname = \"{}\"\nkind = \"vhost-user\"\nmac = \"{mac}\"\nsocket = {}\n",
        end.namespace.name(),
        quoted(&socket(end, folder))
    )
}

fn socket(end: &Endpoint, folder: &Path) -> PathBuf {
    folder.join(format!("{}.sock", end.namespace.name()))
}

/// The number of guests whose ports are up.
fn up(status: &Status) -> usize {
    let guests = status.ports.iter().filter(|port| port.kind == PortKind::Guest);
    guests.filter(|port| port.state == PortState::Up).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offload_that_is_off_has_a_flag() {
        assert_eq!(flags(Offloads::ALL).count(), 0);
        let off: Vec<_> = flags(Offloads::NONE).collect();
        assert_eq!(off, ["--no-tso", "--no-csum", "--no-sg"]);
    }
}
