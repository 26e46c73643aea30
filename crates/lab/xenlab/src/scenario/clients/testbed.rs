//! Two guests on both backends. One guest's frontend is the program `client`, the other's the kernel's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::{Domu, DomuConfig, Host, Shell};
use crate::{Error, Result};

use super::super::backend::{Backend, RunningBackend};
use super::super::check::{self, POISON};
use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT};

/// Both backends run side by side: pvnet serves a backend type of its own. dom0 has an address for each.
const CONFIGURATION: &str = r#"
set -e
modprobe -a xen-netback bridge
sed -i '1i [xen]\nbackend = "pvnet"\n' /lab/pvnet.toml
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip addr add 10.0.1.1/24 dev xenbr0
ip link set xenbr0 up
"#;

/// The last byte of the client's address and of the other guest's.
pub(super) const CLIENT: u8 = 3;
pub(super) const STOCK: u8 = 2;

named::named! {
    /// Which backend serves an interface.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Side {
        Netback => "netback",
        Pvnet => "pvnet",
    }
}

impl Side {
    /// The number of each guest's interface.
    pub(super) fn devid(self) -> u32 {
        match self {
            Self::Netback => 0,
            Self::Pvnet => 1,
        }
    }

    /// dom0's address.
    pub(super) fn outer(self) -> &'static str {
        match self {
            Self::Netback => "10.0.1.1",
            Self::Pvnet => "10.0.0.1",
        }
    }

    /// A guest's address.
    pub(super) fn inner(self, number: u8) -> String {
        match self {
            Self::Netback => format!("10.0.1.{number}"),
            Self::Pvnet => format!("10.0.0.{number}"),
        }
    }
}

/// The MAC address of a guest's interface.
pub(super) fn mac(number: u8, devid: u32) -> String {
    format!("00:16:3e:00:{devid:02x}:{number:02x}")
}

/// What the program `client` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ClientReport {
    /// Frames from the backend.
    pub received: u64,
    /// Receive buffers whose second half was changed.
    pub overwritten: u64,
    /// Receive buffers that came back with an error.
    pub rx_errors: u64,
    /// Frames to the backend.
    pub sent: u64,
    /// Frames among them that the backend has to segment.
    pub unsegmented: u64,
    /// Requests that the backend refused.
    pub tx_errors: u64,
}

/// The backends and the guests on the host.
pub(super) struct Testbed<'a> {
    pub(super) host: &'a Host,
    pub(super) pvnet: RunningBackend,
    pub(super) client: Domu,
    pub(super) stock: Domu,
}

impl<'a> Testbed<'a> {
    pub(super) fn begin(host: &'a Host) -> Result<Self> {
        let pvnet = Backend::Pvnet.start_changed(host, CONFIGURATION)?;
        let client = create(host, "client", CLIENT)?;
        let drivers = "modprobe xen-gntalloc limit=4096 && modprobe -a xen-evtchn tun";
        client.run(drivers, COMMAND_TIMEOUT)?;
        host.sh(&attach("client", CLIENT), COMMAND_TIMEOUT)?;
        let stock = create(host, "stock", STOCK)?;
        stock.run("modprobe xen-netfront", COMMAND_TIMEOUT)?;
        host.sh(&attach("stock", STOCK), COMMAND_TIMEOUT)?;
        let testbed = Self { host, pvnet, client, stock };
        for side in Side::ALL {
            testbed.bring_up(side.devid(), &side.inner(STOCK))?;
        }
        Ok(testbed)
    }

    pub(super) fn dom0(&self) -> &Shell {
        self.host.dom0()
    }

    /// Configures an interface of the guest with the kernel's frontend, and waits until it answers.
    pub(super) fn bring_up(&self, devid: u32, address: &str) -> Result<()> {
        let script = format!(
            "set -e\nuntil [ -e /sys/class/net/eth{devid} ]; do sleep 0.05; done\n\
             ip addr add {address}/24 dev eth{devid}\nip link set eth{devid} up"
        );
        self.stock.run(&script, COMMAND_TIMEOUT)?;
        let answers = format!("ping -q -c 1 -W 1 {address}");
        self.dom0().until("an answer", &answers, COMMAND_TIMEOUT).map(drop)
    }

    /// Runs the program `client` with these arguments on the interface of one side, and does `work` meanwhile. Returns its result,
    /// and the client's counters.
    pub(super) fn with_client<T>(
        &self,
        side: Side,
        words: &str,
        work: impl FnOnce(&Shell) -> Result<T>,
    ) -> Result<(T, ClientReport)> {
        let (guest, devid) = (self.client.shell(), side.devid());
        let program = format!("exec client --vif {devid} --device eth{devid} {words}");
        let client = guest.spawn(&program)?;
        let connected = format!("grep -x connected {0} || {{ cat {0}; false; }}", client.file());
        guest.until(&format!("{}'s client", side.name()), &connected, COMMAND_TIMEOUT)?;
        let (mac, inner) = (mac(CLIENT, devid), side.inner(CLIENT));
        let script = format!(
            "set -e\nip link set eth{devid} address {mac}\nip addr add {inner}/24 dev eth{devid}\n\
             ip link set eth{devid} up"
        );
        guest.run(&script, COMMAND_TIMEOUT)?;
        // After an echo, both ends know each other's address.
        let answers = format!("for n in $(seq 10); do ping -q -c 1 -W 1 {inner} && break; done");
        let answered = self.dom0().sh(&answers, COMMAND_TIMEOUT);
        let done = answered.and_then(|_| work(guest));
        // The client may have ended by itself. Its own output then says more than the error of `work`.
        guest.sh("kill $(pidof client)", COMMAND_TIMEOUT)?;
        let text = client.wait(COMMAND_TIMEOUT)?.text;
        let report = text.lines().last().unwrap_or_default();
        let report =
            serde_json::from_str(report).map_err(|cause| Error::parse("client", &cause, &text))?;
        Ok((done?, report))
    }

    /// A counter of the client's port, by its name in `pvnet status --json`; 0 if there is none.
    pub(super) fn counted(&self, name: &str) -> Result<u64> {
        let status = check::status(self.dom0())?;
        let port = check::port(&status, "client.1");
        Ok(port.and_then(|port| port[name].as_u64()).unwrap_or(0))
    }
}

/// Boots a guest with an interface of netback.
fn create(host: &Host, name: &str, number: u8) -> Result<Domu> {
    let vif = format!("mac={},bridge=xenbr0,script=vif-lab", mac(number, Side::Netback.devid()));
    let config =
        DomuConfig { kernel_arguments: POISON.to_owned(), ..DomuConfig::new(name).vif(vif) };
    host.create(&config, BOOT_TIMEOUT)
}

/// The command that plugs in an interface of pvnet. It fails if no frontend connects to it at once.
pub(super) fn attach(name: &str, number: u8) -> String {
    let devid = Side::Pvnet.devid();
    format!("pvnet attach {name} --vif {devid} --mac {}", mac(number, devid))
}
