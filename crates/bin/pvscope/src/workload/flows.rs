//! The scripts of hosts whose guests make the traffic, and the programs that these have.
//!
//! Every byte of them is part of what the machine executes, so any change of them changes recordings.

use super::scripts::{BRIDGE_CARD, CARD, CARDS, NETFRONT, STOCK, marked, own};
use super::sockets::{self, Address};
use super::{Backend, Flow, GUEST, PEER, Uplink};
use crate::mark::TELL;

/// The other guest's and the wire's machine's addresses.
const PEER_ADDRESS: [u8; 4] = [10, 0, 0, 3];
const WIRE_ADDRESS: [u8; 4] = [10, 0, 0, 9];
const GUEST_ADDRESS: [u8; 4] = [10, 0, 0, 2];
/// The ports of UDP and of requests: those of the services `discard` and `echo`.
const DISCARD: u16 = 9;
const ECHO: u16 = 7;
/// The payload of a frame of 64 bytes with UDP.
const SMALL: u32 = 64 - 14 - 20 - 8;
/// The bytes of a request.
const REQUEST: u32 = 100;
/// Datagrams in a burst, and the microseconds of the machine's own time between two: fewer than netback or pvnet can carry.
const BURST: (u32, u32) = (32, 2000);

pub fn programs(flow: Flow) -> Vec<(String, Vec<u8>)> {
    let discard = |host| -> Address { (host, DISCARD) };
    let programs = match flow {
        Flow::SmallToWire => vec![("send-udp", sockets::flood(discard(WIRE_ADDRESS), SMALL))],
        Flow::SmallFromWire => vec![
            ("send-udp", sockets::bursts(discard(GUEST_ADDRESS), SMALL, BURST)),
            ("receive-udp", sockets::drain(DISCARD)),
        ],
        Flow::Rounds => vec![
            ("ask", sockets::ask((PEER_ADDRESS, ECHO), REQUEST)),
            ("answer", sockets::answer(ECHO, REQUEST)),
        ],
        Flow::Guests | Flow::ToWire | Flow::FromWire => Vec::new(),
    };
    programs.into_iter().map(|(name, file)| (name.to_owned(), file)).collect()
}

/// The network cards of a flow's host, as QEMU's arguments.
pub fn cards(flow: Flow) -> &'static str {
    match flow {
        Flow::Guests | Flow::Rounds => "",
        Flow::SmallToWire => CARD,
        Flow::ToWire | Flow::FromWire | Flow::SmallFromWire => CARDS,
    }
}

/// The domain whose frames are counted: the guest that receives, sends to the wire or asks. The other guest is created first.
pub fn counted(flow: Flow) -> u16 {
    if flow == Flow::Rounds { 2 } else { 1 }
}

/// The script of dom0. Its modules' symbols are printed before there is traffic, which would slow that down.
pub fn dom0((backend, flow): (Backend, Flow), milliseconds: u32, line: &str) -> String {
    let has_card = !cards(flow).is_empty();
    let mut start = match backend {
        Backend::Pvnet(uplink) => pvnet(uplink, has_card),
        _ if has_card => format!("{STOCK}{BRIDGE_CARD}"),
        _ => STOCK.to_owned(),
    };
    if flow.has_machine() {
        start += WIRE;
    }
    let (guests, logs) = if flow.has_peer() {
        (vec![PEER, GUEST], format!("guest-{PEER}.log guest-{GUEST}.log"))
    } else {
        (vec![GUEST], format!("guest-{GUEST}.log"))
    };
    let create: String =
        guests.iter().map(|guest| format!("xl create -q /lab/{guest}.cfg\n")).collect();
    let burst = if flow == Flow::SmallFromWire { "ip netns exec wire send-udp &\n" } else { "" };
    format!(
        "set -e\n{start}\n{TELL}\ntell_modules 0\n{create}cd /var/log/xen/console\n\
         for log in {logs}; do until grep -q @end $log; do sleep 0.05; done; done\n{}{}\n\
         for log in {logs}; do echo '@log'; cat $log; done\necho '@end'\n",
        own(line),
        marked(burst, interface(flow), milliseconds)
    )
}

/// The interface of dom0 whose counters are printed: it is in every machine.
fn interface(flow: Flow) -> &'static str {
    if cards(flow).is_empty() { "lo" } else { "eth0" }
}

/// The script of every guest.
pub fn guest(flow: Flow, line: &str) -> String {
    let device = NETFRONT.replace("OFFLOADS\n", "").replace("10.0.0.2", "10.0.0.$host");
    let (own_program, peers) = match flow {
        Flow::Guests => (client("10.0.0.3", ""), SERVER),
        Flow::ToWire => (client("10.0.0.9", ""), ""),
        Flow::FromWire => (client("10.0.0.9", "--reverse"), ""),
        Flow::SmallToWire => (NOBODY.to_owned(), ""),
        Flow::SmallFromWire => ("receive-udp &".to_owned(), ""),
        Flow::Rounds => ("while :; do ask || sleep 0.05; done &".to_owned(), "answer &"),
    };
    let program = match peers {
        "" => own_program,
        peers => format!("if [ $host = 3 ]; then {peers}\nelse {own_program}\nfi"),
    };
    // The domains are created in this order.
    let numbers = if flow.has_peer() { ("2", "1") } else { ("1", "2") };
    format!(
        "case $(hostname) in {GUEST}) host=2 domain={};; *) host=3 domain={};; esac\n{TELL}\n{device}\ntell_modules $domain\n{}{program}\n\
         sleep 1\ntell_processes $domain\necho '@end'",
        numbers.0,
        numbers.1,
        own(line)
    )
}

/// Lines that start endless TCP, once the other end listens. A server that has not ended with an earlier client refuses the next.
fn client(address: &str, more: &str) -> String {
    format!(
        "until iperf3 -c {address} -n 64K >/dev/null 2>&1; do sleep 0.05; done\n\
         while :; do iperf3 -c {address} {more} -t 86400 >/dev/null 2>&1; sleep 0.05; done &"
    )
}

const SERVER: &str = "iperf3 -s >/dev/null 2>&1 &";

/// The address is nobody's.
const NOBODY: &str = "ip neigh add 10.0.0.9 lladdr 52:54:00:00:00:09 dev eth0
send-udp &";

/// The other end of the wire. What it costs is part of dom0's share, whoever carries the guest's frames.
const WIRE: &str = "
ip netns add wire
ip link set eth1 netns wire
ip -n wire addr add 10.0.0.9/24 dev eth1
ip -n wire link set eth1 up
ip -n wire link set lo up
ip netns exec wire iperf3 -s >/dev/null 2>&1 &";

const BRIDGE: &str = "modprobe -a tun bridge
ip link add xenbr0 type bridge stp_state 0 forward_delay 0
ip link set xenbr0 up";

/// Lines that start pvnet.
fn pvnet(uplink: Uplink, has_card: bool) -> String {
    let bridge = if has_card { format!("{BRIDGE}{BRIDGE_CARD}") } else { BRIDGE.to_owned() };
    let (before, config) = match uplink {
        Uplink::Host => {
            ("modprobe tun".to_owned(), "[[uplink]]\\nname = \"up\"\\ntap = \"pvnet0\"\\n")
        }
        Uplink::Tap => {
            (bridge, "[[uplink]]\\nname = \"up\"\\ntap = \"pvnet0\"\\nbridge = \"xenbr0\"\\n")
        }
        Uplink::Packet => (
            "ip link set eth0 up".to_owned(),
            "[[uplink]]\\nname = \"up\"\\nkind = \"af-packet\"\\ndevice = \"eth0\"\\n",
        ),
        Uplink::Xdp => (
            "ip link set eth0 up".to_owned(),
            "[[uplink]]\\nname = \"up\"\\nkind = \"af-xdp\"\\ndevice = \"eth0\"\\n",
        ),
        Uplink::Device => (bridge, "[xen]\\nattach = \"device\"\\n"),
    };
    format!(
        "{before}\nprintf '[daemon]\\nplatform = \"xen\"\\n\\n{config}' >/lab/pvnet.toml\n\
         pvnet run --config /lab/pvnet.toml >/run/pvnet.log 2>&1 &\n\
         until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done"
    )
}
