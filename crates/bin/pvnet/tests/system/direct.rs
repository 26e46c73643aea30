//! Frames from an uplink that are put straight into guests' buffers.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use lab::{Namespace, Process};
use serde_json::Value;

use crate::MIB;
use crate::testbed::{Guest, PING_PAUSE, Testbed, pvnet, requires, wait};

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 254);

/// A tap in `outside` with queues for guests.
fn tap_uplink(outside: &Namespace, lines: &str) -> String {
    format!(
        "workers = 1\n[[uplink]]\nname = \"out\"\ntap = \"out0\"\nnamespace = \"{}\"\n\
         addresses = [\"{OUTSIDE}/24\"]\nqueues = \"per-guest\"\n{lines}",
        outside.name()
    )
}

/// The uplink's queue that a guest has.
pub fn queue_of(testbed: &Testbed, guest: usize) -> Option<Value> {
    let uplink = testbed.named("out").unwrap();
    let name = testbed.guests[guest].namespace.name();
    uplink["guest_queues"].as_array()?.iter().find(|queue| queue["guest"] == name).cloned()
}

pub fn direct(testbed: &Testbed, guest: usize) -> u64 {
    queue_of(testbed, guest).map_or(0, |queue| queue["direct"].as_u64().unwrap())
}

pub fn wait_for_queue(testbed: &Testbed, guest: usize) {
    wait("a queue for the guest", || queue_of(testbed, guest).is_some());
}

/// Pings from outside over IPv4, which begins with a broadcast, and over IPv6, which begins with a multicast.
fn ping_from(outside: &Namespace, to: Ipv4Addr) {
    let ping = lab::ping(outside, to, 3, PING_PAUSE).unwrap();
    assert_eq!((ping.sent, ping.received), (3, 3), "{to}");
}

/// Two guests have a queue and one has none. All get the same bytes, and only the first two without a copy.
#[test]
fn frames_from_a_tap_go_into_the_buffers_of_guests() {
    requires!("ping", "ip");
    for (large, flags) in [(true, &[][..]), (false, &[]), (true, &["--no-tso"])] {
        let outside = Namespace::create("pvt").unwrap();
        let uplink = tap_uplink(&outside, &format!("large_receive = {large}\n"));
        let lines = |guest| if guest < 2 { "rx = \"direct\"\n" } else { "" };
        let mut testbed = Testbed::start_each(3, &uplink, lines);
        (0..3).for_each(|guest| testbed.join(guest, flags));
        (0..2).for_each(|guest| wait_for_queue(&testbed, guest));
        for guest in 0..3 {
            let Guest { namespace, ipv4, .. } = &testbed.guests[guest];
            ping_from(&outside, *ipv4);
            lab::transfer_file(&outside, namespace, *ipv4, 6 * MIB, 1).unwrap();
            lab::transfer_file(namespace, &outside, OUTSIDE, 4 * MIB, 2).unwrap();
        }
        // Frames of other guests go into the same rings.
        testbed.ping(0, 1);
        testbed.transfer(0, 1, 4 * MIB);
        testbed.transfer(2, 0, 4 * MIB);
        // A guest that cannot take what the tap may bring gets copies.
        let is_direct = flags.is_empty();
        for guest in 0..2 {
            let queue = queue_of(&testbed, guest).unwrap();
            assert_eq!(queue["direct"].as_u64().unwrap() > 90, is_direct, "{large} {queue}");
            assert_eq!(queue["misdirected"], 0, "{queue}");
            let copied = queue["copied"]["interface"].as_u64().unwrap_or(0);
            assert_eq!(copied > 90, !is_direct, "{queue}");
        }
        assert!(queue_of(&testbed, 2).is_none());
        for guest in 0..3 {
            let port = testbed.port(guest);
            assert!(port["drops"]["memory_fault"].is_null(), "{port}");
        }
    }
}

/// With one queue for two guests, the second gets it when the first has been killed under load. Frames for the first still
/// come in the queue meanwhile, and none of them reaches the second's buffers.
#[test]
fn the_queue_of_a_guest_that_dies_under_load_goes_to_another() {
    requires!("ping", "ip");
    let outside = Namespace::create("pvt").unwrap();
    let uplink = tap_uplink(&outside, "guest_queues = 1\n");
    let mut testbed = Testbed::start_with(2, &uplink, "rx = \"direct\"\n");
    testbed.join(0, &[]);
    wait_for_queue(&testbed, 0);
    testbed.join(1, &[]);
    let [first, second] = [0, 1].map(|n| (testbed.guests[n].ipv4, testbed.guests[n].mac.clone()));
    // Without a neighbour entry the flood would end with the guest.
    let entry = ["neigh", "add", &first.0.to_string(), "lladdr", &first.1, "dev", "out0"];
    outside.ip(&entry).unwrap();
    ping_from(&outside, second.0);
    assert!(queue_of(&testbed, 1).is_none(), "there is one queue");
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let ends = stop.clone();
    let flood = outside
        .thread(move || {
            let socket = UdpSocket::bind((OUTSIDE, 0)).unwrap();
            while !ends.load(Ordering::Relaxed) {
                // A full queue drops.
                let _ = socket.send_to(&[0xa5; 1400], (first.0, 9));
            }
            Ok(())
        })
        .unwrap();
    wait("direct frames", || direct(&testbed, 0) > 1000);
    testbed.kill(0);
    wait_for_queue(&testbed, 1);
    let Guest { namespace, ipv4, .. } = &testbed.guests[1];
    lab::transfer_file(&outside, namespace, *ipv4, 4 * MIB, 3).unwrap();
    let queue = queue_of(&testbed, 1).unwrap();
    assert!(queue["direct"].as_u64().unwrap() > 100, "{queue}");
    assert_eq!(queue["misdirected"], 0, "{queue}");
    // The first comes back, and waits for its queue until the second goes.
    testbed.join(0, &[]);
    testbed.leave(1);
    wait_for_queue(&testbed, 0);
    let before = direct(&testbed, 0);
    wait("direct frames again", || direct(&testbed, 0) > before + 100);
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap().unwrap();
}

/// A guest that changes its address is reached the ordinary way.
#[test]
fn a_guest_with_another_address_gets_copies() {
    requires!("ping", "ip");
    let outside = Namespace::create("pvt").unwrap();
    let mut testbed =
        Testbed::start_with(1, &tap_uplink(&outside, ""), "rx = \"direct\"\nguard = \"off\"\n");
    testbed.join(0, &[]);
    wait_for_queue(&testbed, 0);
    let Guest { namespace, ipv4, .. } = &testbed.guests[0];
    ping_from(&outside, *ipv4);
    let before = direct(&testbed, 0);
    namespace.ip(&["link", "set", "eth0", "address", "02:00:00:00:77:77"]).unwrap();
    outside.ip(&["neigh", "flush", "dev", "out0"]).unwrap();
    lab::transfer_file(&outside, namespace, *ipv4, MIB, 1).unwrap();
    assert_eq!(direct(&testbed, 0), before);
}

/// Captures and limits see frames that nobody copies.
#[test]
fn a_limit_holds_for_frames_in_lent_buffers() {
    requires!("ping", "ip");
    let outside = Namespace::create("pvt").unwrap();
    let lines = "rx = \"direct\"\nlimit.egress = { packets = 500, burst_packets = 128 }\n";
    let mut testbed = Testbed::start_with(1, &tap_uplink(&outside, ""), lines);
    testbed.join(0, &[]);
    wait_for_queue(&testbed, 0);
    let to = testbed.guests[0].ipv4;
    ping_from(&outside, to);
    let dropped = || testbed.port(0)["drops"]["rate_limit"].as_u64().unwrap();
    // The tap's queue has fewer than these.
    wait("dropped frames", || {
        let sent = outside.thread(move || {
            let socket = UdpSocket::bind((OUTSIDE, 0)).unwrap();
            (0..2000).for_each(|_| drop(socket.send_to(&[1; 1000], (to, 9))));
            Ok(())
        });
        sent.unwrap().join().unwrap().unwrap();
        dropped() > 1000
    });
    assert!(direct(&testbed, 0) > 1000);
    // Buffers of dropped frames came back.
    wait("the last frames", || {
        let before = dropped();
        std::thread::sleep(std::time::Duration::from_secs(1));
        dropped() == before
    });
    ping_from(&outside, to);
}

/// The same with a card, whose contexts are the queues.
#[test]
fn frames_from_a_card_go_into_the_buffers_of_guests() {
    requires!("ping", "ip");
    for protection in
        ["\"hypervisor\"", "\"none\"", "{ iommu = \"static\" }", "{ iommu = \"strict\" }"]
    {
        let outside = Namespace::create("pvt").unwrap();
        let uplink = format!(
            "workers = 1\n[[nic]]\nname = \"card0\"\nprotection = {protection}\n\
             wire = {{ tap = \"out0\", namespace = \"{}\", addresses = [\"{OUTSIDE}/24\"] }}\n\
             [[uplink]]\nname = \"out\"\nkind = \"cdna\"\nnic = \"card0\"\nmac = \"02:00:00:00:01:fe\"\n\
             queues = \"per-guest\"\n",
            outside.name()
        );
        let lines = |guest| if guest < 2 { "rx = \"direct\"\n" } else { "" };
        let mut testbed = Testbed::start_each(3, &uplink, lines);
        let card = |testbed: &Testbed| {
            let mut command = pvnet();
            command.args(["nic", "--directory"]).arg(testbed.folder()).arg("card0");
            Process::capture(command).unwrap()
        };
        let mut first = card(&testbed);
        (0..3).for_each(|guest| testbed.join(guest, &[]));
        let transfers = |testbed: &Testbed| {
            for guest in 0..3 {
                let Guest { namespace, ipv4, .. } = &testbed.guests[guest];
                wait("the first answer", || {
                    lab::ping(&outside, *ipv4, 1, PING_PAUSE).is_ok_and(|ping| ping.received == 1)
                });
                ping_from(&outside, *ipv4);
                lab::transfer_file(&outside, namespace, *ipv4, 4 * MIB, 1).unwrap();
                lab::transfer_file(namespace, &outside, OUTSIDE, 2 * MIB, 2).unwrap();
            }
            testbed.transfer(0, 1, 2 * MIB);
            testbed.transfer(2, 0, 2 * MIB);
        };
        transfers(&testbed);
        for guest in 0..2 {
            assert!(direct(&testbed, guest) > 60, "{protection}: {:?}", queue_of(&testbed, guest));
        }
        // The card is replaced, a guest dies and starts again.
        assert!(first.stop().unwrap().success(), "{}", first.stderr());
        let _second = card(&testbed);
        testbed.kill(1);
        testbed.join(1, &[]);
        transfers(&testbed);
        assert!(direct(&testbed, 1) > 60, "{protection}: {:?}", queue_of(&testbed, 1));
        testbed.leave(0);
    }
}
