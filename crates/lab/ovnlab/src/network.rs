//! The logical network: what the central host's databases say of switches, routers and ports.

use xenlab::Result;

use crate::central::Central;
use crate::plan::Plan;
use crate::programs::until;

impl Central {
    /// Makes two logical switches and a router between them.
    pub(crate) fn make_switches(&self) -> Result<()> {
        self.north("lr-add r")?;
        for switch in [1, 2] {
            let mac = format!("0e:00:00:00:0{switch}:01");
            self.north(&format!(
                "-- ls-add s{switch} -- lrp-add r r-s{switch} {mac} 10.{switch}.0.1/24 -- lsp-add s{switch} s{switch}-r \
                 -- lsp-set-type s{switch}-r router -- lsp-set-addresses s{switch}-r router \
                 -- lsp-set-options s{switch}-r router-port=r-s{switch}"
            ))?;
        }
        Ok(())
    }

    /// Adds a guest's logical port.
    pub(crate) fn add_port(&self, plan: &Plan) -> Result<()> {
        let switch = format!("s{}", plan.address.octets()[1]);
        let addresses = format!("{} {}", plan.mac, plan.address);
        let port = plan.port.as_str();
        self.north_words(&["lsp-add", &switch, port])?;
        self.north_words(&["lsp-set-addresses", port, &addresses])?;
        self.north_words(&["lsp-set-port-security", port, &addresses]).map(drop)
    }

    /// Waits until it knows another host.
    pub(crate) fn until_known(&self, name: &str) -> Result<()> {
        until("a host at the central one", || {
            let found = self.south(&format!("--bare --columns=name find chassis name={name}"))?;
            Ok(found.trim() == name)
        })
    }

    /// A host is gone for good. Until it knows that, it waits for what that host has not done.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        self.south(&format!("chassis-del {name}")).map(drop)
    }

    /// Waits until all hosts have what the northbound database says.
    pub(crate) fn sync(&self) -> Result<()> {
        self.north("--wait=hv sync").map(drop)
    }

    /// Waits until a guest's logical port is bound on a host.
    pub(crate) fn until_bound(&self, guest: &Plan, name: &str) -> Result<()> {
        let port = &guest.port;
        self.north(&format!("wait-until logical_switch_port {port} up=true"))?;
        let chassis = format!("--bare --columns=_uuid find chassis name={name}");
        let uuid = self.south(&chassis)?.trim().to_owned();
        until("the port's new host", || {
            let found = format!("--bare --columns=chassis find port_binding logical_port={port}");
            Ok(self.south(&found)?.trim() == uuid)
        })?;
        self.sync()
    }
}
