//! pvnet and the kernel's netback side by side: a guest with an interface of each, on one bridge.

use crate::Result;
use crate::host::{DomuConfig, Shell};

use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT, check};
use super::testbed::{BRIDGE, Facts, MTU, Testbed, address, mac, verdict};

/// The addresses of the guest and of the bridge, first on netback's interface, then on pvnet's.
const ADDRESSES: [(&str, &str); 2] = [("10.0.0.2", "10.0.0.1"), ("10.0.1.2", "10.0.1.1")];
/// How often the traffic goes through each interface.
const ROUNDS: usize = 5;
/// The size of a file each way, in MiB.
const FILE: u32 = 8;
const FILE_BYTES: f64 = FILE as f64 * 1_048_576.0;

pub(super) fn connected(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    testbed.backend.kill()?;
    testbed.host.run(
        "set -e\nmodprobe xen-netback\nsed -i '/^.xen./a backend = \"pvnet\"' /lab/pvnet.toml\n\
         ip addr add 10.0.1.1/24 dev xenbr0",
        COMMAND_TIMEOUT,
    )?;
    testbed.backend.restart()?;
    let config = DomuConfig::new("guest2").vif(testbed.vif(2, BRIDGE, ""));
    let guest = testbed.host.create(&config, BOOT_TIMEOUT)?;
    // Each interface answers for its own address only.
    guest.run(
        "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        COMMAND_TIMEOUT,
    )?;
    testbed.bring_up(&guest, 0, &address(2))?;
    let id = guest.id();
    testbed.host.run(&format!("pvnet attach {id} --vif 1 --mac {}", mac(12)), COMMAND_TIMEOUT)?;
    let device = format!("vif{id}.1");
    let there = format!("[ -e /sys/class/net/{device} ]");
    testbed.host.dom0().until(&device, &there, COMMAND_TIMEOUT)?;
    testbed
        .host
        .run(&format!("ip link set {device} master {BRIDGE} mtu {MTU} up"), COMMAND_TIMEOUT)?;
    guest.run(&format!("until ip link set eth1 mtu {MTU}; do sleep 0.1; done"), COMMAND_TIMEOUT)?;
    testbed.bring_up(&guest, 1, ADDRESSES[1].0)?;
    let mut wrong = Vec::new();
    let drivers = [(0, "vif"), (1, "tun")];
    let mut names = Vec::new();
    for (devid, expected) in drivers {
        let driver = format!("ethtool -i vif{id}.{devid} | sed -n 's/^driver: //p'");
        let driver = testbed.host.run(&driver, COMMAND_TIMEOUT)?.trim().to_owned();
        wrong.extend((driver != expected).then(|| format!("vif{id}.{devid} of {driver:?}")));
        wrong.extend(testbed.device(&guest, devid)?.wrong(&[("master", BRIDGE)]));
        names.push(format!("vif{id}.{devid} of {driver}"));
    }
    for (inner, outer) in ADDRESSES {
        let pings =
            [check::ping(guest.shell(), outer, 3)?, check::ping(testbed.shell(), inner, 3)?];
        wrong.extend(
            pings
                .iter()
                .any(|ping| ping.received < ping.sent)
                .then(|| format!("echoes of {inner}")),
        );
    }
    testbed.guests.push(guest);
    Ok(verdict(names.join(" and "), &wrong))
}

/// The traffic through one of the two interfaces.
#[derive(Default)]
struct Sums {
    rates: Vec<f64>,
    bytes: f64,
    frames: f64,
}

pub(super) fn compared(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let (guest, outer) = (&testbed.guests[0], testbed.shell());
    let inner = guest.shell();
    let mut sums = [Sums::default(), Sums::default()];
    let mut wrong = Vec::new();
    for _ in 0..ROUNDS {
        for ((sum, addresses), devid) in sums.iter_mut().zip(ADDRESSES).zip(0..) {
            let other = 1 - devid;
            let before = [devid, other].map(|devid| testbed.device(guest, devid));
            let same = check::same_file(inner, outer, addresses.1, FILE)?
                && check::same_file(outer, inner, addresses.0, FILE)?;
            let after = [devid, other].map(|devid| testbed.device(guest, devid));
            wrong.extend((!same).then(|| "a file is CORRUPTED".to_owned()));
            let [own, others] = [0, 1].map(|number| delta(&before[number], &after[number]));
            sum.bytes += own.0;
            sum.frames += own.1;
            if own.0 < FILE_BYTES || others.0 > FILE_BYTES / 100.0 {
                wrong.push(format!("{} and {} bytes", own.0, others.0));
            }
            sum.rates.push(rate(inner, outer, addresses.1)?);
        }
    }
    let [kernel, own] = sums;
    let mean = |sum: &Sums| sum.bytes / sum.frames.max(1.0);
    let mut ratios: Vec<f64> =
        own.rates.iter().zip(&kernel.rates).map(|(own, kernel)| own / kernel).collect();
    ratios.sort_by(f64::total_cmp);
    let seen = format!(
        "{} files arrived; netback {:.0} bytes per frame from the guest, pvnet {:.0}; pvnet's TCP throughput from the guest is {:.2} \
         of netback's ({:.2} to {:.2} in {ROUNDS} rounds)",
        ROUNDS * 4,
        mean(&kernel),
        mean(&own),
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
    );
    Ok(verdict(seen, &wrong))
}

/// The bytes and frames that a device got from the guest between two readings.
fn delta(before: &Result<Facts>, after: &Result<Facts>) -> (f64, f64) {
    let (Ok(before), Ok(after)) = (before, after) else { return (0.0, 0.0) };
    let of = |name: &str| after.number(name) - before.number(name);
    (of("bytes"), of("packets"))
}

/// TCP from the guest, in 10⁶ bits of payload per second.
fn rate(guest: &Shell, outer: &Shell, address: &str) -> Result<f64> {
    let server = outer.spawn(&format!("iperf3 -s -1 -B {address}"))?;
    check::listens(outer, 5201)?;
    let output = guest.sh(&format!("iperf3 --json -t 2 -c {address}"), COMMAND_TIMEOUT)?;
    let throughput = lab::Throughput::parse(&output.text, address)?;
    server.wait(COMMAND_TIMEOUT)?;
    Ok(throughput.mbps)
}
