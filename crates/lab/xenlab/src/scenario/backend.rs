//! The backends.

use crate::host::{Domu, DomuConfig, Host, Job, Shell};
use crate::{Error, Result};

use super::{BACKEND_ADDRESS, BOOT_TIMEOUT, COMMAND_TIMEOUT, PREFIX};

/// The guest's MAC address.
const MAC: &str = "00:16:3e:00:00:02";
/// pvnet's configuration file and its control socket.
const CONFIGURATION: &str = "/lab/pvnet.toml";
const CONTROL: &str = "/run/pvnet/control.sock";
/// The driver domain's name.
const DRIVER: &str = "driver";

named::named! {
    /// A backend.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Backend {
        /// The kernel's xen-netback and a bridge, in dom0.
        Stock => "stock",
        /// pvnet in dom0.
        Pvnet => "pvnet",
        /// pvnet in a driver domain.
        PvnetDomain => "domain",
    }
}

impl Backend {
    /// Starts it on a host that has no backend yet. All but the stock one need the program `pvnet` there.
    pub fn start(self, host: &Host) -> Result<RunningBackend> {
        match self {
            Self::Stock => RunningBackend::stock(host),
            Self::Pvnet => RunningBackend::pvnet(host.dom0().clone(), None),
            Self::PvnetDomain => {
                let config = DomuConfig::new(DRIVER).line("driver_domain=1");
                let domain = host.create(&config, BOOT_TIMEOUT)?;
                RunningBackend::pvnet(domain.shell().clone(), Some(domain))
            }
        }
    }

    /// As [`start`](Self::start). Then a script changes pvnet's configuration or its surroundings, and pvnet starts again.
    pub(super) fn start_changed(self, host: &Host, script: &str) -> Result<RunningBackend> {
        let mut backend = self.start(host)?;
        backend.kill()?;
        backend.shell().run(script, COMMAND_TIMEOUT)?;
        backend.restart()?;
        Ok(backend)
    }
}

/// A running backend, ready for guests.
#[derive(Debug)]
pub struct RunningBackend {
    shell: Shell,
    daemon: Option<Job>,
    domain: Option<Domu>,
    /// The configuration of a guest's vif without its MAC address.
    vif_options: String,
}

impl RunningBackend {
    fn stock(host: &Host) -> Result<Self> {
        let bridge = "xenbr0";
        host.run(
            &format!(
                "set -e\nmodprobe -a xen-netback bridge\n\
                 ip link add {bridge} type bridge stp_state 0 forward_delay 0\n\
                 ip addr add {BACKEND_ADDRESS}/{PREFIX} dev {bridge}\n\
                 ip link set {bridge} up"
            ),
            COMMAND_TIMEOUT,
        )?;
        let vif_options = format!("bridge={bridge},script=vif-lab");
        Ok(Self { shell: host.dom0().clone(), daemon: None, domain: None, vif_options })
    }

    fn pvnet(shell: Shell, domain: Option<Domu>) -> Result<Self> {
        shell.run(
            &format!(
                "set -e\nmodprobe -a tun xen-evtchn xen-gntdev xen-gntalloc\n\
                 cat >{CONFIGURATION} <<'END'\n[daemon]\nplatform = \"xen\"\n\n[[uplink]]\nname = \"host\"\n\
                 tap = \"pvnet0\"\npersistent = true\naddresses = [\"{BACKEND_ADDRESS}/{PREFIX}\"]\nEND"
            ),
            COMMAND_TIMEOUT,
        )?;
        let place =
            domain.as_ref().map_or(String::new(), |domain| format!("backend={},", domain.name()));
        let vif_options = format!("{place}script=/bin/true");
        let mut backend = Self { shell, daemon: None, domain, vif_options };
        backend.restart()?;
        Ok(backend)
    }

    /// The shell of its domain, which has [`BACKEND_ADDRESS`].
    #[must_use]
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Its driver domain, if it has one.
    #[must_use]
    pub fn domain(&self) -> Option<&Domu> {
        self.domain.as_ref()
    }

    /// The running daemon, unless it is the stock backend or was [killed](Self::kill).
    #[must_use]
    pub fn daemon(&self) -> Option<&Job> {
        self.daemon.as_ref()
    }

    /// The line for a guest's configuration: [`DomuConfig::vif`].
    #[must_use]
    pub fn vif(&self) -> String {
        self.vif_with(MAC)
    }

    /// As [`vif`](Self::vif), with another MAC address.
    #[must_use]
    pub fn vif_with(&self, mac: &str) -> String {
        format!("mac={mac},{}", self.vif_options)
    }

    /// The name of the port of a guest's first interface. A driver domain may not read the names of other domains.
    #[must_use]
    pub fn port_name(&self, guest: &Domu) -> String {
        match self.domain {
            Some(_) => format!("dom{}", guest.id()),
            None => guest.name().to_owned(),
        }
    }

    /// The daemon's output so far. Empty if there is no daemon.
    #[must_use]
    pub fn log(&self) -> String {
        let printed = self.daemon.as_ref().and_then(|daemon| daemon.printed(COMMAND_TIMEOUT).ok());
        printed.unwrap_or_default()
    }

    /// Kills the daemon with SIGKILL, if there is one. Returns its output.
    pub fn kill(&mut self) -> Result<String> {
        let Some(daemon) = self.daemon.take() else { return Ok(String::new()) };
        daemon.stop()?;
        Ok(daemon.wait(COMMAND_TIMEOUT)?.text)
    }

    /// Starts the daemon, after killing a running one, and waits until it answers.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        // The socket of a killed daemon must not be mistaken for the new one's.
        let daemon = self
            .shell
            .spawn(&format!("rm -f {CONTROL}; exec pvnet run --config {CONFIGURATION}"))?;
        let file = daemon.file();
        let ready =
            format!("[ -S {CONTROL} ] && grep -w ready {file} || {{ tail -n 20 {file}; false; }}");
        let waited = self.shell.until("the start of pvnet", &ready, COMMAND_TIMEOUT);
        self.daemon = Some(daemon);
        waited.map(drop)
    }
}

/// Adds the daemon's output to an error: it often has the cause.
pub(super) fn explain(error: Error, backend: &RunningBackend) -> Error {
    let log = backend.log();
    if error.is_interrupt() || log.is_empty() {
        return error;
    }
    Error::Explained { cause: Box::new(error), log }
}
