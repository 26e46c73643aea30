//! Guests of VLANs, and ports that change theirs.

use std::time::Duration;

use lab::Namespace;

use crate::change;
use crate::testbed::{Testbed, requires};

/// Gives a guest an interface of a VLAN, with the guest's addresses on it instead of on eth0.
fn tag(testbed: &Testbed, guest: usize, vlan: &str) {
    let guest = &testbed.guests[guest];
    let ip = |arguments: &[&str]| guest.namespace.ip(arguments).unwrap();
    let device = format!("eth0.{vlan}");
    ip(&["link", "add", "link", "eth0", "name", &device, "type", "vlan", "id", vlan]);
    ip(&["address", "flush", "dev", "eth0"]);
    let [v4, v6] = [format!("{}/24", guest.ipv4), format!("{}/64", guest.ipv6)];
    ip(&["address", "add", &v4, "dev", &device]);
    ip(&["-6", "address", "add", &v6, "dev", &device, "nodad"]);
    ip(&["link", "set", &device, "up"]);
}

/// Whether the kernel has devices for VLANs (module 8021q).
fn has_vlan_devices() -> bool {
    let namespace = Namespace::create("pvt").unwrap();
    namespace.ip(&["link", "add", "link", "lo", "name", "v", "type", "vlan", "id", "10"]).is_ok()
}

/// Where the kernel has no devices for VLANs, the second guest is one without tags too.
#[test]
fn linux_guests_meet_in_a_vlan_with_all_offloads() {
    requires!("ping");
    let tags = has_vlan_devices();
    let lines = |guest| match guest {
        0 => "vlan = 10\n",
        1 if tags => "trunk = [10, 20]\n",
        1 => "vlan = 10\n",
        2 => "vlan = 20\n",
        _ => "",
    };
    let mut testbed = Testbed::start_each(4, "workers = 1", lines);
    (0..4).for_each(|guest| testbed.join(guest, &[]));
    if tags {
        tag(&testbed, 1, "10");
    }
    testbed.ping(0, 1);
    // Partial checksums and segments of 64 KiB, with a tag that comes on the way there and goes on the way back.
    testbed.transfer(0, 1, 16 << 20);
    testbed.transfer(1, 0, 16 << 20);
    let sent = testbed.port(0)["ingress"].clone();
    assert!(sent["bytes"].as_u64() > sent["frames"].as_u64().map(|frames| frames * 4000), "{sent}");
    let answers = |from: usize, to: usize| {
        let [from, to] = [from, to].map(|guest| &testbed.guests[guest]);
        lab::ping(&from.namespace, to.ipv4, 2, Duration::from_millis(100)).unwrap().received
    };
    assert_eq!([answers(0, 2), answers(0, 3), answers(3, 2)], [0; 3]);
    // In place.
    let red = testbed.guests[0].namespace.name();
    change(&testbed, &["port", "set", red, "vlan=20"]).unwrap();
    assert_eq!([answers(0, 1), answers(0, 2)], [0, 2]);
    for guest in [0, 2] {
        let name = testbed.guests[guest].namespace.name();
        change(&testbed, &["port", "set", name, "isolated=true"]).unwrap();
    }
    assert_eq!(answers(0, 2), 0);
    change(&testbed, &["port", "set", red, "vlan=10", "isolated=false"]).unwrap();
    assert_eq!(answers(0, 1), 2);
    let (key, vlans) =
        if tags { ("trunk", serde_json::json!([10, 20])) } else { ("vlan", 10.into()) };
    assert_eq!(testbed.port(1)["vlans"][key], vlans);
}
