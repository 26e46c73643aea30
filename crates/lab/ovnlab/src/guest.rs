//! Guests: processes that join the pvnet of a host.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use lab::{Interrupt, Namespace, Process};
use xenlab::Result;

use crate::host::Host;
use crate::plan::{Attachment, Plan};
use crate::programs::LIMIT;

/// The pause between two pings.
const PAUSE: Duration = Duration::from_millis(200);

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

    /// The same with DHCP.
    pub(crate) fn asking(self) -> Self {
        Self { plan: self.plan.asking(), ..self }
    }

    /// The same, attached in this way.
    pub(crate) fn attached(self, attachment: Attachment) -> Self {
        Self { plan: self.plan.attached(attachment), ..self }
    }

    /// The same with this logical port behind this device.
    pub(crate) fn named(self, port: &str, device: &str) -> Self {
        Self { plan: self.plan.named(port, device), ..self }
    }

    /// Binds its logical port to a host, and joins the host's pvnet.
    pub(crate) fn join(&mut self, host: &Host) -> Result<()> {
        host.bind(&self.plan)?;
        self.enter(host)
    }

    /// Joins the pvnet of a host, where its logical port is bound.
    pub(crate) fn enter(&mut self, host: &Host) -> Result<()> {
        self.start(&host.node.programs.pvnet, host.daemon.folder())?;
        if self.plan.asks {
            return Ok(());
        }
        let router = self.plan.router.to_string();
        self.namespace.ip(&["route", "replace", "default", "via", &router])?;
        Ok(())
    }

    /// Joins the pvnet whose sockets are in this folder.
    pub(crate) fn start(&mut self, pvnet: &Path, folder: &Path) -> Result<()> {
        let mut command = lab::command(&pvnet.to_string_lossy())?;
        command.args(["guest", "--rejoin", "60", "--directory"]).arg(folder);
        command.arg(&self.plan.name);
        let mut process = Process::capture(command)?;
        process.says("is up", LIMIT)?;
        self.process = Some(process);
        Ok(())
    }

    pub(crate) fn leave(&mut self, host: &Host) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.stop()?;
        }
        host.unbind(&self.plan)
    }

    /// Whether it reaches another guest within a few attempts.
    pub(crate) fn reaches(&self, to: &Self, arguments: &[&str]) -> Result<bool> {
        reaches(&self.namespace, to.plan.address, arguments)
    }

    /// Whether an address answers one of two echoes.
    pub(crate) fn reaches_at_once(&self, to: Ipv4Addr, arguments: &[&str]) -> Result<bool> {
        let mut ping = self.namespace.exec("ping")?;
        ping.args(["-q", "-n", "-c", "2", "-i", "0.2", "-W", "1"])
            .args(arguments)
            .arg(to.to_string());
        match lab::run(ping, LIMIT) {
            Ok(_) => Ok(true),
            Err(lab::Error::Failed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether an address is reached within a few attempts: the first packet to a new neighbour may be lost.
pub(crate) fn reaches(from: &Namespace, to: Ipv4Addr, arguments: &[&str]) -> Result<bool> {
    for _ in 0..8 {
        let mut ping = from.exec("ping")?;
        ping.args(["-q", "-n", "-c", "1", "-W", "1"]).args(arguments).arg(to.to_string());
        match lab::run(ping, LIMIT) {
            Ok(_) => return Ok(true),
            Err(lab::Error::Failed { .. }) => Interrupt::sleep(PAUSE)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}
