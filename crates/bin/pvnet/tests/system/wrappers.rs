//! Guard, limit and capture, between a port and the switch.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::{Iperf, Process};

use crate::testbed::{Guest, LIMIT, Testbed, requires, wait};

/// A neighbour that nobody is. What is sent to it is flooded.
const NOBODY: (Ipv4Addr, &str) = (Ipv4Addr::new(10, 77, 1, 200), "02:00:00:00:01:c8");
const PAUSE: Duration = Duration::from_millis(50);

fn ip(guest: &Guest, arguments: &[&str]) {
    guest.namespace.ip(arguments).unwrap();
}

/// A ping that goes on until it is dropped.
fn endless_ping(from: &Guest, options: &[&str], to: IpAddr) -> Process {
    let mut ping = from.namespace.exec("ping").unwrap();
    ping.args(["-q", "-n", "-i", "0.01"]).args(options).arg(to.to_string());
    Process::capture(ping).unwrap()
}

/// Frames of a guest that were dropped for this reason.
fn drops(testbed: &Testbed, guest: usize, reason: &str) -> u64 {
    testbed.port(guest)["drops"][reason].as_u64().unwrap_or(0)
}

/// Makes a guest send with the MAC address of another, to a neighbour that nobody is.
fn forge_mac(testbed: &Testbed, forger: usize, victim: usize) -> Process {
    let (forger, victim) = (&testbed.guests[forger], &testbed.guests[victim]);
    let nobody = NOBODY.0.to_string();
    ip(forger, &["link", "set", "eth0", "address", &victim.mac]);
    ip(forger, &["neigh", "replace", &nobody, "lladdr", NOBODY.1, "dev", "eth0"]);
    endless_ping(forger, &[], NOBODY.0.into())
}

/// How many of twenty pings from one guest to another are answered.
fn answered(testbed: &Testbed, from: usize, to: usize) -> u64 {
    let (from, to) = (&testbed.guests[from], &testbed.guests[to]);
    lab::ping(&from.namespace, to.ipv4, 20, PAUSE).unwrap().received
}

#[test]
fn a_guest_that_forges_its_neighbours_mac_diverts_nothing() {
    requires!("ping");
    let (red, blue, forger) = (0, 1, 2);
    for (lines, guarded) in [("", true), ("guard = \"off\"\n", false)] {
        let mut testbed = Testbed::start_with(3, "workers = 1", lines);
        [red, blue, forger].into_iter().for_each(|guest| testbed.join(guest, &[]));
        testbed.ping(blue, red);
        let _forging = forge_mac(&testbed, forger, red);
        let dropped = || drops(&testbed, forger, "spoofed_mac");
        // Without the guard the frames pass, and the switch keeps the address where it is.
        let kept = || testbed.port(forger)["learning"]["refused_moves"].as_u64().unwrap();
        wait("forged frames", || dropped().max(kept()) > 50);
        assert_eq!(answered(&testbed, blue, red), 20);
        match guarded {
            true => assert!(dropped() > 50 && kept() == 0, "{}, {}", dropped(), kept()),
            false => assert!(dropped() == 0 && kept() > 50, "{}, {}", dropped(), kept()),
        }
    }
}

#[test]
fn a_guest_that_forges_its_neighbours_addresses_diverts_nothing() {
    requires!("ping");
    let (red, blue, forger) = (0, 1, 2);
    for (lines, guarded) in [("", true), ("guard = \"mac\"\n", false)] {
        let mut testbed = Testbed::start_with(3, "workers = 1", lines);
        [red, blue, forger].into_iter().for_each(|guest| testbed.join(guest, &[]));
        testbed.ping(blue, red);
        let [victim, peer, own] = [red, blue, forger].map(|guest| &testbed.guests[guest]);
        let [v4, v6] = [victim.ipv4.to_string(), victim.ipv6.to_string()];
        let nobody = NOBODY.0.to_string();
        ip(own, &["address", "add", &format!("{v4}/24"), "dev", "eth0"]);
        ip(own, &["-6", "address", "add", &format!("{v6}/64"), "dev", "eth0", "nodad"]);
        ip(own, &["neigh", "replace", &nobody, "lladdr", NOBODY.1, "dev", "eth0"]);
        // By default `pvnet guest` lets its stack ask with an interface's first address only.
        let mut command = own.namespace.exec("sh").unwrap();
        command.args(["-c", "echo 0 > /proc/sys/net/ipv4/conf/eth0/arp_announce"]);
        lab::run(command, LIMIT).unwrap();
        // Resolving the peer's address tells it, by ARP and ND, who has the source.
        let _forging = [
            endless_ping(own, &["-I", &v4], peer.ipv4.into()),
            endless_ping(own, &["-I", &v4], NOBODY.0.into()),
            endless_ping(own, &["-I", &v6], peer.ipv6.into()),
        ];
        let neighbour = |address: &str| {
            let entry = peer.namespace.ip(&["neigh", "show", address]).unwrap();
            entry.split_whitespace().nth(4).unwrap_or_default().to_owned()
        };
        if guarded {
            for reason in ["spoofed_arp", "spoofed_ipv4", "spoofed_ipv6"] {
                wait(reason, || drops(&testbed, forger, reason) > 0);
            }
            assert_eq!(
                [&v4, &v6].map(|address| neighbour(address)),
                [(); 2].map(|()| victim.mac.clone())
            );
            assert_eq!(answered(&testbed, blue, red), 20);
        } else {
            // The test would see it.
            for address in [&v4, &v6] {
                wait("the diversion", || neighbour(address) == own.mac);
            }
        }
    }
}

#[test]
fn a_port_carries_no_more_than_its_limit() {
    requires!("iperf3");
    const MBPS: f64 = 20.0;
    let (shaped, free, policed) = (0, 1, 2);
    let lines = |guest| match guest {
        0 => "limit = { ingress = { mbps = 20 } }\n",
        2 => "limit.egress = { mbps = 20 }\n",
        _ => "",
    };
    let mut testbed = Testbed::start_each(3, "workers = 1", lines);
    [shaped, free, policed].into_iter().for_each(|guest| testbed.join(guest, &[]));
    let mbps = |from: usize, to: usize| {
        let (from, to) = (&testbed.guests[from], &testbed.guests[to]);
        let iperf = Iperf::tcp(&from.namespace, &to.namespace, to.ipv4, 2);
        iperf.udp(60_000_000, 1400).run().map(|report| report.mbps / MBPS)
    };
    // A busy machine may carry less, once. Or it loses the datagram by which iperf3 begins, which is not sent again.
    for (from, to) in [(shaped, free), (free, policed)] {
        let rates: Vec<_> = (0..3).filter_map(|_| mbps(from, to).ok()).collect();
        assert!(rates.iter().all(|rate| *rate < 1.2), "{rates:?}");
        assert!(rates.iter().any(|rate| *rate > 0.3), "{rates:?}");
    }
    let other = || mbps(free, shaped).is_ok_and(|rate| rate > 1.2);
    assert!((0..3).any(|_| other()), "the limit holds for others too");
    // What is shaped waits; what is policed is dropped.
    assert_eq!(drops(&testbed, shaped, "rate_limit"), 0);
    assert!(drops(&testbed, policed, "rate_limit") + drops(&testbed, free, "rate_limit") > 0);
}

/// `pvnet capture` at a guest's port.
fn capture(testbed: &Testbed, guest: usize, arguments: &[&str]) -> Command {
    let mut command = testbed.command("capture");
    command.arg(testbed.guests[guest].namespace.name()).args(arguments);
    command
}

/// These fields of each packet of a file, as tshark reads it.
fn fields(file: &Path, fields: &[&str]) -> Vec<String> {
    let mut tshark = lab::command("tshark").unwrap();
    tshark.arg("-r").arg(file).args(["-T", "fields"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    lab::run(tshark, LIMIT).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn an_operator_can_forbid_captures() {
    requires!();
    let mut testbed = Testbed::start(1, "capture = false");
    testbed.join(0, &[]);
    let refused = lab::run(capture(&testbed, 0, &["-c", "1"]), LIMIT).unwrap_err().to_string();
    assert!(refused.contains("capture = false in [daemon]"), "{refused}");
}

#[test]
fn a_capture_is_a_file_that_tshark_reads() {
    requires!("ping", "tshark");
    let (red, blue) = (0, 1);
    let mut testbed = Testbed::start(2, "workers = 1");
    [red, blue].into_iter().for_each(|guest| testbed.join(guest, &[]));
    testbed.ping(red, blue);
    let file = testbed.folder().join("red.pcapng");
    let name = file.to_str().unwrap().to_owned();
    let peer = testbed.guests[blue].ipv4.into();
    {
        let _traffic = endless_ping(&testbed.guests[red], &[], peer);
        let mut ten =
            Process::capture(capture(&testbed, red, &["-w", &name, "-c", "10", "icmp"])).unwrap();
        ten.succeed(LIMIT).unwrap();
        assert!(ten.stderr().contains("10 frames captured, 0 lost"), "{}", ten.stderr());
        // Without a file: lines.
        let lines = lab::run(capture(&testbed, red, &["-c", "4", "icmp"]), LIMIT).unwrap();
        let parts = [
            "in  10.77.1.1 > 10.77.1.2 icmp echo request",
            "out 10.77.1.2 > 10.77.1.1 icmp echo reply",
        ];
        assert!(parts.iter().all(|part| lines.contains(part)), "{lines}");
        assert_eq!(lines.lines().count(), 4);
    }
    // Requests go in and replies go out. On a busy machine a reply may come behind the next request.
    let seen = fields(&file, &["icmp.type", "frame.packet_flags_direction"]);
    assert_eq!(seen.len(), 10, "{seen:?}");
    let [requests, replies] = [("8", "1"), ("0", "2")].map(|(kind, direction)| {
        let both = |line: &&String| line.starts_with(kind) && line.ends_with(direction);
        seen.iter().filter(both).count()
    });
    assert!(requests + replies == 10 && replies >= 3, "{seen:?}");

    // Ctrl-C ends a capture, and what was dropped has its reason.
    let mut dropped = Process::capture(capture(&testbed, red, &["-w", &name, "dropped"])).unwrap();
    wait("the start of the capture", || file.metadata().unwrap().len() < 500);
    let forging = forge_mac(&testbed, red, blue);
    wait("a dropped frame", || file.metadata().unwrap().len() > 500);
    assert!(dropped.stop().unwrap().success(), "{}", dropped.stderr());
    drop(forging);
    assert!(dropped.stderr().contains(" 0 lost"), "{}", dropped.stderr());
    let seen = fields(&file, &["frame.comment"]);
    assert!(
        !seen.is_empty() && seen.iter().all(|comment| comment == "dropped: spoofed_mac"),
        "{seen:?}"
    );
}

#[test]
fn a_capture_ends_with_its_port_and_a_wrong_one_says_why() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 1");
    testbed.join(0, &[]);
    let mut endless = Process::capture(capture(&testbed, 0, &[])).unwrap();
    let error = |guest: usize, arguments: &[&str]| {
        lab::run(capture(&testbed, guest, arguments), LIMIT).unwrap_err().to_string()
    };
    for (error, part) in [
        (error(1, &[]), "is not running; start it: `pvnet guest"),
        (error(0, &["icmp", "or"]), "or"),
        (error(0, &["-c", "none"]), "invalid digit"),
    ] {
        assert!(error.contains(part), "{error}");
    }
    let mut nowhere = testbed.command("capture");
    nowhere.arg("nowhere");
    let error = lab::run(nowhere, LIMIT).unwrap_err().to_string();
    let known = testbed.guests[0].namespace.name();
    assert!(error.contains("no port \"nowhere\"") && error.contains(known), "{error}");

    assert!(endless.ended().unwrap().is_none(), "{}", endless.stderr());
    testbed.leave(0);
    assert!(endless.wait(LIMIT).unwrap().success(), "{}", endless.stderr());
    testbed.join(0, &[]);
    let mut orphan = Process::capture(capture(&testbed, 0, &["arp"])).unwrap();
    // It captures once the daemon has answered it.
    std::thread::sleep(PAUSE * 10);
    assert!(testbed.daemon.stop().unwrap().success(), "{}", testbed.daemon.stderr());
    orphan.wait(LIMIT).unwrap();
}
