//! A server and its client: two namespaces with pvnet or a wire between them.
//!
//! ```text
//!            server CPU                          client CPU
//!  guest:    program ─ guest ─ daemon ─ NIC ════ client's stack ─ program
//!  driver:   program ─ stack ─ daemon ─ NIC ════ client's stack ─ program
//!  Linux:    program ─ stack ───────── veth ════ client's stack ─ program
//! ```

use std::net::Ipv4Addr;
use std::time::Duration;

use control_socket::{PortState, Status, View};
use lab::{Namespace, Offloads, Process, on_cpu};

use super::config::{CLIENT_ADDRESS, DEVICE, NIC, NIC_PORT, SERVER_ADDRESS, Server, with_prefix};
use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::testbed::{Daemon, ports, pvnet};

/// A running server and its client. Dropping it removes everything.
#[derive(Debug)]
pub struct Topology {
    // Fields are dropped in this order, each before what it uses.
    guests: Vec<Process>,
    daemon: Option<Daemon>,
    /// Where the server's program runs.
    pub server: Namespace,
    /// Where the client's program runs.
    pub client: Namespace,
    /// What differs from the intended setup.
    pub notes: Vec<String>,
}

/// Echo requests before the first measurement, and the pause between two.
const PINGS: u32 = 3;
const PING_PAUSE: Duration = Duration::from_millis(250);

impl Topology {
    /// Starts a topology. On return, server and client reach each other.
    pub fn start(kind: Server, cpus: &Cpus) -> Result<Self> {
        let server = Namespace::create("pvnet-server")?;
        let client = Namespace::create("pvnet-client")?;
        let mut this = Self { guests: Vec::new(), daemon: None, server, client, notes: Vec::new() };
        match kind {
            Server::Native => this.wire()?,
            Server::Guest(_) => {
                this.start_daemon(kind, cpus, false)?;
                this.start_guest(cpus)?;
            }
            Server::Driver(_) => this.start_daemon(kind, cpus, true)?,
        }
        this.steer(kind, cpus);
        let pings = lab::ping(&this.server, Ipv4Addr::from(CLIENT_ADDRESS), PINGS, PING_PAUSE)?;
        if pings.received == 0 {
            let said = this.said();
            return Err(Error::Failed(format!("the server cannot reach the client{said}")));
        }
        if kind.huge_pages() {
            let views = this.status()?.map(|status| views(&status)).unwrap_or_default();
            this.notes.extend(views.into_iter().filter_map(|view| too_small(&view)));
        }
        Ok(this)
    }

    /// Joins server and client directly. The client sends MTU-sized frames, as the paper's NIC
    /// delivers them.
    fn wire(&self) -> Result<()> {
        let client = self.client.name();
        let peer = ["peer", "name", NIC, "netns", client];
        let link = ["link", "add", "name", DEVICE, "type", "veth"];
        self.server.ip(&[&link[..], &peer].concat())?;
        let mtu_sized = Offloads { tso: false, gso: false, ..Offloads::ALL };
        mtu_sized.apply(&self.client, NIC)?;
        let ends = [(&self.server, DEVICE, SERVER_ADDRESS), (&self.client, NIC, CLIENT_ADDRESS)];
        for (namespace, device, address) in ends {
            namespace.ip(&["addr", "add", &with_prefix(address), "dev", device])?;
            namespace.ip(&["link", "set", device, "up"])?;
        }
        Ok(())
    }

    fn start_daemon(&mut self, kind: Server, cpus: &Cpus, inside: bool) -> Result<()> {
        let config = |folder: &std::path::Path| {
            kind.toml(folder, self.server.name(), self.client.name()).unwrap_or_default()
        };
        let start = || match inside {
            true => Daemon::start_inside(&self.server, config),
            false => Daemon::start(config),
        };
        self.daemon = Some(on_cpu(cpus.server, start)?);
        Ok(())
    }

    fn start_guest(&mut self, cpus: &Cpus) -> Result<()> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let mut command = pvnet(None)?;
        command.arg("guest").arg("--directory").arg(daemon.folder());
        command.args(["--device", DEVICE, self.server.name()]);
        self.guests.push(on_cpu(cpus.server, || Process::capture(command))?);
        daemon.wait("the guest's start", &mut self.guests, |status, guests| {
            // A port is up before its interface has addresses; the guest prints when it has.
            all_up(status) && guests.iter().all(|guest| guest.stdout().contains("is up"))
        })
    }

    /// Moves the receiving stack to the receiver's CPU. Otherwise it uses time of the sender's CPU.
    fn steer(&mut self, kind: Server, cpus: &Cpus) {
        let mut ends = vec![(&self.client, NIC, cpus.client)];
        if kind == Server::Native {
            ends.push((&self.server, DEVICE, cpus.server));
        }
        for (namespace, device, cpu) in ends {
            let Some(cpu) = cpu else { continue };
            if let Err(error) = lab::steer_receive(namespace, device, cpu) {
                let text = format!("the receiver's stack runs on the sender's CPU: {error}");
                self.notes.push(text);
            }
        }
    }

    /// The daemon's process number.
    pub fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
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

    fn said(&self) -> String {
        self.daemon.as_ref().map_or(String::new(), |daemon| daemon.said(&self.guests))
    }
}

/// How the daemon maps each guest's memory.
fn views(status: &Status) -> Vec<View> {
    let memory = status.ports.iter().filter_map(|port| port.memory.as_ref());
    memory.filter_map(|memory| memory.daemon).collect()
}

/// A note if the kernel gave a guest too few superpages.
fn too_small(view: &View) -> Option<String> {
    let mib = |bytes| bytes >> 20;
    (view.large < view.total / 2).then(|| {
        format!(
            "a guest with superpages has them for only {} of its {} MiB",
            mib(view.large),
            mib(view.total)
        )
    })
}

fn all_up(status: &Status) -> bool {
    status.absent.is_empty() && status.ports.iter().all(|port| port.state == PortState::Up)
}

/// Frames and bytes that the NIC carried in both directions.
pub fn carried(status: &Status) -> (u64, u64) {
    let nics = status.ports.iter().filter(|port| port.name == NIC_PORT);
    nics.fold((0, 0), |(frames, bytes), port| {
        (
            frames + port.ingress.frames + port.egress.frames,
            bytes + port.ingress.bytes + port.egress.bytes,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_superpages_give_a_note() {
        let said = |large: u64| too_small(&View { large: large << 20, total: 64 << 20 });
        assert_eq!(said(64), None);
        assert!(said(2).unwrap().contains("2 of its 64 MiB"));
    }
}
