//! TCP segments that come one by one, to guests that take unsegmented frames.

use std::net::Ipv4Addr;

use lab::{Namespace, Offloads};

use crate::MIB;
use crate::testbed::{LIMIT, Testbed, pvnet, requires, wait};

/// Frames that the kernel of a guest has received.
fn received(testbed: &Testbed, guest: usize) -> u64 {
    let mut command = testbed.guests[guest].namespace.exec("cat").unwrap();
    command.arg("/sys/class/net/eth0/statistics/rx_packets");
    lab::run(command, LIMIT).unwrap().trim().parse().unwrap()
}

/// Frames that the switch delivered to a guest, and of them segments that were merged, and frames that they became.
fn delivered(testbed: &Testbed, guest: usize) -> [u64; 3] {
    let port = testbed.port(guest);
    let count = |place: &str| port.pointer(place).map_or(0, |count| count.as_u64().unwrap());
    ["/egress/frames", "/gro/segments", "/gro/frames"].map(count)
}

/// Frames that the switch delivered to a guest, merged ones as one, and that its kernel has not received.
fn missing(testbed: &Testbed, guest: usize) -> u64 {
    let [delivered, segments, frames] = delivered(testbed, guest);
    delivered.saturating_sub(received(testbed, guest) + segments - frames)
}

/// Checks that a guest has received far fewer frames than there were segments for it.
fn assert_merged(testbed: &Testbed, guest: usize) {
    // In this order: a frame that comes in between is in what was delivered alone.
    let received = received(testbed, guest);
    let [delivered, segments, frames] = delivered(testbed, guest);
    assert!(frames > 0 && segments >= 2 * frames, "{segments} segments in {frames} frames");
    assert!(received + segments - frames <= delivered, "{received} of {delivered} frames");
    assert!(2 * received < delivered, "{received} of {delivered} frames");
}

#[test]
fn segments_of_a_guest_without_tso_are_merged_for_one_with_it() {
    requires!("cat");
    let mut testbed = Testbed::start_each(2, "workers = 1", |guest| match guest {
        0 => "tcp_segmentation_offload = false\n",
        _ => "gro = true\n",
    });
    [0, 1].into_iter().for_each(|guest| testbed.join(guest, &[]));
    testbed.transfer(0, 1, 8 * MIB);
    assert_merged(&testbed, 1);
    assert_eq!(delivered(&testbed, 0)[2], 0, "it does not take them");
}

#[test]
fn segments_from_a_wire_are_merged_unless_the_operator_says_otherwise() {
    requires!("cat", "ethtool", "ip");
    let [outside, host] = [(); 2].map(|()| Namespace::create("pvt").unwrap());
    let peer = ["peer", "name", "eth0", "netns", outside.name()];
    host.ip(&[&["link", "add", "nic0", "type", "veth"], &peer[..]].concat()).unwrap();
    outside.ip(&["address", "add", "10.77.1.254/24", "dev", "eth0"]).unwrap();
    outside.ip(&["link", "set", "eth0", "up"]).unwrap();
    // As a wire: whole checksums, one frame for each segment.
    Offloads::NONE.apply(&outside, "eth0").unwrap();
    let uplink = format!(
        "workers = 1\n[[uplink]]\nname = \"out\"\nkind = \"af-packet\"\ndevice = \"nic0\"\nnamespace = \"{}\"\n",
        host.name()
    );
    let mut testbed = Testbed::start_each(1, &uplink, |_| "gro = true\n");
    testbed.join(0, &[]);
    let (inside, address) = (testbed.guests[0].namespace.name().to_owned(), testbed.guests[0].ipv4);
    let transfer = |address: Ipv4Addr| {
        let to = &testbed.guests[0].namespace;
        lab::transfer_file(&outside, to, address, 8 * MIB, 3).unwrap();
    };
    transfer(address);
    assert_merged(&testbed, 0);

    let mut command = pvnet();
    command.args(["port", "set", "--directory"]).arg(testbed.folder()).args([&inside, "gro=false"]);
    lab::run(command, LIMIT).unwrap();
    let missing_before = missing(&testbed, 0);
    let [before, merged, _] = delivered(&testbed, 0);
    transfer(address);
    let [after, still_merged, _] = delivered(&testbed, 0);
    assert_eq!(merged, still_merged);
    assert!(after - before >= 8 * MIB / 1460);
    // The last frames are in the guest's ring for a moment after the switch has counted them.
    wait("every frame to be received", || missing(&testbed, 0) <= missing_before);
}
