//! The scripts of hosts whose guests make the traffic, and the programs that these have.
//!
//! Every byte of them is part of what the machine executes, so any change of them changes recordings.

use super::scripts::{self, BRIDGE_CARD, CARD, CARDS, NETFRONT, STOCK, marked, own};
use super::sockets::{self, Address};
use super::{Backend, DRIVER, GUEST, PEER, Uplink};
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

/// Traffic of guests whose backend is measured: the other end is another guest, a driver domain, or a machine on a wire behind dom0's
/// network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// TCP from the guest to the other guest.
    Guests,
    /// TCP from the guest to the backend's driver domain.
    ToBackend,
    /// TCP from there to the guest.
    FromBackend,
    /// TCP from the guest to a machine on the wire.
    ToWire,
    /// TCP from there to the guest.
    FromWire,
    /// UDP in frames of 64 bytes from the guest to the wire. Nobody answers.
    SmallToWire,
    /// UDP in frames of 64 bytes from a machine on the wire to the guest, in bursts.
    SmallFromWire,
    /// A request of 100 bytes of TCP from the guest to the other guest, and an answer of as many, again and again.
    Rounds,
}

impl Flow {
    pub fn does(self) -> &'static str {
        match self {
            Self::Guests => "sends TCP to another guest:",
            Self::ToBackend => "sends TCP to the backend's domain:",
            Self::FromBackend => "receives TCP from the backend's domain:",
            Self::ToWire => "sends TCP through a network card to a machine on the wire:",
            Self::FromWire => "receives TCP through a network card from a machine on the wire:",
            Self::SmallToWire => {
                "sends UDP in frames of 64 bytes through a network card to nobody:"
            }
            Self::SmallFromWire => {
                "receives UDP in frames of 64 bytes, in bursts, through a network card from a machine on the wire:"
            }
            Self::Rounds => "asks another guest, by 100 bytes of TCP, and is answered:",
        }
    }

    /// Whether there is another guest.
    pub fn has_peer(self) -> bool {
        matches!(self, Self::Guests | Self::Rounds)
    }

    /// Whether there is a machine on the wire: the second network card, in a namespace.
    pub fn has_machine(self) -> bool {
        matches!(self, Self::ToWire | Self::FromWire | Self::SmallFromWire)
    }
}

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
        Flow::Guests | Flow::ToBackend | Flow::FromBackend | Flow::ToWire | Flow::FromWire => {
            Vec::new()
        }
    };
    programs.into_iter().map(|(name, file)| (name.to_owned(), file)).collect()
}

/// The network cards of a flow's host, as QEMU's arguments.
pub fn cards(flow: Flow) -> &'static str {
    match flow {
        Flow::Guests | Flow::ToBackend | Flow::FromBackend | Flow::Rounds => "",
        Flow::SmallToWire => CARD,
        Flow::ToWire | Flow::FromWire | Flow::SmallFromWire => CARDS,
    }
}

/// The guest whose frames are counted, by its place among the guests: the one that receives, sends to the backend or the wire, or asks. The
/// other guest is created first.
pub fn counted(flow: Flow) -> u16 {
    if flow == Flow::Rounds { 2 } else { 1 }
}

/// The script of dom0. Its modules' symbols are printed before there is traffic, which would slow that down.
pub fn dom0((backend, flow): (Backend, Flow), milliseconds: u32, line: &str) -> String {
    let has_card = !cards(flow).is_empty();
    let mut start = match backend {
        Backend::Pvnet(uplink) => pvnet(uplink, has_card),
        Backend::StockDomain | Backend::PvnetDomain => CREATE_DRIVER.to_owned(),
        _ if has_card => format!("{STOCK}{BRIDGE_CARD}"),
        _ => STOCK.to_owned(),
    };
    if flow.has_machine() {
        start += WIRE;
    }
    let guests: Vec<&str> = flow.has_peer().then_some(PEER).into_iter().chain([GUEST]).collect();
    let create: String =
        guests.iter().map(|guest| format!("xl create -q /lab/{guest}.cfg\n")).collect();
    let driver = (backend.domain() != 0).then_some(DRIVER);
    let logs: Vec<String> =
        driver.into_iter().chain(guests).map(|name| format!("guest-{name}.log")).collect();
    let logs = logs.join(" ");
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

/// The script of every guest, and of the driver domain.
pub fn guest((backend, flow): (Backend, Flow), line: &str) -> String {
    let device = NETFRONT.replace("OFFLOADS\n", "").replace("10.0.0.2", "10.0.0.$host");
    let (own_program, peers) = match flow {
        Flow::Guests => (client("10.0.0.3", ""), SERVER),
        Flow::ToBackend => (client("10.0.0.1", ""), ""),
        Flow::FromBackend => (client("10.0.0.1", "--reverse"), ""),
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
    let first = backend.domain() + 1;
    let (guest, peer) = if flow.has_peer() { (first + 1, first) } else { (first, first + 1) };
    format!(
        "{}case $(hostname) in {GUEST}) host=2 domain={guest};; *) host=3 domain={peer};; esac\n{TELL}\n{device}\ntell_modules $domain\n{}{program}\n\
         sleep 1\ntell_processes $domain\necho '@end'",
        driver(backend, flow),
        own(line)
    )
}

const CREATE_DRIVER: &str = "xl create -q /lab/driver.cfg
until grep -q @ready /var/log/xen/console/guest-driver.log; do sleep 0.05; done";

/// The lines that only the driver domain runs, if there is one. They begin the script, and end it there.
fn driver(backend: Backend, flow: Flow) -> String {
    let domain = backend.domain();
    if domain == 0 {
        return String::new();
    }
    let guests = if flow.has_peer() { "2 3" } else { "2" };
    let connect = match backend {
        Backend::StockDomain => CONNECT.replace("GUESTS", guests),
        _ => String::new(),
    };
    let program = match flow {
        Flow::ToBackend | Flow::FromBackend => SERVER,
        _ => "",
    };
    format!(
        "if [ $(hostname) = {DRIVER} ]; then\n{CLOCK}{TELL}\n{}\ntell_modules {domain}\necho '@ready'\n{connect}{program}\n\
         sleep 1\ntell_processes {domain}\necho '@end'\nexit\nfi\n",
        scripts::start(backend)
    )
}

/// What `pvnet doctor` advises: the clock that a domU chooses by itself is read by a system call.
const CLOCK: &str = "echo tsc >/sys/devices/system/clocksource/clocksource0/current_clocksource\n";

/// Connects netback's interfaces, as a toolstack's script would: there is none in this domain. pvnet connects its own.
const CONNECT: &str = "for guest in GUESTS; do
until [ -e /sys/class/net/vif$guest.0 ]; do sleep 0.05; done
ip link set vif$guest.0 master xenbr0 up
xenstore-write backend/vif/$guest/0/hotplug-status connected
done
";

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

#[cfg(test)]
mod tests {
    use super::super::{Variation, Workload};
    use super::*;

    #[test]
    fn domains_are_created_in_the_order_of_the_numbers_by_which_they_report() {
        let reports = |name: &str, number: usize| match name {
            DRIVER => format!("\ntell_modules {number}\n"),
            GUEST => format!("{GUEST}) host=2 domain={number};;"),
            _ => format!("*) host=3 domain={number};;"),
        };
        for name in ["guests-pvnet", "wire-tx-tap", "domain-tx-stock", "domain-rounds-pvnet"] {
            let workload = Workload::named(name).unwrap();
            let batch = workload.batch(200, None, &Variation::default()).unwrap();
            let names: Vec<&str> = batch.guests.iter().map(|guest| guest.name.as_str()).collect();
            let created =
                |name| batch.script.find(&format!("xl create -q /lab/{name}.cfg\n")).unwrap();
            assert!(names.is_sorted_by_key(created), "{name}: {}", batch.script);
            for (number, guest) in (1..).zip(&names) {
                let line = reports(guest, number);
                assert!(batch.guest_script.contains(&line), "{name}: {}", batch.guest_script);
            }
            let has_driver = name.starts_with("domain-");
            assert_eq!(names[0] == DRIVER, has_driver, "{name}");
            for guest in &batch.guests[usize::from(has_driver)..] {
                assert_eq!(guest.vifs[0].starts_with("backend=driver,"), has_driver, "{name}");
            }
        }
    }
}
