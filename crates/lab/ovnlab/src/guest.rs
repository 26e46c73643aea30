//! Guests: processes that join the pvnet of a host.

use std::net::Ipv4Addr;
use std::path::Path;

use lab::{Namespace, Process};
use xenlab::Result;

use crate::host::Host;
use crate::programs::LIMIT;

/// The longest packet in a Geneve tunnel over 1500 bytes: 58 bytes are for its headers.
pub(crate) const MTU: u16 = 1442;

/// What a guest is, wherever it runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its namespace, by which pvnet knows it.
    pub(crate) name: String,
    /// Its logical port.
    pub(crate) port: String,
    /// Its device on the host.
    pub(crate) device: String,
    pub(crate) mac: String,
    pub(crate) address: Ipv4Addr,
    /// The router's address.
    pub(crate) router: Ipv4Addr,
    /// What it may send, in 10⁶ bits per second.
    pub(crate) rate: Option<u32>,
}

impl Plan {
    /// Guest `number` of logical switch `switch`.
    pub(crate) fn new(switch: u8, number: u8, name: &str, rate: Option<u32>) -> Self {
        Self {
            name: name.to_owned(),
            port: format!("p{number}"),
            device: format!("vif{number}.0"),
            mac: format!("0e:aa:00:00:00:{number}"),
            address: Ipv4Addr::new(10, switch, 0, number),
            router: Ipv4Addr::new(10, switch, 0, 1),
            rate,
        }
    }

    /// Its table in pvnet's configuration. OVN has its own guard of sources; the switch in user space takes frames with finished
    /// checksums only.
    pub(crate) fn table(&self) -> String {
        let Self { name, device, mac, address, rate, .. } = self;
        let rate =
            rate.map_or_else(String::new, |rate| format!("limit.ingress = {{ mbps = {rate} }}\n"));
        format!(
            "[[guest]]\nname = \"{name}\"\nmac = \"{mac}\"\naddresses = [\"{address}/24\"]\nguard = \"off\"\n\
             attach = \"device\"\ndevice = \"{device}\"\ndevice_capabilities = \"none\"\nmtu = {MTU}\n{rate}"
        )
    }
}

/// A guest that runs on a host.
pub(crate) struct Guest {
    pub(crate) plan: Plan,
    process: Option<Process>,
    pub(crate) namespace: Namespace,
}

impl Guest {
    /// A guest that runs nowhere yet.
    pub(crate) fn new(switch: u8, number: u8, rate: Option<u32>) -> Result<Self> {
        let namespace = Namespace::create("ovnlab")?;
        let plan = Plan::new(switch, number, namespace.name(), rate);
        Ok(Self { plan, process: None, namespace })
    }

    /// Joins the pvnet of a host, whose place of its device is set first.
    pub(crate) fn join(&mut self, pvnet: &Path, host: &Host) -> Result<()> {
        host.bind(&self.plan)?;
        let mut command = lab::command(&pvnet.to_string_lossy())?;
        command.args(["guest", "--rejoin", "60", "--directory"]).arg(host.daemon.folder());
        command.arg(&self.plan.name);
        let mut process = Process::capture(command)?;
        process.says("is up", LIMIT)?;
        self.process = Some(process);
        let router = self.plan.router.to_string();
        self.namespace.ip(&["route", "replace", "default", "via", &router])?;
        Ok(())
    }

    /// Leaves the host.
    pub(crate) fn leave(&mut self, host: &Host) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.stop()?;
        }
        host.unbind(&self.plan)
    }
}
