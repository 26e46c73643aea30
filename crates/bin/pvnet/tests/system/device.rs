//! Uplinks over a NIC: one end of a veth pair, whose other end is outside.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Namespace, Offloads, Process};

use crate::MIB;
use crate::direct::{direct, queue_of, wait_for_queue};
use crate::testbed::{Guest, LIMIT, PING_PAUSE, Testbed, pvnet, requires, wait};

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 254);
/// The datagrams of a flood from outside in a millisecond: at most 360 Mb/s. Without a pace, transfers to neighbours stand still for seconds on a machine with two
/// slow CPUs: their frames wait in the same queue of the kernel.
const FLOOD: u32 = 32;

/// The namespace outside, and the one of the NIC.
struct Wire {
    outside: Namespace,
    host: Namespace,
}

impl Wire {
    fn new() -> Self {
        let [outside, host] = [(); 2].map(|()| Namespace::create("pvt").unwrap());
        let peer = ["peer", "name", "eth0", "netns", outside.name()];
        host.ip(&[&["link", "add", "nic0", "type", "veth"], &peer[..]].concat()).unwrap();
        outside.ip(&["address", "add", &format!("{OUTSIDE}/24"), "dev", "eth0"]).unwrap();
        outside.ip(&["link", "set", "eth0", "up"]).unwrap();
        Self { outside, host }
    }

    /// Lines of a configuration: an uplink of this kind.
    fn uplink(&self, kind: &str, lines: &str) -> String {
        format!(
            "workers = 1\n[[uplink]]\nname = \"out\"\nkind = \"{kind}\"\ndevice = \"nic0\"\n\
             namespace = \"{}\"\n{lines}",
            self.host.name()
        )
    }

    /// Frames on a wire have finished checksums. Only AF_XDP sees the difference: it cannot say that one is not finished.
    fn finish_checksums(&self) {
        Offloads { csum: false, ..Offloads::ALL }.apply(&self.outside, "eth0").unwrap();
    }

    fn ping(&self, to: Ipv4Addr) {
        let ping = lab::ping(&self.outside, to, 3, PING_PAUSE).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3), "{to}");
    }

    /// Sends datagrams to an address until the flood is dropped, also when nobody has it.
    fn flood(&self, guest: &Guest) -> Flood {
        let to = guest.ipv4;
        let entry = ["neigh", "replace", &to.to_string(), "lladdr", &guest.mac, "dev", "eth0"];
        self.outside.ip(&entry).unwrap();
        Flood::start(&self.outside, to, Duration::from_millis(1))
    }
}

struct Flood {
    stop: Arc<AtomicBool>,
}

impl Flood {
    /// Sends from a namespace, with a pause after every [`FLOOD`] datagrams.
    fn start(from: &Namespace, to: Ipv4Addr, pause: Duration) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let ends = stop.clone();
        let send = move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..FLOOD {
                    // A full queue drops.
                    let _ = socket.send_to(&[0xa5; 1400], (to, 9));
                }
                std::thread::sleep(pause);
            }
            Ok(())
        };
        from.thread(send).unwrap();
        Self { stop }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// All guests get the same bytes with each kind, and those with a queue of their own get them without a copy.
#[test]
fn a_nic_is_an_uplink() {
    requires!("ping", "ip", "ethtool");
    for (kind, lines, queues) in [
        ("macvtap", "", 0),
        ("af-packet", "", 0),
        ("af-xdp", "", 0),
        ("macvtap", "queues = \"per-guest\"\n", 2),
        ("af-xdp", "queues = \"per-guest\"\n", 1),
    ] {
        let wire = Wire::new();
        if kind == "af-xdp" {
            wire.finish_checksums();
        }
        let of_guest = |guest| if guest < queues { "rx = \"direct\"\n" } else { "" };
        let mut testbed = Testbed::start_each(3, &wire.uplink(kind, lines), of_guest);
        (0..3).for_each(|guest| testbed.join(guest, &[]));
        (0..queues).for_each(|guest| wait_for_queue(&testbed, guest));
        for guest in 0..3 {
            let Guest { namespace, ipv4, .. } = &testbed.guests[guest];
            wire.ping(*ipv4);
            lab::transfer_file(&wire.outside, namespace, *ipv4, 4 * MIB, 1).unwrap();
            lab::transfer_file(namespace, &wire.outside, OUTSIDE, 2 * MIB, 2).unwrap();
        }
        testbed.ping(0, 1);
        testbed.transfer(2, 0, 2 * MIB);
        for guest in 0..queues {
            let queue = queue_of(&testbed, guest).unwrap();
            assert!(queue["direct"].as_u64().unwrap() > 60, "{kind}: {queue}");
            assert_eq!(queue["misdirected"], 0, "{kind}: {queue}");
        }
        for guest in 0..3 {
            let port = testbed.port(guest);
            assert!(port["drops"]["memory_fault"].is_null(), "{kind}: {port}");
        }
        assert!(testbed.daemon.stop().unwrap().success(), "{kind}: {}", testbed.daemon.stderr());
        let left = wire.host.ip(&["-d", "link"]).unwrap();
        assert!(!left.contains("macvtap") && !left.contains("xdp"), "{kind}: {left}");
    }
}

/// There is one queue. Its guest is killed under a flood, and another gets the queue while the flood goes on. A neighbour is
/// reached as before, and no frame of the first guest gets into a buffer of the second.
#[test]
fn the_queue_of_a_guest_that_is_killed_under_load_goes_to_another() {
    requires!("ping", "ip", "ethtool");
    for kind in ["macvtap", "af-xdp"] {
        let wire = Wire::new();
        wire.finish_checksums();
        let uplink = wire.uplink(kind, "queues = \"per-guest\"\nguest_queues = 1\n");
        let lines = |guest| if guest < 2 { "rx = \"direct\"\n" } else { "" };
        let mut testbed = Testbed::start_each(3, &uplink, lines);
        testbed.join(0, &[]);
        wait_for_queue(&testbed, 0);
        testbed.join(1, &[]);
        testbed.join(2, &[]);
        assert!(queue_of(&testbed, 1).is_none(), "{kind}: there is one queue");
        // The host knows their addresses: its questions would be lost in the flood.
        testbed.guests[1..].iter().for_each(|guest| wire.ping(guest.ipv4));
        let flood = wire.flood(&testbed.guests[0]);
        wait("direct frames", || direct(&testbed, 0) > 1000);
        testbed.kill(0);
        wait_for_queue(&testbed, 1);
        for guest in [1, 2] {
            let Guest { namespace, ipv4, .. } = &testbed.guests[guest];
            lab::transfer_file(&wire.outside, namespace, *ipv4, 2 * MIB, 3).unwrap();
        }
        let queue = queue_of(&testbed, 1).unwrap();
        assert_eq!(queue["misdirected"], 0, "{kind}: {queue}");
        // The first comes back, and waits for its queue until the second goes.
        testbed.join(0, &[]);
        testbed.leave(1);
        wait_for_queue(&testbed, 0);
        let before = direct(&testbed, 0);
        wait("direct frames again", || direct(&testbed, 0) > before + 100);
        drop(flood);
    }
}

/// A guest that is stopped takes none of its frames. The kernel drops those that find no buffer, and a neighbour does not notice.
#[test]
fn a_guest_that_takes_no_frames_delays_no_other() {
    requires!("ping", "ip", "ethtool");
    let wire = Wire::new();
    wire.finish_checksums();
    let uplink = wire.uplink("af-xdp", "queues = \"per-guest\"\n");
    let lines = |guest| if guest == 0 { "rx = \"direct\"\n" } else { "" };
    let mut testbed = Testbed::start_each(2, &uplink, lines);
    (0..2).for_each(|guest| testbed.join(guest, &[]));
    wait_for_queue(&testbed, 0);
    testbed.stop(0);
    let flood = wire.flood(&testbed.guests[0]);
    wait("frames without a buffer", || {
        queue_of(&testbed, 0).unwrap()["dropped"].as_u64() > Some(1000)
    });
    let Guest { namespace, ipv4, .. } = &testbed.guests[1];
    wire.ping(*ipv4);
    lab::transfer_file(&wire.outside, namespace, *ipv4, MIB, 4).unwrap();
    drop(flood);
    testbed.go_on(0);
    wait("the guest's return", || {
        let to = testbed.guests[0].ipv4;
        lab::ping(&wire.outside, to, 1, PING_PAUSE).is_ok_and(|ping| ping.received == 1)
    });
}

/// A guest that changes its address is reached the ordinary way.
#[test]
fn a_guest_with_another_address_gets_copies() {
    requires!("ping", "ip", "ethtool");
    for kind in ["macvtap", "af-xdp"] {
        let wire = Wire::new();
        wire.finish_checksums();
        let uplink = wire.uplink(kind, "queues = \"per-guest\"\n");
        let mut testbed = Testbed::start_with(1, &uplink, "rx = \"direct\"\nguard = \"off\"\n");
        testbed.join(0, &[]);
        wait_for_queue(&testbed, 0);
        let Guest { namespace, ipv4, .. } = &testbed.guests[0];
        wire.ping(*ipv4);
        let before = direct(&testbed, 0);
        assert!(before > 0, "{kind}");
        namespace.ip(&["link", "set", "eth0", "address", "02:00:00:00:77:77"]).unwrap();
        wire.outside.ip(&["neigh", "flush", "dev", "eth0"]).unwrap();
        lab::transfer_file(&wire.outside, namespace, *ipv4, MIB, 1).unwrap();
        assert_eq!(direct(&testbed, 0), before, "{kind}");
    }
}

/// What stands in the way of an uplink is in the daemon's error, with the next step.
#[test]
fn a_nic_that_cannot_be_an_uplink_says_why() {
    requires!("ip");
    let wire = Wire::new();
    wire.host.ip(&["link", "add", "br0", "type", "bridge"]).unwrap();
    wire.host.ip(&["link", "set", "nic0", "master", "br0"]).unwrap();
    let long = "link add long0 mtu 9000 type veth peer name long1";
    wire.host.ip(&long.split(' ').collect::<Vec<_>>()).unwrap();
    let folder = lab::TempDir::new().unwrap();
    let per_guest = "queues = \"per-guest\"\nguest_queues = 7\n";
    for (uplink, parts) in [
        (wire.uplink("macvtap", ""), &["no macvtap over nic0", "nomaster"][..]),
        (wire.uplink("af-xdp", per_guest), &["receive queue", "ethtool -L", "guest_queues"]),
        (wire.uplink("af-packet", "").replace("nic0", "nic7"), &["no interface nic7", "ip link"]),
        (wire.uplink("af-xdp", "").replace("nic0", "long0"), &["MTU of 9000", "3818", "af-packet"]),
    ] {
        let file = folder.path().join("pvnet.toml");
        let directory = folder.path().display();
        std::fs::write(&file, format!("[daemon]\ndirectory = \"{directory}\"\n{uplink}")).unwrap();
        let mut command = pvnet();
        command.arg("run").arg("--config").arg(&file);
        let mut process = Process::capture(command).unwrap();
        assert_eq!(process.wait(LIMIT).unwrap().code(), Some(1));
        let message = process.stderr();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

/// No read of a macvtap, a packet socket or an AF_XDP socket says that the NIC under it was deleted.
#[test]
fn an_uplink_whose_nic_is_deleted_is_down_with_the_reason() {
    requires!("ip");
    for (kind, device) in [("macvtap", "mvt-nic0"), ("af-packet", "nic0"), ("af-xdp", "nic0")] {
        let wire = Wire::new();
        let mut testbed = Testbed::start(1, &wire.uplink(kind, ""));
        let uplink = || {
            let port = testbed.named("out").unwrap();
            (port["state"] == "up", port["reason"].to_string())
        };
        assert!(uplink().0, "{kind}");
        wire.host.ip(&["link", "set", "nic0", "down"]).unwrap();
        wire.host.ip(&["link", "set", "nic0", "up"]).unwrap();
        wire.host.ip(&["link", "delete", "nic0"]).unwrap();
        wait("the failure", || !uplink().0);
        let (_, reason) = uplink();
        assert!(reason.contains("device_failed") && reason.contains(device), "{kind}: {reason}");
        assert!(testbed.daemon.stop().unwrap().success(), "{kind}: {}", testbed.daemon.stderr());
    }
}

/// The host's stack gets none of the frames of a NIC that is taken over, and gets them again after the daemon has ended. A daemon
/// that is killed leaves nothing behind that keeps the next one from it.
#[test]
fn a_nic_that_is_taken_over_is_free_again_when_the_daemon_ends() {
    requires!("ping", "ip", "ethtool");
    let wire = Wire::new();
    wire.finish_checksums();
    let of_host = Ipv4Addr::new(10, 77, 1, 253);
    wire.host.ip(&["address", "add", &format!("{of_host}/24"), "dev", "nic0"]).unwrap();
    wire.host.ip(&["link", "set", "nic0", "up"]).unwrap();
    wire.ping(of_host);
    let mut testbed = Testbed::start(1, &wire.uplink("af-xdp", ""));
    testbed.join(0, &["--rejoin", "30"]);
    let guest = testbed.guests[0].ipv4;
    wire.ping(guest);
    assert!(lab::ping(&wire.outside, of_host, 1, PING_PAUSE).is_ok_and(|ping| ping.received == 0));
    let sockets = testbed.named("out").unwrap()["xdp"].clone();
    assert_eq!(sockets, serde_json::json!([{ "queue": 0, "zero_copy": false, "dropped": 0 }]));
    for _ in 0..2 {
        testbed.daemon.kill().unwrap();
        testbed.restart();
        wait("the guest's return", || {
            lab::ping(&wire.outside, guest, 1, PING_PAUSE).is_ok_and(|ping| ping.received == 1)
        });
        lab::transfer_file(&wire.outside, &testbed.guests[0].namespace, guest, MIB, 5).unwrap();
    }
    assert!(testbed.daemon.stop().unwrap().success(), "{}", testbed.daemon.stderr());
    wire.ping(of_host);
}

/// Frames of receive queues that a NIC gets after it was taken over go past pvnet, which says so.
#[test]
fn queues_that_a_nic_gets_later_are_reported() {
    requires!("ip", "ethtool");
    let wire = Wire::new();
    let peer = ["peer", "name", "nic3", "numrxqueues", "2", "numtxqueues", "1"];
    let add = ["link", "add", "nic2", "numrxqueues", "2", "numtxqueues", "2", "type", "veth"];
    wire.host.ip(&[&add[..], &peer[..]].concat()).unwrap();
    let channels = |count| {
        let mut command = wire.host.exec("ethtool").unwrap();
        command.args(["-L", "nic2", "rx", count, "tx", count]);
        lab::run(command, LIMIT).unwrap();
    };
    channels("1");
    let testbed = Testbed::start(0, &wire.uplink("af-xdp", "").replace("nic0", "nic2"));
    let reason = || testbed.named("out").unwrap()["reason"].to_string();
    assert_eq!(reason(), "null");
    channels("2");
    wait("the complaint", || reason().contains("1 receive queue(s) more"));
    assert!(reason().contains("ethtool -L nic2") && testbed.named("out").unwrap()["state"] == "up");
    channels("1");
    wait("its end", || reason() == "null");
}

/// A guest that sends more than the wire takes has its share of the NIC's buffers, and no more.
#[test]
fn a_guest_that_floods_the_wire_delays_no_other() {
    requires!("ping", "ip", "ethtool");
    let wire = Wire::new();
    wire.finish_checksums();
    let mut testbed = Testbed::start(2, &wire.uplink("af-xdp", ""));
    (0..2).for_each(|guest| testbed.join(guest, &[]));
    let flood = Flood::start(&testbed.guests[0].namespace, OUTSIDE, Duration::ZERO);
    let sent = || testbed.port(0)["ingress"]["frames"].as_u64().unwrap();
    wait("the flood", || sent() > 10_000);
    let Guest { namespace, ipv4, .. } = &testbed.guests[1];
    lab::transfer_file(&wire.outside, namespace, *ipv4, MIB, 6).unwrap();
    lab::transfer_file(namespace, &wire.outside, OUTSIDE, MIB, 7).unwrap();
    // Lateness, not loss alone: each answer within the ping's own limit.
    wire.ping(*ipv4);
    drop(flood);
}
