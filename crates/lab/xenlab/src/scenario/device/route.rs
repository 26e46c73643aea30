//! A guest behind a route, which Xen's `vif-route` makes.
//!
//! ```text
//!  first guest ── vif ─── dom0 routes, and answers ARP ─── ovsbr0 ── second guest
//!  10.0.2.2                                               10.0.2.1   10.0.2.3
//! ```

use crate::Result;
use crate::host::Domu;

use super::super::{COMMAND_TIMEOUT, check};
use super::restart;
use super::testbed::{Facts, SWITCH, SWITCH_ADDRESS, Testbed, device_name, mac, verdict};

/// The number of the guest's interface that is routed.
const DEVID: u32 = 1;
/// The addresses of the guest and of the one behind dom0. They are in one subnet, so each asks for the other by ARP.
const ADDRESS: &str = "10.0.2.2";
const BEHIND: &str = "10.0.2.3";
/// The MTU that the toolstack gives the device, in bytes. The script does not set it, nor tell it to the guest.
const MTU: &str = "1300";
const ECHOES: usize = 5;
const FILE: u32 = 4;

/// Settings of a host with routed guests: it forwards, and answers ARP for them on its own network.
const ROUTER: &str = "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.ovsbr0.proxy_arp=1";

pub(super) fn connected(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let guest = &testbed.guests[0];
    testbed.shell().run(ROUTER, COMMAND_TIMEOUT)?;
    let vif =
        format!("mac={} script=vif-route ip={ADDRESS} gatewaydev={SWITCH} mtu={MTU}", mac(15));
    testbed.host.run(&format!("xl network-attach {} {vif}", guest.id()), COMMAND_TIMEOUT)?;
    testbed.bring_up(guest, DEVID, ADDRESS)?;
    guest.run(&format!("ip link set eth{DEVID} mtu {MTU}"), COMMAND_TIMEOUT)?;
    let mut wrong = testbed.store(guest, DEVID)?.wrong(&[
        ("script", "/etc/xen/scripts/vif-route"),
        ("hotplug-status", "connected"),
        ("state", "4"),
    ]);
    wrong.extend(as_routed(testbed, guest)?);
    let echoes = echoes(guest)?;
    wrong.extend((echoes < ECHOES).then(|| format!("{echoes} echoes came through a router")));
    let (inner, behind) = (guest.shell(), testbed.guests[1].shell());
    let pings = [check::ping(behind, ADDRESS, 5)?, check::ping(inner, SWITCH_ADDRESS, 5)?];
    let files = check::same_file(inner, behind, BEHIND, FILE)?
        && check::same_file(behind, inner, ADDRESS, FILE)?;
    if pings.iter().any(|ping| ping.received < ping.sent) || !files {
        wrong.push("frames".to_owned());
    }
    let seen = format!(
        "{} has dom0's address, answers ARP, and has the route to {ADDRESS}; echoes and files pass a router both ways",
        device_name(guest, DEVID)
    );
    Ok(verdict(seen, &wrong))
}

/// Restarts the daemon during a file, then removes the interface.
pub(super) fn kill(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let before = testbed.device(&testbed.guests[0], DEVID)?;
    let (from, to) = (testbed.guests[0].shell().clone(), testbed.guests[1].shell().clone());
    let same = restart::during_a_restart(testbed, &from, &to, BEHIND)?;
    let guest = &testbed.guests[0];
    let mut wrong = as_routed(testbed, guest)?;
    wrong.extend((!same).then(|| "the file is CORRUPTED".to_owned()));
    wrong.extend(testbed.device(guest, DEVID)?.wrong(&[("ifindex", before.get("ifindex"))]));
    let echoes = echoes(guest)?;
    wrong.extend((echoes < ECHOES).then(|| format!("{echoes} echoes came after it")));
    let id = guest.id();
    let detach = format!("xl network-detach {id} {DEVID} 2>&1; ip route show {ADDRESS}");
    wrong.extend(testbed.host.run(&detach, COMMAND_TIMEOUT)?.lines().map(str::to_owned));
    wrong.extend(testbed.left(id, DEVID)?);
    let seen = format!(
        "the file arrived; vif{id}.{DEVID} kept its address and its route, which went with the interface"
    );
    Ok(verdict(seen, &wrong))
}

/// The differences from what the script and the toolstack have set.
fn as_routed(testbed: &Testbed<'_>, guest: &Domu) -> Result<Vec<String>> {
    let name = device_name(guest, DEVID);
    let mut wrong = testbed.device(guest, DEVID)?.wrong(&[
        ("mtu", MTU),
        ("master", ""),
        ("carrier", "1"),
        ("hook", "1"),
    ]);
    let set = Facts::read(
        testbed.shell(),
        &format!(
            "echo address=$(ip -4 -o addr show dev {name} | awk '{{ print $4 }}')\n\
             echo proxy_arp=$(cat /proc/sys/net/ipv4/conf/{name}/proxy_arp)\n\
             echo route=$(ip route show dev {name})"
        ),
    )?;
    wrong.extend(set.wrong(&[
        ("address", &format!("{SWITCH_ADDRESS}/32")),
        ("proxy_arp", "1"),
        ("route", &format!("{ADDRESS} scope link src {SWITCH_ADDRESS} metric 2")),
    ]));
    Ok(wrong)
}

/// How many echoes from behind dom0 have passed exactly one router.
fn echoes(guest: &Domu) -> Result<usize> {
    let ping = format!("ping -n -W 1 -i 0.2 -c {ECHOES} {BEHIND}");
    let text = guest.sh(&ping, COMMAND_TIMEOUT)?.text;
    Ok(text.lines().filter(|line| line.contains(" ttl=63 ")).count())
}
