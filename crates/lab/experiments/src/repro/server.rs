//! The server and its peer: guests, daemon and, on the client's CPU, cards.
//!
//! ```text
//!            server CPU                          client CPU
//!  native:   program ─ stack ─────────────── veth ══ peer's stack ─ program
//!  Xen:      programs ─ guests ─ daemon ─┬── taps ══ peer's stack ─ program
//!                                        └─ cards ══ peer's stack ─ program
//!  CDNA:     programs ─ guests ───────────  cards ══ peer's stack ─ program
//! ```

use std::net::Ipv4Addr;
use std::path::Path;

use control_socket::{ContextState, PortState, Status};
use lab::{Namespace, Offloads, Process, Sysctl, on_cpu};

use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::testbed::{Daemon, ports, pvnet, this};

/// The parts of the setup that a configuration file names.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The names of the guests, which are those of their namespaces.
    pub guests: &'a [&'a str],
    /// The namespace of the peer, where all wires end.
    pub peer: &'a str,
    /// NICs.
    pub nics: u8,
    /// The line rate of each; 0 for none.
    pub rate_mbps: u32,
    /// The longest time between a frame that a card received and the guest's interrupt, in microseconds.
    pub coalesce_us: u32,
}

impl Machine<'static> {
    /// One guest on one NIC, for code that only reads a configuration.
    pub const EXAMPLE: Self =
        Self { guests: &["server"], peer: "peer", nics: 1, rate_mbps: 0, coalesce_us: 0 };
}

/// The peer's end of a NIC.
pub fn wire(nic: u8) -> String {
    format!("wire{nic}")
}

/// A card's name.
pub fn card(nic: u8) -> String {
    format!("card{nic}")
}

/// An address in the network of a NIC. Guests count from 1.
pub fn address(nic: u8, host: u8) -> [u8; 4] {
    [10, 77, 70 + nic, host]
}

/// The peer's host number.
pub const PEER: u8 = 254;

/// An address with the length of its network.
pub fn with_prefix(nic: u8, host: u8) -> String {
    format!("{}/24", Ipv4Addr::from(address(nic, host)))
}

/// The setup of a server.
pub trait Setup: Copy {
    /// The daemon's configuration. `None` without a daemon: the server is then a stack on the wire.
    fn toml(self, folder: &Path, machine: &Machine<'_>) -> Option<String>;

    /// Whether it has cards, which are processes.
    fn has_cards(self) -> bool;

    /// Whether the program runs in the driver domain: the daemon is in the namespace of the only guest.
    fn is_driver_domain(self) -> bool {
        false
    }

    /// Whether the peer's stack segments TCP behind a daemon too, or the daemon's tap does (`large_receive = false`).
    fn peer_segments_early(self) -> bool {
        true
    }

    /// Whether guests segment TCP before they send.
    fn segments_early(self) -> bool {
        false
    }

    /// Whether the server starts its guests as processes. Otherwise the caller joins the daemon under their names.
    fn starts_guests(self) -> bool {
        true
    }

    /// Memory mappings that the daemon needs beyond the kernel's default limit.
    fn mappings(self, _guests: u8, _nics: u8) -> u64 {
        0
    }
}

/// A running server and its peer. Dropping it removes everything.
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order, each before what it uses.
    /// Programs in guests, in the order of the guests.
    pub programs: Vec<Process>,
    /// Guests.
    pub guests: Vec<Process>,
    /// Cards.
    pub cards: Vec<Process>,
    daemon: Option<Daemon>,
    namespaces: Vec<Namespace>,
    /// Where the benchmark's client runs.
    pub peer: Namespace,
    /// What differs from the intended setup.
    pub notes: Vec<String>,
    nics: u8,
    /// Raised for as long as the daemon runs.
    _mappings: Sysctl,
}

/// The network that all servers of an experiment share.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// NICs of every server.
    pub nics: u8,
    /// The line rate of each card; 0 for none.
    pub rate_mbps: u32,
    /// The longest time between a frame that a card received and the guest's interrupt, in microseconds.
    pub coalesce_us: u32,
}

impl Network {
    /// One NIC without a line rate.
    pub const ONE_NIC: Self = Self { nics: 1, rate_mbps: 0, coalesce_us: 0 };
}

/// The kernel's default for the mappings of a process.
const DEFAULT_MAPPINGS: u64 = 65_530;

/// A guest's device on a NIC.
pub fn device(nic: u8) -> String {
    format!("eth{nic}")
}

impl Server {
    /// Starts a server. On return, its guests are there.
    pub fn start(setup: impl Setup, guests: u8, network: Network, cpus: &Cpus) -> Result<Self> {
        let peer = Namespace::create("pvnet-peer")?;
        let mappings = DEFAULT_MAPPINGS + setup.mappings(guests, network.nics);
        let mappings = Sysctl::at_least("vm.max_map_count", mappings)?;
        let mut this =
            Self {
                programs: Vec::new(),
                guests: Vec::new(),
                cards: Vec::new(),
                daemon: None,
                namespaces: Vec::new(),
                peer,
                notes: Vec::from_iter(mappings.former().map(|former| {
                    format!("vm.max_map_count was raised for the run; it was {former}")
                })),
                nics: network.nics,
                _mappings: mappings,
            };
        for _ in 0..guests {
            this.namespaces.push(Namespace::create("pvnet-guest")?);
        }
        for namespace in this.namespaces.iter().chain([&this.peer]) {
            answer_for_own_address(namespace)?;
        }
        this.start_daemon(setup, network, cpus)?;
        if this.daemon.is_none() {
            this.wires()?;
        }
        if this.daemon.is_none() || setup.peer_segments_early() {
            this.send_mtu_sized()?;
        }
        if setup.segments_early() {
            this.segment_early()?;
        }
        this.steer(cpus);
        Ok(this)
    }

    /// Starts this program with these arguments in every guest.
    pub fn run_in_guests(&mut self, arguments: &[&str], cpus: &Cpus) -> Result<()> {
        for namespace in &self.namespaces {
            let mut command = this(Some(namespace))?;
            command.args(arguments);
            self.programs.push(on_cpu(cpus.server, || Process::capture(command))?);
        }
        Ok(())
    }

    /// Makes the peer send MTU-sized frames, as on a wire.
    fn send_mtu_sized(&self) -> Result<()> {
        let mtu_sized = Offloads { tso: false, gso: false, ..Offloads::ALL };
        (0..self.nics).try_for_each(|nic| Ok(mtu_sized.apply(&self.peer, &wire(nic))?))
    }

    /// Connects a server without a daemon directly to the peer.
    fn wires(&self) -> Result<()> {
        for server in &self.namespaces {
            for nic in 0..self.nics {
                let (device, wire) = (device(nic), wire(nic));
                let peer = ["peer", "name", &wire, "netns", self.peer.name()];
                let link = ["link", "add", "name", &device, "type", "veth"];
                server.ip(&[&link[..], &peer].concat())?;
                for (namespace, device, host) in [(server, &device, 1), (&self.peer, &wire, PEER)] {
                    namespace.ip(&["addr", "add", &with_prefix(nic, host), "dev", device])?;
                    namespace.ip(&["link", "set", device, "up"])?;
                }
            }
        }
        Ok(())
    }

    /// Makes guests send MTU-sized frames.
    fn segment_early(&self) -> Result<()> {
        let mtu_sized = Offloads { tso: false, ..Offloads::ALL };
        for namespace in &self.namespaces {
            for nic in 0..self.nics {
                mtu_sized.apply(namespace, &device(nic))?;
            }
        }
        Ok(())
    }

    fn start_daemon(&mut self, setup: impl Setup, network: Network, cpus: &Cpus) -> Result<()> {
        let names: Vec<&str> = self.namespaces.iter().map(Namespace::name).collect();
        let Network { nics, rate_mbps, coalesce_us } = network;
        let peer = self.peer.name();
        let machine = Machine { guests: &names, peer, nics, rate_mbps, coalesce_us };
        if setup.toml(Path::new(""), &machine).is_none() {
            return Ok(());
        }
        let text = |folder: &Path| setup.toml(folder, &machine).unwrap_or_default();
        let mut daemon = on_cpu(cpus.driver, || match setup.is_driver_domain() {
            true => Daemon::start_inside(self.first(), text),
            false => Daemon::start(text),
        })?;
        if setup.has_cards() {
            for nic in 0..self.nics {
                let mut command = pvnet(None)?;
                command.arg("nic").arg("--directory").arg(daemon.folder()).arg(card(nic));
                self.cards.push(on_cpu(cpus.client, || Process::capture(command))?);
            }
            daemon.wait("the cards' start", &mut self.cards, |_, cards| all_say_up(cards))?;
        }
        for name in names.iter().filter(|_| setup.starts_guests()) {
            let mut command = pvnet(None)?;
            command.arg("guest").arg("--directory").arg(daemon.folder());
            for nic in 0..self.nics {
                command.args(["--device", &device(nic)]);
            }
            command.arg(name);
            self.guests.push(on_cpu(cpus.server, || Process::capture(command))?);
        }
        daemon.wait("the guests' start", &mut self.guests, |status, guests| {
            // A port is up before its interface has addresses; the guest prints when it has.
            !setup.starts_guests() || (all_up(status) && all_say_up(guests))
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Moves the receiving stack to the receiver's CPU. Otherwise it uses time of the sender's CPU.
    fn steer(&mut self, cpus: &Cpus) {
        for nic in 0..self.nics {
            let mut ends = vec![(&self.peer, wire(nic), cpus.client)];
            if self.daemon.is_none() {
                ends.extend(self.namespaces.iter().map(|end| (end, device(nic), cpus.server)));
            }
            for (namespace, device, cpu) in ends {
                let Some(cpu) = cpu else { continue };
                if let Err(error) = lab::steer_receive(namespace, &device, cpu) {
                    let text = format!("the receiver's stack runs on the sender's CPU: {error}");
                    self.notes.push(text);
                }
            }
        }
    }

    /// The namespace of the first guest, or of the native server.
    pub fn first(&self) -> &Namespace {
        &self.namespaces[0]
    }

    /// Packets that the first guest's first interface has received.
    pub fn received(&self) -> Result<u64> {
        let read = || {
            // A thread's own file: the namespace is the thread's.
            std::fs::read_to_string("/proc/thread-self/net/dev").map_err(|cause| lab::Error::Io {
                what: "cannot read a guest's counters".to_owned(),
                cause,
            })
        };
        let text = self.first().inside(read)?;
        let packets = received(&text, &device(0));
        packets.ok_or_else(|| Error::Failed(format!("{} has no counters", device(0))))
    }

    /// The addresses of all guests on all NICs.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        let guests = 1..=u8::try_from(self.namespaces.len()).unwrap_or(u8::MAX);
        let of = |guest| (0..self.nics).map(move |nic| Ipv4Addr::from(address(nic, guest)));
        guests.flat_map(of).collect()
    }

    /// The daemon's process id.
    pub fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// The folder of the daemon's sockets.
    pub fn folder(&self) -> Result<&Path> {
        let daemon = self.daemon.as_ref();
        let none = || Error::Failed("this server has no daemon".to_owned());
        Ok(daemon.ok_or_else(none)?.folder())
    }

    /// The daemon's counters, or an error if a port is down.
    pub fn status(&self) -> Result<Option<Status>> {
        let Some(daemon) = &self.daemon else { return Ok(None) };
        let no_answer = |_| Error::Status(format!("the daemon does not answer{}", self.said()));
        let status = daemon.status().map_err(no_answer)?;
        if all_up(&status) {
            return Ok(Some(status));
        }
        Err(Error::Status(format!("{}{}", ports(&status), self.said())))
    }

    /// The last output of its processes.
    pub fn said(&self) -> String {
        let said = |daemon: &Daemon| daemon.said(&self.guests) + &daemon.said(&self.cards);
        self.daemon.as_ref().map_or(String::new(), said)
    }
}

fn all_say_up(processes: &[Process]) -> bool {
    processes.iter().all(|process| process.stdout().contains("is up"))
}

fn all_up(status: &Status) -> bool {
    let contexts = status.nics.iter().flat_map(|nic| &nic.contexts);
    status.absent.is_empty()
        && status.ports.iter().all(|port| port.state == PortState::Up)
        && contexts.into_iter().all(|context| context.state == ContextState::Up)
}

/// A device's received packets, the second number of its line in /proc/net/dev.
fn received(text: &str, device: &str) -> Option<u64> {
    let line = |line: &str| Some(line.trim().strip_prefix(device)?.strip_prefix(':')?.to_owned());
    text.lines().find_map(line)?.split_whitespace().nth(1)?.parse().ok()
}

/// Makes a namespace answer ARP requests for an address only on the device that has it: all its NICs get the requests
/// that the driver domain's switch floods.
fn answer_for_own_address(namespace: &Namespace) -> Result<()> {
    let write = || {
        std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1")
            .map_err(|cause| lab::Error::Io { what: "cannot set arp_ignore".to_owned(), cause })
    };
    Ok(namespace.inside(write)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_packets_are_the_second_number() {
        let text = "Inter-| Receive\n face |bytes packets\n  eth0: 1500 12 0\n eth01: 9 8 7\n";
        assert_eq!(received(text, "eth0"), Some(12));
        assert_eq!(received(text, "eth1"), None);
    }
}
