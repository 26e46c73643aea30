//! The frontends.

use crate::Result;
use crate::host::{Domu, Job};

use super::{COMMAND_TIMEOUT, GUEST_ADDRESS, PREFIX};

/// A frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontend {
    /// The kernel's xen-netfront.
    Stock,
    /// `pvnet frontend`, a process.
    Pvnet,
}

impl Frontend {
    /// Its name in pairs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Pvnet => "pvnet",
        }
    }

    /// Starts it in a guest that has a vif, and waits until its `eth0` has a carrier and
    /// [`GUEST_ADDRESS`](super::GUEST_ADDRESS).
    pub fn start(self, guest: &Domu) -> Result<RunningFrontend> {
        self.start_at(guest, GUEST_ADDRESS)
    }

    /// As [`start`](Self::start), with another address.
    pub fn start_at(self, guest: &Domu, address: &str) -> Result<RunningFrontend> {
        let shell = guest.shell();
        let process = match self {
            Self::Stock => {
                shell.run(&stock(address), COMMAND_TIMEOUT)?;
                None
            }
            Self::Pvnet => Some(shell.spawn(&pvnet(address))?),
        };
        let words =
            process.as_ref().map_or(String::new(), |job| format!("; tail -n 20 {}", job.file()));
        let connected = format!(
            "grep -q 1 /sys/class/net/eth0/carrier && ip -br addr show dev eth0 | grep -F {address} || \
             {{ ip -br link{words}; false; }}"
        );
        shell.until(&format!("{}'s connection", self.name()), &connected, COMMAND_TIMEOUT)?;
        Ok(RunningFrontend { process })
    }
}

/// A frontend that is connected.
#[derive(Debug)]
pub struct RunningFrontend {
    process: Option<Job>,
}

impl RunningFrontend {
    /// Its process, unless it is the stock one.
    #[must_use]
    pub fn process(&self) -> Option<&Job> {
        self.process.as_ref()
    }
}

/// Connects with the kernel's driver, as at a normal boot.
fn stock(address: &str) -> String {
    format!(
        "modprobe xen-netfront && until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
         ip addr add {address}/{PREFIX} dev eth0 && ip link set eth0 up"
    )
}

/// Raises the limit of gntalloc: its default is too low for a grant for each page of both rings.
fn pvnet(address: &str) -> String {
    format!(
        "modprobe xen-gntalloc limit=4096 && modprobe -a xen-evtchn tun\n\
         exec pvnet frontend --vif 0 --device eth0 --address {address}/{PREFIX}"
    )
}
