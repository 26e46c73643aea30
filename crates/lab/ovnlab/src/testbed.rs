//! All that runs.

use std::path::{Path, PathBuf};

use xenlab::Result;

use crate::central::Central;
use crate::guest::Guest;
use crate::host::Host;
use crate::plan::Plan;
use crate::programs::{Programs, until};

/// The rate of the guest whose streams must not be over too soon, in 10⁶ bits per second.
const SLOW: u32 = 80;

/// One central host, two others, and three guests.
pub struct Testbed {
    pub(crate) programs: Programs,
    pub(crate) pvnet: PathBuf,
    // Dropped in this order: guests before their hosts, and these before what they talk to.
    pub(crate) guests: [Guest; 3],
    pub(crate) hosts: [Host; 2],
    pub(crate) central: Central,
}

impl Testbed {
    /// Starts everything but the guests.
    ///
    /// # Errors
    /// [`xenlab::Error::Lab`] without root, and with the words of a program that fails.
    pub fn start(programs: &Programs, pvnet: &Path) -> Result<Self> {
        let central = Central::start(programs)?;
        let guests =
            [Guest::new(1, 11, Some(SLOW))?, Guest::new(1, 12, None)?, Guest::new(2, 21, None)?];
        let plans: Vec<_> = guests.iter().map(|guest| guest.plan.clone()).collect();
        let host = |name, address| Host::start(programs, pvnet, &central, name, address, &plans);
        let hosts = [host("a", "172.31.0.11")?, host("b", "172.31.0.12")?];
        let (programs, pvnet) = (programs.clone(), pvnet.to_owned());
        Ok(Self { programs, pvnet, guests, hosts, central })
    }

    /// Makes the logical network: two switches, a router, and a port for each guest.
    pub(crate) fn make_network(&self) -> Result<()> {
        self.hosts.iter().try_for_each(|host| self.until_known(host.name))?;
        self.central.north("lr-add r")?;
        for switch in [1, 2] {
            let mac = format!("0e:00:00:00:0{switch}:01");
            self.central.north(&format!(
                "-- ls-add s{switch} -- lrp-add r r-s{switch} {mac} 10.{switch}.0.1/24 -- lsp-add s{switch} s{switch}-r \
                 -- lsp-set-type s{switch}-r router -- lsp-set-addresses s{switch}-r router \
                 -- lsp-set-options s{switch}-r router-port=r-s{switch}"
            ))?;
        }
        self.guests.iter().try_for_each(|guest| self.add_port(&guest.plan))?;
        self.central.north("--wait=hv sync").map(drop)
    }

    /// Waits until the central host knows another one.
    pub(crate) fn until_known(&self, name: &str) -> Result<()> {
        until("a host at the central one", || {
            let found =
                self.central.south(&format!("--bare --columns=name find chassis name={name}"))?;
            Ok(found.trim() == name)
        })
    }

    /// Adds a guest's logical port.
    pub(crate) fn add_port(&self, plan: &Plan) -> Result<()> {
        let switch = format!("s{}", plan.address.octets()[1]);
        let addresses = format!("{} {}", plan.mac, plan.address);
        let port = plan.port.as_str();
        self.central.north_words(&["lsp-add", &switch, port])?;
        self.central.north_words(&["lsp-set-addresses", port, &addresses])?;
        self.central.north_words(&["lsp-set-port-security", port, &addresses]).map(drop)
    }

    /// Waits until a guest's logical port is bound on a host.
    pub(crate) fn until_bound(&self, guest: &Plan, name: &str) -> Result<()> {
        let port = &guest.port;
        self.central.north(&format!("wait-until logical_switch_port {port} up=true"))?;
        let chassis = format!("--bare --columns=_uuid find chassis name={name}");
        let uuid = self.central.south(&chassis)?.trim().to_owned();
        until("the port's new host", || {
            let found = format!("--bare --columns=chassis find port_binding logical_port={port}");
            Ok(self.central.south(&found)?.trim() == uuid)
        })?;
        self.central.north("--wait=hv sync").map(drop)
    }

    /// A guest joins the pvnet of a host.
    pub(crate) fn join(&mut self, guest: usize, host: usize) -> Result<()> {
        self.guests[guest].join(&self.pvnet, &self.hosts[host])?;
        self.until_bound(&self.guests[guest].plan, self.hosts[host].name)
    }
}
