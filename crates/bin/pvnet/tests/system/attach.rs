//! Guests with a device on the host, and what operators do with such devices: `attach = "device"`.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use lab::{Namespace, Process};
use rustix::process::{Pid, Signal, kill_process};

use crate::MIB;
use crate::testbed::{LIMIT, PING_PAUSE, Testbed, requires, wait};

/// The host's own address, on the bridge.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 254);

const LINES: [&str; 3] = [
    "attach = \"device\"\ndevice = \"vif1\"\n",
    "attach = \"device\"\ndevice = \"vif2\"\nmtu = 1442\n",
    "attach = \"device\"\ndevice = \"vif3\"\ndevice_capabilities = \"none\"\n",
];

/// A daemon in a namespace with a bridge, to which the devices of all guests belong.
struct Bed(Testbed);

impl Bed {
    fn start(guests: u8) -> Self {
        let host = Namespace::create("pvt").unwrap();
        host.ip(&["link", "add", "br0", "type", "bridge"]).unwrap();
        host.ip(&["address", "add", &format!("{HOST}/24"), "dev", "br0"]).unwrap();
        host.ip(&["link", "set", "br0", "up"]).unwrap();
        let bed = Self(Testbed::start_in(Some(host), guests, "workers = 1", |guest| LINES[guest]));
        (1..=guests).for_each(|number| bed.join_bridge(number));
        bed
    }

    fn host(&self) -> &Namespace {
        self.0.host.as_ref().unwrap()
    }

    fn join_bridge(&self, number: u8) {
        self.host().ip(&["link", "set", &format!("vif{number}"), "master", "br0", "up"]).unwrap();
    }

    /// Runs a program in the daemon's namespace.
    fn run(&self, program: &str, arguments: &str) -> String {
        let mut command = self.host().exec(program).unwrap();
        command.args(arguments.split(' '));
        lab::run(command, LIMIT).unwrap()
    }

    fn link(&self, name: &str) -> String {
        self.host().ip(&["-d", "link", "show", "dev", name]).unwrap_or_default()
    }

    /// Whether a guest answers the host.
    fn answers(&self, guest: usize) -> bool {
        let to = IpAddr::from(self.0.guests[guest].ipv4);
        lab::ping(self.host(), to, 1, PING_PAUSE).is_ok_and(|ping| ping.received == 1)
    }

    fn answers_soon(&self, guest: usize) {
        wait("an answer", || self.answers(guest));
    }

    fn reason(&self, guest: usize) -> String {
        self.0.port(guest)["reason"]["code"].as_str().unwrap_or_default().to_owned()
    }

    fn kill_daemon(&mut self) {
        let pid = Pid::from_raw(self.0.daemon.pid().cast_signed()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        self.0.daemon.wait(LIMIT).unwrap();
    }
}

/// The daemon makes the devices, a bridge joins them, and guests with all offloads, with a smaller MTU and behind a network without
/// offloads reach each other and the host.
#[test]
fn guests_with_devices_reach_each_other_over_a_bridge() {
    requires!("ping", "ip", "tshark");
    let mut bed = Bed::start(3);
    assert!(bed.link("vif1").contains("fe:ff:ff:ff:ff:ff"), "{}", bed.link("vif1"));
    assert!(bed.link("vif1").contains("NO-CARRIER"), "its guest is not there");
    (0..3).for_each(|guest| bed.0.join(guest, &[]));
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        bed.0.ping(from, to);
        bed.0.transfer(from, to, 4 * MIB);
    }
    let mtu = |guest: usize| bed.0.guests[guest].namespace.ip(&["link", "show", "eth0"]).unwrap();
    assert!(mtu(0).contains("mtu 1500") && mtu(1).contains("mtu 1442"), "{}", mtu(1));
    let guest = &bed.0.guests[0];
    lab::transfer_file(bed.host(), &guest.namespace, guest.ipv4, 4 * MIB, 1).unwrap();
    lab::transfer_file(&guest.namespace, bed.host(), HOST, 4 * MIB, 2).unwrap();
    let port = bed.0.port(0);
    assert_eq!(port["device"], "vif1", "{port}");
    assert!(port["reason"].is_null() && port["state"] == "up", "{port}");
    // pvnet's switch knows none of them.
    assert_eq!(bed.0.status()["addresses"].as_array().unwrap().len(), 0);

    // What tcpdump would show.
    let mut tshark = bed.host().exec("tshark").unwrap();
    tshark.args(["-i", "vif1", "-l", "-c", "2", "-f", "icmp", "-T", "fields", "-e", "eth.src"]);
    let mut tshark = Process::capture(tshark).unwrap();
    tshark.says("Capturing on", LIMIT).unwrap();
    bed.answers_soon(0);
    wait("the captured frames", || {
        let _ = bed.answers(0);
        tshark.stdout().contains(&bed.0.guests[0].mac)
    });
}

/// Rules of the host's own tools hold.
#[test]
fn an_operators_rules_hold_at_a_device() {
    requires!("ping", "ip", "tc", "bridge");
    let mut bed = Bed::start(2);
    (0..2).for_each(|guest| bed.0.join(guest, &[]));
    let reaches = |bed: &Bed| {
        let to = IpAddr::from(bed.0.guests[1].ipv4);
        lab::ping(&bed.0.guests[0].namespace, to, 2, PING_PAUSE).is_ok_and(|ping| ping.received > 0)
    };
    assert!(reaches(&bed));
    bed.run("bridge", "link set dev vif1 isolated on");
    bed.run("bridge", "link set dev vif2 isolated on");
    assert!(!reaches(&bed), "isolated ports of a bridge do not reach each other");
    assert!(bed.answers(0), "they reach the host");
    bed.run("bridge", "link set dev vif2 isolated off");
    wait("the end of the rule", || reaches(&bed));
    bed.run("tc", "qdisc replace dev vif2 root blackhole");
    assert!(!reaches(&bed), "nothing goes to the guest");
    // Rules outlive the daemon, as the device does.
    assert!(bed.0.daemon.stop().unwrap().success(), "{}", bed.0.daemon.stderr());
    for guest in &mut bed.0.guests {
        guest.wait();
    }
    bed.0.restart();
    (0..2).for_each(|guest| bed.0.join(guest, &[]));
    bed.answers_soon(0);
    assert!(!reaches(&bed), "the rule still holds");
    bed.run("tc", "qdisc delete dev vif2 root");
    wait("the end of the rule", || reaches(&bed));
}

/// A daemon that is killed leaves the device in its bridge, without a carrier, and as its operator has set it. The next one goes on
/// with it.
#[test]
fn a_device_keeps_its_place_when_the_daemon_is_killed() {
    requires!("ping", "ip", "ethtool");
    let mut bed = Bed::start(1);
    bed.0.join(0, &["--rejoin", "60"]);
    bed.answers_soon(0);
    let offloads = |bed: &Bed| bed.run("ethtool", "-k vif1").contains("tx-checksumming: on");
    assert!(offloads(&bed));
    bed.run("ethtool", "-K vif1 tx off");
    bed.kill_daemon();
    let link = bed.link("vif1");
    assert!(link.contains("master br0") && link.contains("NO-CARRIER"), "{link}");
    bed.0.restart();
    bed.answers_soon(0);
    let link = bed.link("vif1");
    assert!(link.contains("master br0") && !link.contains("NO-CARRIER"), "{link}");
    assert!(!offloads(&bed), "switched off by its operator");
}

/// A device that is set down, or deleted, says so, and nothing else breaks.
#[test]
fn a_device_that_is_deleted_comes_back() {
    requires!("ping", "ip");
    let mut bed = Bed::start(2);
    (0..2).for_each(|guest| bed.0.join(guest, &[]));
    (0..2).for_each(|guest| bed.answers_soon(guest));
    bed.host().ip(&["link", "set", "vif1", "down"]).unwrap();
    wait("the reason", || bed.reason(0) == "device_down");
    assert!(!bed.answers(0) && bed.answers(1));
    bed.host().ip(&["link", "set", "vif1", "up"]).unwrap();
    bed.answers_soon(0);
    bed.host().ip(&["link", "delete", "vif1"]).unwrap();
    wait("the reason", || bed.reason(0) == "no_device");
    assert_eq!(bed.0.port(0)["state"], "down");
    assert!(bed.answers(1), "others do not notice");
    wait("the device", || bed.link("vif1").contains("vif1"));
    wait("the port", || bed.reason(0) == "device_down");
    bed.join_bridge(1);
    bed.answers_soon(0);
    assert!(bed.reason(0).is_empty());
}

/// A guest is stopped under a flood: its ring of buffers stays full. No neighbour's frame comes late.
#[test]
fn a_guest_that_takes_no_frames_delays_no_other() {
    const FLOOD: usize = 200;
    requires!("ping", "ip");
    let mut bed = Bed::start(2);
    (0..2).for_each(|guest| bed.0.join(guest, &[]));
    (0..2).for_each(|guest| bed.answers_soon(guest));
    let (stopped, mac) = (bed.0.guests[0].ipv4, bed.0.guests[0].mac.clone());
    let entry = ["neigh", "replace", &stopped.to_string(), "lladdr", &mac, "dev", "br0"];
    bed.host().ip(&entry).unwrap();
    bed.0.stop(0);
    let flood = bed.host().thread(move || {
        let socket = UdpSocket::bind((HOST, 0)).unwrap();
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            for _ in 0..FLOOD {
                // A full queue drops.
                let _ = socket.send_to(&[0xa5; 1400], (stopped, 9));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    // Frames for the stopped guest wait for half a second, and those of the neighbour for none of it.
    let to = IpAddr::from(bed.0.guests[1].ipv4);
    let ping = lab::ping(bed.host(), to, 10, PING_PAUSE).unwrap();
    assert_eq!((ping.sent, ping.received), (10, 10));
    flood.unwrap().join().unwrap().unwrap();
    let dropped = bed.0.port(0)["drops"].clone();
    assert!(dropped.as_object().is_some_and(|drops| !drops.is_empty()), "{dropped}");
    bed.0.go_on(0);
    bed.answers_soon(0);
}

/// A reload makes the device of a guest that it adds, which the sandbox allows where there are such devices already.
#[test]
fn a_reload_adds_a_guest_with_a_device() {
    requires!("ping", "ip");
    let mut bed = Bed::start(2);
    bed.0.join(0, &[]);
    let file = bed.0.folder().join("pvnet.toml");
    let both = std::fs::read_to_string(&file).unwrap();
    let reload = |bed: &Bed, text: &str| {
        std::fs::write(&file, text).unwrap();
        lab::run(bed.0.command("reload"), LIMIT).unwrap();
    };
    let (one, _) = both.rsplit_once("[[guest]]").unwrap();
    reload(&bed, one);
    assert!(bed.link("vif2").contains("vif2"), "the operator's, who may want it for another guest");
    bed.host().ip(&["link", "delete", "vif2"]).unwrap();
    reload(&bed, &both);
    assert!(bed.link("vif2").contains("mtu 1442"), "{}", bed.link("vif2"));
    bed.join_bridge(2);
    bed.0.join(1, &[]);
    bed.answers_soon(1);
    bed.0.ping(0, 1);
}
