//! Ready-made workloads: TCP on a Xen host with one guest, or on Linux alone.
//!
//! Every byte of the scripts here is part of what the machine executes, so any change of them changes recordings.

use std::path::PathBuf;

use xenlab::{Batch, DomuConfig, HostFile, NO_ASLR, Result};

use crate::error::Error;
use crate::mark::{self, TELL};

/// The guest's address on the link.
const MAC: &str = "00:16:3e:00:00:02";
/// The guest.
pub const GUEST: &str = "guest";

/// The guest's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's xen-netback and a bridge.
    Stock,
    /// The same for an interface without offloads: frames have a checksum and are no longer than the MTU.
    Basic,
    /// pvnet.
    Pvnet,
}

/// The direction of TCP's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the guest.
    Tx,
    /// To the guest.
    Rx,
}

/// The machine of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A Xen host with one guest, and TCP between it and dom0.
    Xen(Backend, Direction),
    /// Linux on the machine itself, and TCP between two of its programs.
    Loopback,
    /// The same, between two namespaces, each with a virtio network card.
    Virtio,
}

/// A ready-made workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Its description, which recordings contain.
    pub about: &'static str,
    kind: Kind,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 7] = [
        Self {
            name: "tx-stock",
            about: "a guest sends TCP to dom0 through the kernel's xen-netback and a bridge",
            kind: Kind::Xen(Backend::Stock, Direction::Tx),
        },
        Self {
            name: "tx-stock-basic",
            about: "a guest whose interface has no offloads sends TCP to dom0 through xen-netback and a bridge",
            kind: Kind::Xen(Backend::Basic, Direction::Tx),
        },
        Self {
            name: "rx-stock",
            about: "a guest receives TCP from dom0 through the kernel's xen-netback and a bridge",
            kind: Kind::Xen(Backend::Stock, Direction::Rx),
        },
        Self {
            name: "tx-pvnet",
            about: "a guest sends TCP to dom0 through pvnet",
            kind: Kind::Xen(Backend::Pvnet, Direction::Tx),
        },
        Self {
            name: "rx-pvnet",
            about: "a guest receives TCP from dom0 through pvnet",
            kind: Kind::Xen(Backend::Pvnet, Direction::Rx),
        },
        Self {
            name: "virtio",
            about: "a machine without Xen sends TCP from one virtio network card to another",
            kind: Kind::Virtio,
        },
        Self {
            name: "loopback",
            about: "a machine without Xen sends TCP to itself",
            kind: Kind::Loopback,
        },
    ];

    /// The workload of this name.
    pub fn named(name: &str) -> crate::error::Result<Self> {
        let unknown = || Error::Usage(format!("no workload {name:?}: `pvscope list` shows all"));
        Self::ALL.into_iter().find(|workload| workload.name == name).ok_or_else(unknown)
    }

    /// Whether it runs pvnet.
    pub fn needs_pvnet(self) -> bool {
        matches!(self.kind, Kind::Xen(Backend::Pvnet, _))
    }

    /// Whether there is a hypervisor.
    pub fn has_xen(self) -> bool {
        matches!(self.kind, Kind::Xen(..))
    }

    /// The interface of dom0 or of the machine that the frames cross.
    pub fn interface(self) -> &'static str {
        match self.kind {
            Kind::Xen(backend, _) => backend.interface(),
            Kind::Loopback => "lo",
            Kind::Virtio => "eth0",
        }
    }

    /// The machine and its scripts: endless TCP traffic, and marks around a part of it.
    pub fn batch(self, milliseconds: u32, pvnet: Option<PathBuf>) -> Result<Batch> {
        let files = pvnet.into_iter().map(HostFile::new).collect::<Result<_>>()?;
        let programs = mark::programs();
        let batch = Batch { xen: self.has_xen(), files, programs, ..Batch::default() };
        Ok(match self.kind {
            Kind::Xen(backend, direction) => Batch {
                script: xen_script(backend, direction, milliseconds),
                guest_script: guest_script(backend),
                guests: vec![backend.guest()],
                ..batch
            },
            Kind::Loopback => {
                let script = linux_script("", self.interface(), "127.0.0.1", milliseconds);
                Batch { script, ..batch }
            }
            Kind::Virtio => Batch {
                script: linux_script(NAMESPACES, self.interface(), "10.0.0.2", milliseconds),
                devices: CARDS.split_whitespace().map(str::to_owned).collect(),
                ..batch
            },
        })
    }
}

impl Backend {
    fn guest(self) -> DomuConfig {
        let kernel_arguments = NO_ASLR.to_owned();
        DomuConfig { kernel_arguments, ..DomuConfig::new(GUEST).vif(self.vif()) }
    }

    fn interface(self) -> &'static str {
        match self {
            Self::Stock | Self::Basic => "vif1.0",
            Self::Pvnet => "pvnet0",
        }
    }

    fn vif(self) -> String {
        match self {
            Self::Stock | Self::Basic => format!("mac={MAC},bridge=xenbr0,script=vif-lab"),
            Self::Pvnet => format!("mac={MAC},script=/bin/true"),
        }
    }
}

fn xen_script(backend: Backend, direction: Direction, milliseconds: u32) -> String {
    let start = match backend {
        Backend::Stock | Backend::Basic => STOCK,
        Backend::Pvnet => PVNET,
    };
    let interface = backend.interface();
    let reverse = if direction == Direction::Tx { "--reverse" } else { "" };
    format!(
        "set -e\n{start}\nxl create -q /lab/{GUEST}.cfg\n\
         log=/var/log/xen/console/guest-{GUEST}.log; until grep -q @end $log; do sleep 0.05; done\n{}\n\
         echo '@log'; cat $log\necho '@end'\n",
        marked("", interface, "10.0.0.2", reverse, milliseconds)
    )
}

fn guest_script(backend: Backend) -> String {
    let offloads = if backend == Backend::Basic { NO_OFFLOADS } else { "" };
    GUEST_SCRIPT.replace("TELL", TELL).replace("OFFLOADS\n", offloads)
}

fn linux_script(start: &str, interface: &str, address: &str, milliseconds: u32) -> String {
    let enter = if start.is_empty() { "" } else { "ip netns exec other" };
    let server = format!("{enter} iperf3 -s >/dev/null 2>&1 &");
    let traffic = marked(&server, interface, address, "", milliseconds);
    format!("set -e\n{start}\n{traffic}\necho '@end'\n")
}

/// A script that starts endless TCP traffic, prints the interface's counters and executes the marks.
fn marked(server: &str, interface: &str, address: &str, more: &str, milliseconds: u32) -> String {
    let seconds = f64::from(milliseconds) / 1000.0;
    format!(
        "{server}\n\
         until iperf3 -c {address} -n 64K >/dev/null 2>&1; do sleep 0.05; done\n\
         iperf3 -c {address} {more} -t 86400 >/dev/null 2>&1 &\n\
         sleep 0.3\n\
         counted() {{ for way in rx tx; do for what in packets bytes; do\n\
         read -r count </sys/class/net/{interface}/statistics/${{way}}_$what; echo $count; done; done; }}\n\
         echo '@before'; counted\n\
         mark-begin; sleep {seconds}; mark-end\n\
         echo '@after'; counted\n{TELL}\n\
         tell 0"
    )
}

const STOCK: &str = "modprobe -a xen-netback bridge
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip addr add 10.0.0.1/24 dev xenbr0
ip link set xenbr0 up";

const PVNET: &str = "modprobe tun
printf '[daemon]\\nplatform = \"xen\"\\n\\n[[uplink]]\\nname = \"host\"\\ntap = \"pvnet0\"\\naddresses = [\"10.0.0.1/24\"]\\n' >/lab/pvnet.toml
pvnet run --config /lab/pvnet.toml >/run/pvnet.log 2>&1 &
until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done";

/// Two network cards on an emulated hub, and a namespace for the second.
const CARDS: &str = "-netdev hubport,hubid=0,id=a -netdev hubport,hubid=0,id=b
-device virtio-net-pci,netdev=a,mac=52:54:00:00:00:01 -device virtio-net-pci,netdev=b,mac=52:54:00:00:00:02";
const NAMESPACES: &str = "ip netns add other
ip link set eth1 netns other
ip addr add 10.0.0.1/24 dev eth0
ip link set eth0 up
ip -n other addr add 10.0.0.2/24 dev eth1
ip -n other link set eth1 up
ip -n other link set lo up";

/// Runs before the interface is up, so that the driver does not negotiate these offloads.
const NO_OFFLOADS: &str =
    "ethtool -K eth0 tso off gso off sg off tx off rx off gro off >/dev/null\n";

const GUEST_SCRIPT: &str = "modprobe xen-netfront
until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done
OFFLOADS
ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up
iperf3 -s >/dev/null 2>&1 &
sleep 1
TELL
tell 1
echo '@end'";
