//! What can be profiled without more ado: a Xen host with one guest, and TCP.

use std::path::PathBuf;

use xenlab::{Batch, DomuConfig, HostFile, Result};

use crate::mark;

/// The guest's address on the link.
const MAC: &str = "00:16:3e:00:00:02";
/// The guest.
pub const GUEST: &str = "guest";

/// Who serves the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's xen-netback and a bridge.
    Stock,
    /// pvnet.
    Pvnet,
}

/// Which way TCP's payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the guest.
    Tx,
    /// To the guest.
    Rx,
}

/// One that is ready-made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    backend: Backend,
    direction: Direction,
}

impl Workload {
    /// All that there are.
    pub const ALL: [Self; 4] = [
        Self {
            name: "tx-stock",
            about: "a guest sends TCP to dom0 through the kernel's xen-netback and a bridge",
            backend: Backend::Stock,
            direction: Direction::Tx,
        },
        Self {
            name: "rx-stock",
            about: "a guest receives TCP from dom0 through the kernel's xen-netback and a bridge",
            backend: Backend::Stock,
            direction: Direction::Rx,
        },
        Self {
            name: "tx-pvnet",
            about: "a guest sends TCP to dom0 through pvnet",
            backend: Backend::Pvnet,
            direction: Direction::Tx,
        },
        Self {
            name: "rx-pvnet",
            about: "a guest receives TCP from dom0 through pvnet",
            backend: Backend::Pvnet,
            direction: Direction::Rx,
        },
    ];

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name == name)
    }

    /// Whether pvnet takes part.
    pub fn needs_pvnet(self) -> bool {
        self.backend == Backend::Pvnet
    }

    /// The machine, and what it does: TCP for good, and marks around a part of it.
    pub fn batch(self, milliseconds: u32, pvnet: Option<PathBuf>) -> Result<Batch> {
        let vif = match self.backend {
            Backend::Stock => format!("mac={MAC},bridge=xenbr0,script=vif-lab"),
            Backend::Pvnet => format!("mac={MAC},script=/bin/true"),
        };
        let files = pvnet.into_iter().map(HostFile::new).collect::<Result<_>>()?;
        Ok(Batch {
            script: self.script(milliseconds),
            guest_script: GUEST_SCRIPT.replace("TELL", TELL),
            guests: vec![DomuConfig::new(GUEST).vif(vif)],
            files,
            programs: mark::programs(),
        })
    }

    fn script(self, milliseconds: u32) -> String {
        let (start, interface) = match self.backend {
            Backend::Stock => (STOCK, "vif1.0"),
            Backend::Pvnet => (PVNET, "pvnet0"),
        };
        let reverse = if self.direction == Direction::Tx { "--reverse" } else { "" };
        let seconds = f64::from(milliseconds) / 1000.0;
        format!(
            "set -e\n{start}\n\
             xl create -q /lab/{GUEST}.cfg\n\
             until iperf3 -c 10.0.0.2 -n 64K >/dev/null 2>&1; do sleep 0.05; done\n\
             iperf3 -c 10.0.0.2 {reverse} -t 86400 >/dev/null 2>&1 &\n\
             sleep 2\n\
             counted() {{ for way in rx tx; do for what in packets bytes; do\n\
             read -r count </sys/class/net/{interface}/statistics/${{way}}_$what; echo $count; done; done; }}\n\
             echo '@before'; counted; \n\
             mark-begin; sleep {seconds}; mark-end\n\
             echo '@after'; counted\n{TELL}\n\
             tell 0\n\
             echo '@log'; cat /var/log/xen/console/guest-{GUEST}.log\n\
             echo '@end'\n"
        )
    }
}

const STOCK: &str = "modprobe -a xen-netback bridge
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip addr add 10.0.0.1/24 dev xenbr0
ip link set xenbr0 up";

const PVNET: &str = "modprobe tun
printf '[daemon]\\nplatform = \"xen\"\\n\\n[[uplink]]\\nname = \"host\"\\ntap = \"pvnet0\"\\naddresses = [\"10.0.0.1/24\"]\\n' >/lab/pvnet.toml
pvnet run --config /lab/pvnet.toml >/run/pvnet.log 2>&1 &
until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done";

/// What names need: symbols of modules, and where programs lie.
const TELL: &str = "tell() {
echo \"@domain $1\"
echo '@modules'; cat /proc/modules
echo '@kallsyms'; grep '\\[' /proc/kallsyms | grep -i ' t '
for process in /proc/[0-9]*; do
[ -r $process/exe ] && [ -s $process/maps ] || continue
echo \"@process ${process#/proc/} $(cat $process/comm)\"; grep ' r-x' $process/maps
done; }";

const GUEST_SCRIPT: &str = "modprobe xen-netfront
until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done
ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up
iperf3 -s >/dev/null 2>&1 &
sleep 1
TELL
tell 1
echo '@end'";
