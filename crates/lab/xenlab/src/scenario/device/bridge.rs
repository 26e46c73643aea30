//! Guests on a Linux bridge.

use crate::Result;
use crate::host::{GuestType, Shell};

use super::super::{COMMAND_TIMEOUT, check};
use super::testbed::{
    BRIDGE, BRIDGE_ADDRESS, MTU, QUEUES, SWITCH, Testbed, address, device_name, verdict,
};

/// The size of files, in MiB.
const FILE: u32 = 4;
/// Echoes on each path.
const ECHOES: u32 = 3;
/// Bytes. If frames are longer on average, they were not segmented.
const LONGEST: f64 = 1514.0;

/// Creates two guests. With pvnet in dom0, the second one also has an interface in Open vSwitch.
pub(super) fn create(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut second = Vec::new();
    if testbed.backend.domain().is_none() {
        super::open_vswitch::start(testbed)?;
        second.push(testbed.vif(13, SWITCH, ",script=vif-openvswitch"));
    }
    for (number, more) in [(2, &[][..]), (3, &second)] {
        let guest = testbed.create(number, GuestType::Pv, more)?;
        testbed.guests.push(guest);
    }
    Ok(("two guests".to_owned(), testbed.guests.len() == 2))
}

pub(super) fn connected(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mtu = MTU.to_string();
    let (mut wrong, mut names) = (Vec::new(), Vec::new());
    for guest in &testbed.guests {
        let store = testbed.store(guest, 0)?;
        wrong.extend(store.wrong(&[
            ("script", "/etc/xen/scripts/vif-bridge"),
            ("hotplug-status", "connected"),
            ("state", "4"),
            ("mtu-announced", &mtu),
        ]));
        let device = testbed.device(guest, 0)?;
        wrong.extend(device.wrong(&[
            ("mtu", &mtu),
            ("master", BRIDGE),
            ("address", "fe:ff:ff:ff:ff:ff"),
            ("carrier", "1"),
            ("hook", "1"),
        ]));
        names.push(device_name(guest, 0));
    }
    Ok(verdict(format!("{} in {BRIDGE}, MTU {mtu}", names.join(" and ")), &wrong))
}

pub(super) fn reachable(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let outer = testbed.shell();
    let [one, two] = [2, 3].map(address);
    let [first, second] = [0, 1].map(|number: usize| testbed.guests[number].shell());
    let (mut sent, mut received) = (0, 0);
    // The longest packet has 28 bytes of headers.
    let longest = format!("-M do -s {}", MTU - 28);
    for (from, to) in [
        (first, two.as_str()),
        (second, &one),
        (first, BRIDGE_ADDRESS),
        (second, BRIDGE_ADDRESS),
        (outer, &one),
        (outer, &two),
        (first, &format!("{longest} {two}")),
        (outer, &format!("{longest} {one}")),
    ] {
        let ping = check::ping(from, to, ECHOES)?;
        (sent, received) = (sent + ping.sent, received + ping.received);
    }
    let files = files(first, second, &two)?
        & files(second, outer, BRIDGE_ADDRESS)?
        & files(outer, first, &one)?;
    let same = if files { "the same" } else { "CORRUPTED" };
    let seen =
        format!("{received} of {sent} echoes on 8 paths, also of {MTU} bytes; three files: {same}");
    Ok((seen, received == sent && files))
}

fn files(from: &Shell, to: &Shell, address: &str) -> Result<bool> {
    check::same_file(from, to, address, FILE)
}

pub(super) fn offloads(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let guest = &testbed.guests[0];
    let mut wrong = testbed.store(guest, 0)?.wrong(&[("negotiated", QUEUES)]);
    let before = testbed.device(guest, 0)?;
    wrong.extend(before.wrong(&[("queues", QUEUES)]));
    let name = device_name(guest, 0);
    let features = testbed.shell().run(&format!("ethtool -k {name}"), COMMAND_TIMEOUT)?;
    let on = check::switched_on(&features);
    let expected = ["tx-checksumming", "scatter-gather", "tcp-segmentation-offload"];
    let off = expected.iter().filter(|name| !on.iter().any(|other| other == *name));
    wrong.extend(off.map(|name| format!("{name} is off")));
    let same = files(guest.shell(), testbed.guests[1].shell(), &address(3))?;
    let after = testbed.device(guest, 0)?;
    let delta = |name: &str| after.number(name) - before.number(name);
    let mean = delta("bytes") / delta("packets").max(1.0);
    if !same || mean <= LONGEST {
        wrong.push("segmented, or corrupted".to_owned());
    }
    let seen = format!(
        "{QUEUES} queues; {}; {mean:.0} bytes per frame from the guest",
        expected.join(", ")
    );
    Ok(verdict(seen, &wrong))
}
