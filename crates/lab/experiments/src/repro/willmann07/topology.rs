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

use control_socket::{ContextState, PortState, Status};
use lab::{Namespace, Offloads, Process, Sysctl, on_cpu};

use super::config::{Config, Machine, PEER, address, card, wire};
use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::testbed::{Daemon, ports, program};

/// A running server and its peer. Dropping it removes everything.
#[derive(Debug)]
pub struct Topology {
    // Fields are dropped in this order, each before what it uses.
    /// The servers of the benchmark program, one per guest.
    pub loads: Vec<Process>,
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

/// The NICs of every server.
#[derive(Clone, Copy, Debug)]
pub struct Nics {
    /// How many.
    pub count: u8,
    /// The line rate of each card; 0 for none.
    pub rate_mbps: u32,
}

/// The kernel's default for the mappings of a process.
const DEFAULT_MAPPINGS: u64 = 65_530;

/// A guest's device on a NIC.
fn device(nic: u8) -> String {
    format!("eth{nic}")
}

impl Topology {
    /// Starts a server. On return, its guests and their programs are there.
    pub fn start(config: Config, guests: u8, nics: Nics, cpus: &Cpus) -> Result<Self> {
        let peer = Namespace::create("pvnet-peer")?;
        let mappings = DEFAULT_MAPPINGS + config.mappings(guests, nics.count);
        let mappings = Sysctl::at_least("vm.max_map_count", mappings)?;
        let mut this =
            Self {
                loads: Vec::new(),
                guests: Vec::new(),
                cards: Vec::new(),
                daemon: None,
                namespaces: Vec::new(),
                peer,
                notes: Vec::from_iter(mappings.former().map(|former| {
                    format!("vm.max_map_count was raised for the run; it was {former}")
                })),
                nics: nics.count,
                _mappings: mappings,
            };
        for _ in 0..guests {
            this.namespaces.push(Namespace::create("pvnet-guest")?);
        }
        // All NICs of a namespace share its addresses unless it is told otherwise.
        for namespace in this.namespaces.iter().chain([&this.peer]) {
            answer_for_own_address(namespace)?;
        }
        match config {
            Config::Native => this.wires()?,
            _ => this.start_daemon(config, nics.rate_mbps, cpus)?,
        }
        if config.segments_early() {
            this.segment_early()?;
        }
        this.steer(config, cpus);
        for namespace in &this.namespaces {
            let mut command = program(Some(namespace))?;
            command.args(["load", "server"]);
            this.loads.push(on_cpu(cpus.server, || Process::capture(command))?);
        }
        Ok(this)
    }

    /// Joins the one server and the peer directly. The peer sends MTU-sized frames, as a NIC delivers them.
    fn wires(&self) -> Result<()> {
        let mtu_sized = Offloads { tso: false, gso: false, ..Offloads::ALL };
        for server in &self.namespaces {
            for nic in 0..self.nics {
                let (device, wire) = (device(nic), wire(nic));
                let peer = ["peer", "name", &wire, "netns", self.peer.name()];
                let link = ["link", "add", "name", &device, "type", "veth"];
                server.ip(&[&link[..], &peer].concat())?;
                mtu_sized.apply(&self.peer, &wire)?;
                for (namespace, device, host) in [(server, &device, 1), (&self.peer, &wire, PEER)] {
                    let address = format!("{}/24", Ipv4Addr::from(address(nic, host)));
                    namespace.ip(&["addr", "add", &address, "dev", device])?;
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

    fn start_daemon(&mut self, config: Config, rate_mbps: u32, cpus: &Cpus) -> Result<()> {
        let names: Vec<&str> = self.namespaces.iter().map(Namespace::name).collect();
        let machine =
            Machine { guests: &names, peer: self.peer.name(), nics: self.nics, rate_mbps };
        let text = |folder: &std::path::Path| config.toml(folder, &machine).unwrap_or_default();
        let mut daemon = on_cpu(cpus.server, || Daemon::start(text))?;
        if config.has_cards() {
            for nic in 0..self.nics {
                let mut command = program(None)?;
                command.arg("nic").arg("--directory").arg(daemon.folder()).arg(card(nic));
                self.cards.push(on_cpu(cpus.client, || Process::capture(command))?);
            }
            daemon.wait("the cards' start", &mut self.cards, |_, cards| all_say_up(cards))?;
        }
        for name in &names {
            let mut command = program(None)?;
            command.arg("guest").arg("--directory").arg(daemon.folder());
            for nic in 0..self.nics {
                command.args(["--device", &device(nic)]);
            }
            command.arg(name);
            self.guests.push(on_cpu(cpus.server, || Process::capture(command))?);
        }
        daemon.wait("the guests' start", &mut self.guests, |status, guests| {
            // A port is up before its interface has addresses; the guest prints when it has.
            all_up(status) && all_say_up(guests)
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Moves the receiving stack to the receiver's CPU. Otherwise it uses time of the sender's CPU.
    fn steer(&mut self, config: Config, cpus: &Cpus) {
        for nic in 0..self.nics {
            let mut ends = vec![(&self.peer, wire(nic), cpus.client)];
            if config == Config::Native {
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

    /// The addresses of all guests on all NICs.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        let guests = 1..=u8::try_from(self.namespaces.len()).unwrap_or(u8::MAX);
        let of = |guest| (0..self.nics).map(move |nic| Ipv4Addr::from(address(nic, guest)));
        guests.flat_map(of).collect()
    }

    /// The daemon's process number.
    pub fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// The daemon's counters, or an error if a port is down.
    pub fn status(&self) -> Result<Option<Status>> {
        let Some(daemon) = &self.daemon else { return Ok(None) };
        let said = || daemon.said(&self.guests) + &daemon.said(&self.cards);
        let status = daemon
            .status()
            .map_err(|_| Error::Status(format!("the daemon does not answer{}", said())))?;
        if all_up(&status) {
            return Ok(Some(status));
        }
        Err(Error::Status(format!("{}{}", ports(&status), said())))
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

/// Makes a namespace answer requests for an address only on the device that has it. All its NICs hear the requests
/// that the driver domain's switch floods.
fn answer_for_own_address(namespace: &Namespace) -> Result<()> {
    let write = || {
        std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1").map_err(|error| {
            lab::Error::Io { what: "cannot set arp_ignore".to_owned(), cause: error }
        })
    };
    let thread = namespace.thread(write)?;
    Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
}
