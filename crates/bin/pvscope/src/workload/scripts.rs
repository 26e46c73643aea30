//! The scripts of dom0, of the guest, and of a machine without Xen.
//!
//! Every byte of them is part of what the machine executes, so any change of them changes recordings.

use super::{Backend, Channel, GUEST, Traffic, Uplink, Variation};
use crate::mark::TELL;

/// The script of dom0.
pub fn xen(
    backend: Backend,
    traffic: Traffic,
    milliseconds: u32,
    Variation { script, iperf, .. }: &Variation,
) -> String {
    let start = start(backend);
    let more = match (traffic, backend) {
        (Traffic::Udp, _) => BRIDGE_CARD,
        (Traffic::Sendfile, _) => "\niperf3 -s >/dev/null 2>&1 &",
        _ => "",
    };
    let offloads = match (traffic, backend) {
        (Traffic::Rx, Backend::Basic) => SEND_WITHOUT_OFFLOADS,
        _ => "",
    };
    let interface = backend.interface();
    let client = match traffic {
        // As the iperf of 2007 writes.
        Traffic::Tx if backend == Backend::Basic => client("10.0.0.2", "--reverse -l 8K", iperf),
        Traffic::Tx => client("10.0.0.2", "--reverse", iperf),
        Traffic::Rx => client("10.0.0.2", "", iperf),
        // The guest sends by itself.
        Traffic::Sendfile | Traffic::Udp => String::new(),
    };
    format!(
        "set -e\n{start}{more}\nxl create -q /lab/{GUEST}.cfg\n\
         log=/var/log/xen/console/guest-{GUEST}.log; until grep -q @end $log; do sleep 0.05; done{offloads}\n{}{}\n\
         echo '@log'; cat $log\necho '@end'\n",
        own(script),
        traffic_with_symbols("", &client, interface, milliseconds)
    )
}

/// What starts a backend in its domain, which has an address.
pub fn start(backend: Backend) -> String {
    match backend {
        Backend::Stock | Backend::Basic | Backend::StockDomain => STOCK.to_owned(),
        Backend::Pvnet(Uplink::Device) => DEVICE.to_owned(),
        // dom0 has this module from its init.
        Backend::PvnetDomain => format!("modprobe xen-gntalloc\n{}", pvnet("")),
        Backend::Pvnet(_) | Backend::Frontend(Channel::Header | Channel::Reuse) => pvnet(""),
        Backend::Frontend(Channel::Remap) => {
            pvnet("\\n[[guest]]\\nname = \"*\"\\ntx = \"remap\"\\n")
        }
    }
}

/// A line of the experiment's own, if it has one.
pub fn own(line: &str) -> String {
    if line.is_empty() { String::new() } else { format!("{line}\n") }
}

/// The script of the guest, with a line of the experiment's own.
pub fn guest(backend: Backend, traffic: Traffic, line: &str) -> String {
    let offloads = if backend == Backend::Basic { NO_OFFLOADS } else { "" };
    let device = match backend {
        Backend::Frontend(channel) => frontend(channel),
        _ => NETFRONT.replace("OFFLOADS\n", offloads),
    };
    let program = match traffic {
        Traffic::Tx | Traffic::Rx => "iperf3 -s >/dev/null 2>&1 &",
        Traffic::Sendfile => SENDFILE,
        Traffic::Udp => UDP,
    };
    format!(
        "{device}\n{}{program}\nsleep 1\n{TELL}\ntell_modules 1; tell_processes 1\necho '@end'",
        own(line)
    )
}

/// The script of a machine whose programs send to each other, over an interface to an address.
pub fn linux(
    start: &str,
    interface: &str,
    address: &str,
    milliseconds: u32,
    Variation { script, iperf, .. }: &Variation,
) -> String {
    let enter = if start.is_empty() { "" } else { "ip netns exec other" };
    let server = format!("{enter} iperf3 -s >/dev/null 2>&1 &");
    let traffic =
        traffic_with_symbols(&server, &client(address, "", iperf), interface, milliseconds);
    format!("set -e\n{start}\n{}{traffic}\necho '@end'\n", own(script))
}

/// Lines that start endless TCP traffic, once the other end listens.
fn client(address: &str, more: &str, iperf: &str) -> String {
    let space = if iperf.is_empty() { "" } else { " " };
    format!(
        "until iperf3 -c {address} -n 64K >/dev/null 2>&1; do sleep 0.05; done\n\
         iperf3 -c {address} {more}{space}{iperf} -t 86400 >/dev/null 2>&1 &\n"
    )
}

/// A script that prints the symbols of modules, starts traffic and executes the marks: what comes before the marks is part of a
/// snapshot.
fn traffic_with_symbols(server: &str, client: &str, interface: &str, milliseconds: u32) -> String {
    format!("{TELL}\ntell_modules 0\n{server}\n{}", marked(client, interface, milliseconds))
}

/// A script that starts traffic, prints the interface's counters and executes the marks.
pub fn marked(client: &str, interface: &str, milliseconds: u32) -> String {
    let seconds = f64::from(milliseconds) / 1000.0;
    format!(
        "{client}\
         sleep 0.3\n\
         counted() {{ for way in rx tx; do for what in packets bytes; do\n\
         read -r count </sys/class/net/{interface}/statistics/${{way}}_$what; echo $count; done; done; }}\n\
         echo '@before'; counted\n\
         mark-begin; sleep {seconds}; mark-end\n\
         echo '@after'; counted\n\
         tell_processes 0"
    )
}

/// The bridge of xen-netback, with dom0's address.
pub const STOCK: &str = "modprobe -a xen-netback bridge
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip addr add 10.0.0.1/24 dev xenbr0
ip link set xenbr0 up";

/// Starts pvnet with more lines of configuration.
fn pvnet(more: &str) -> String {
    PVNET.replace("MORE", more)
}

const PVNET: &str = "modprobe tun
printf '[daemon]\\nplatform = \"xen\"\\n\\n[[uplink]]\\nname = \"host\"\\ntap = \"pvnet0\"\\naddresses = [\"10.0.0.1/24\"]\\nMORE' >/lab/pvnet.toml
pvnet run --config /lab/pvnet.toml >/run/pvnet.log 2>&1 &
until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done";

/// The same bridge, and pvnet with a device for each interface.
const DEVICE: &str = "modprobe -a tun bridge
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip addr add 10.0.0.1/24 dev xenbr0
ip link set xenbr0 up
printf '[daemon]\\nplatform = \"xen\"\\n\\n[xen]\\nattach = \"device\"\\n' >/lab/pvnet.toml
pvnet run --config /lab/pvnet.toml >/run/pvnet.log 2>&1 &
until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done";

/// A network card on a hub with an open port. A hub without one would hold back all frames. Neither eventfds nor the bottom half of
/// QEMU's main loop: that is another thread, which would send frames at another instruction in each run.
pub const CARD: &str = "-netdev hubport,hubid=0,id=a -netdev hubport,hubid=0,id=open
-device virtio-net-pci,tx=timer,ioeventfd=off,netdev=a,mac=52:54:00:00:00:01";
pub const BRIDGE_CARD: &str = "
ip link set eth0 master xenbr0 up";

/// Two network cards on an emulated hub, and a namespace for the second.
pub const CARDS: &str = "-netdev hubport,hubid=0,id=a -netdev hubport,hubid=0,id=b
-device virtio-net-pci,tx=timer,ioeventfd=off,netdev=a,mac=52:54:00:00:00:01 -device virtio-net-pci,tx=timer,ioeventfd=off,netdev=b,mac=52:54:00:00:00:02";
pub const NAMESPACES: &str = "ip netns add other
ip link set eth1 netns other
ip addr add 10.0.0.1/24 dev eth0
ip link set eth0 up
ip -n other addr add 10.0.0.2/24 dev eth1
ip -n other link set eth1 up
ip -n other link set lo up";

/// Runs before the interface is up, so that the driver does not negotiate these offloads.
const NO_OFFLOADS: &str =
    "ethtool -K eth0 tso off gso off sg off tx off rx off gro off >/dev/null\n";
/// The guest's driver announces that it can receive with offloads; so dom0 must not use them.
const SEND_WITHOUT_OFFLOADS: &str = "
for device in vif1.0 xenbr0; do ethtool -K $device tso off gso off sg off tx off >/dev/null; done";

/// The guest's driver and its address.
pub const NETFRONT: &str = "modprobe xen-netfront
until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done
OFFLOADS
ip addr add 10.0.0.2/24 dev eth0 && ip link set eth0 up";

/// Starts `pvnet frontend`. gntalloc's default limit is too low for a grant for each page of both rings.
fn frontend(channel: Channel) -> String {
    let options = match channel {
        Channel::Remap => "--no-header-channel --no-persistent-grants",
        Channel::Header => "--no-persistent-grants",
        Channel::Reuse => "",
    };
    format!(
        "modprobe xen-gntalloc limit=4096\nmodprobe -a xen-evtchn tun\n\
         pvnet frontend --vif 0 --device eth0 --address 10.0.0.2/24 {options} >/run/frontend.log 2>&1 &\n\
         until grep -q 1 /sys/class/net/eth0/carrier 2>/dev/null; do sleep 0.05; done"
    )
}

const SENDFILE: &str = "until iperf3 -c 10.0.0.1 -Z -n 64K >/dev/null 2>&1; do sleep 0.05; done
iperf3 -c 10.0.0.1 -Z -t 86400 >/dev/null 2>&1 &";

/// The card's address is nobody's.
const UDP: &str = "ip neigh add 10.0.0.9 lladdr 52:54:00:00:00:09 dev eth0
send-udp &";
