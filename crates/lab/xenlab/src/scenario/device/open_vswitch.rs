//! Guests in Open vSwitch, where Xen's `vif-openvswitch` puts their devices.

use crate::Result;
use crate::host::Domu;

use super::super::{COMMAND_TIMEOUT, check};
use super::restart;
use super::testbed::{SWITCH, SWITCH_ADDRESS, Testbed, device_name, mac, verdict};

/// The number of the guest's interface that is in the switch.
const DEVID: u32 = 1;
const ADDRESS: &str = "10.0.2.3";
const FILE: u32 = 4;

/// Starts Open vSwitch with the kernel's datapath. `crc32c_generic` is loaded by its name, because images have no
/// aliases of modules. Open vSwitch 3.1 gets no unknown frames if it starts in the first ten seconds after the boot.
const START: &str = r#"
set -e
modprobe -a crc32c_generic openvswitch
until read -r uptime _ </proc/uptime && [ "${uptime%.*}" -ge 12 ]; do sleep 0.5; done
mkdir -p /run/openvswitch /etc/openvswitch /var/log/openvswitch
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /etc/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach
ovs-vsctl --no-wait init
/usr/lib/openvswitch-switch/ovs-vswitchd --pidfile --detach
ovs-vsctl --timeout=60 add-br ovsbr0
ip addr add 10.0.2.1/24 dev ovsbr0
ip link set ovsbr0 up
"#;

/// Starts Open vSwitch in pvnet's domain, which is dom0.
pub(super) fn start(testbed: &Testbed<'_>) -> Result<()> {
    testbed.shell().run(START, COMMAND_TIMEOUT).map(drop)
}

pub(super) fn connected(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let guest = &testbed.guests[1];
    testbed.bring_up(guest, DEVID, ADDRESS)?;
    let mut wrong = testbed.store(guest, DEVID)?.wrong(&[
        ("script", "/etc/xen/scripts/vif-openvswitch"),
        ("hotplug-status", "connected"),
        ("state", "4"),
    ]);
    let (name, mac) = (device_name(guest, DEVID), mac(13));
    let ids = format!("ovs-vsctl port-to-br {name} && ovs-vsctl get interface {name} external_ids");
    let ids = testbed.shell().run(&ids, COMMAND_TIMEOUT)?;
    let expected = [
        SWITCH.to_owned(),
        format!("attached-mac=\"{mac}\""),
        format!("xen-vm-name={}", guest.name()),
    ];
    wrong.extend(expected.into_iter().filter(|word| !ids.contains(word)));
    let (inner, outer) = (guest.shell(), testbed.shell());
    let pings = [check::ping(inner, SWITCH_ADDRESS, 5)?, check::ping(outer, ADDRESS, 5)?];
    let files = check::same_file(inner, outer, SWITCH_ADDRESS, FILE)?
        && check::same_file(outer, inner, ADDRESS, FILE)?;
    if pings.iter().any(|ping| ping.received < ping.sent) || !files {
        wrong.push("frames".to_owned());
    }
    let received: u64 = pings.iter().map(|ping| ping.received).sum();
    Ok(verdict(
        format!("{name} in {SWITCH} with its ids; {received} of 10 echoes; files arrive both ways"),
        &wrong,
    ))
}

pub(super) fn kill(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let before = port(testbed, &testbed.guests[1])?;
    let (from, to) = (testbed.guests[1].shell().clone(), testbed.shell().clone());
    let same = restart::during_a_restart(testbed, &from, &to, SWITCH_ADDRESS)?;
    let after = port(testbed, &testbed.guests[1])?;
    let seen = format!("the file arrived; port {before} before, port {after} after");
    Ok((seen, same && before == after && before.parse().is_ok_and(|port: i32| port > 0)))
}

/// The number of the interface's port.
fn port(testbed: &Testbed<'_>, guest: &Domu) -> Result<String> {
    let get = format!("ovs-vsctl get interface {} ofport", device_name(guest, DEVID));
    Ok(testbed.shell().run(&get, COMMAND_TIMEOUT)?.trim().to_owned())
}
