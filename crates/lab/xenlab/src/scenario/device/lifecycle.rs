//! Interfaces and guests come and go, and must leave nothing.

use crate::Result;

use super::super::check::{self, Transfer};
use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT};
use super::testbed::{BRIDGE, BRIDGE_ADDRESS, MTU, Testbed, address, remains, verdict};

/// The size of files, in MiB.
const FILE: u32 = 1;

/// Counts what a daemon holds: descriptors, folders of ledgers, and devices in its domain.
const HELD: &str = "ls /proc/$(pidof pvnet)/fd | wc -l; ls /run/pvnet/rings 2>/dev/null | wc -l; \
     ls -d /sys/class/net/vif* 2>/dev/null | wc -l";

pub(super) fn hot_plug(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let (id, vif) = (testbed.guests[0].id(), testbed.vif(12, BRIDGE, "").replace(',', " "));
    let attach = format!("xl network-attach {id} {vif}");
    come_and_go(testbed, &attach, &format!("xl network-detach {id} 1 2>&1"))
}

/// Attaches and detaches a second interface of a guest, by two commands of its toolstack. The second must print nothing.
pub(super) fn come_and_go(
    testbed: &Testbed<'_>,
    attach: &str,
    detach: &str,
) -> Result<(String, bool)> {
    let guest = &testbed.guests[0];
    let id = guest.id();
    testbed.host.run(attach, COMMAND_TIMEOUT)?;
    testbed.bring_up(guest, 1, "10.0.1.2")?;
    let mut wrong =
        testbed.store(guest, 1)?.wrong(&[("hotplug-status", "connected"), ("state", "4")]);
    wrong.extend(testbed.device(guest, 1)?.wrong(&[
        ("master", BRIDGE),
        ("hook", "1"),
        ("carrier", "1"),
    ]));
    let said = testbed.host.run(detach, COMMAND_TIMEOUT)?;
    wrong.extend(said.lines().map(str::to_owned));
    wrong.extend(testbed.left(id, 1)?);
    let ping = check::ping(guest.shell(), BRIDGE_ADDRESS, 3)?;
    wrong.extend((ping.received < ping.sent).then(|| "the other interface".to_owned()));
    Ok(verdict(
        format!("vif{id}.1 was in {BRIDGE}, then gone from there and from the store"),
        &wrong,
    ))
}

/// libxl keeps an interface whose script has failed until somebody detaches it.
pub(super) fn failing_script(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let id = testbed.guests[0].id();
    let vif = testbed.vif(14, "nobr", "").replace(',', " ");
    let attach = format!("xl network-attach {id} {vif} 2>&1; echo status $?");
    let attach = testbed.host.run(&attach, COMMAND_TIMEOUT)?;
    let mut wrong = Vec::new();
    if attach.contains("status 0") || !attach.contains("nobr") {
        wrong.push(format!("xl says {attach:?}"));
    }
    let error = format!("xenstore-read /local/domain/0/backend/vif/{id}/1/hotplug-error");
    let error = testbed.host.sh(&error, COMMAND_TIMEOUT)?.text;
    let state = testbed.store(&testbed.guests[0], 1)?;
    wrong.extend(state.wrong(&[("state", "2"), ("hotplug-status", "error")]));
    // The script fails at detaching too.
    testbed.host.sh(&format!("xl network-detach {id} 1"), COMMAND_TIMEOUT)?;
    wrong.extend(testbed.left(id, 1)?);
    let ping = check::ping(testbed.guests[0].shell(), BRIDGE_ADDRESS, 3)?;
    wrong.extend((ping.received < ping.sent).then(|| "the other interface".to_owned()));
    let seen = format!("{:?}; not connected, and gone after xl network-detach", error.trim());
    Ok(verdict(seen, &wrong))
}

pub(super) fn reboot(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let old = testbed.guests[0].id();
    testbed.guests[0].reboot(BOOT_TIMEOUT)?;
    testbed.bring_up(&testbed.guests[0], 0, &address(2))?;
    moved(testbed, old)
}

/// The restored domain has a new interface, and the guest's addresses.
pub(super) fn save_and_restore(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let old = testbed.guests[0].id();
    testbed.guests[0].save_and_restore()?;
    testbed.until_connected(&testbed.guests[0], 0)?;
    moved(testbed, old)
}

/// Checks the first guest's interface after its domain id has changed.
fn moved(testbed: &Testbed<'_>, old: u32) -> Result<(String, bool)> {
    let guest = &testbed.guests[0];
    let mut wrong = testbed.left(old, 0)?;
    wrong.extend((guest.id() == old).then(|| "the same domain".to_owned()));
    let mtu = MTU.to_string();
    wrong.extend(
        testbed.store(guest, 0)?.wrong(&[("hotplug-status", "connected"), ("mtu-announced", &mtu)]),
    );
    wrong.extend(testbed.device(guest, 0)?.wrong(&[
        ("master", BRIDGE),
        ("mtu", &mtu),
        ("hook", "1"),
        ("carrier", "1"),
    ]));
    let ping = check::ping(testbed.shell(), &address(2), 3)?;
    wrong.extend((ping.received < ping.sent).then(|| "echoes are lost".to_owned()));
    let files = check::same_file(guest.shell(), testbed.guests[1].shell(), &address(3), FILE)?
        && check::same_file(testbed.shell(), guest.shell(), &address(2), FILE)?;
    wrong.extend((!files).then(|| "a file is CORRUPTED".to_owned()));
    let seen = format!("vif{old}.0 is gone, vif{}.0 is in {BRIDGE}; files arrive", guest.id());
    Ok(verdict(seen, &wrong))
}

pub(super) fn destroy(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let guest = testbed.guests.remove(0);
    let id = guest.id();
    let transfer = Transfer::begin(testbed.shell(), guest.shell(), &address(2))?;
    guest.destroy()?;
    transfer.stop()?;
    let mut wrong = testbed.left(id, 0)?;
    let ping = check::ping(testbed.shell(), &address(3), 3)?;
    wrong.extend((ping.received < ping.sent).then(|| "the other guest".to_owned()));
    Ok(verdict(format!("vif{id}.0 is gone; the other guest answers"), &wrong))
}

pub(super) fn shutdown(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut wrong = Vec::new();
    for guest in std::mem::take(&mut testbed.guests) {
        let id = guest.id();
        guest.shutdown()?;
        wrong.extend(testbed.left(id, 0)?);
    }
    if testbed.backend.domain().is_none() {
        wrong.extend(remains(testbed.shell(), "ovs-vsctl list-ports ovsbr0")?);
    }
    wrong.extend(remains(testbed.host.dom0(), "xl list | grep null")?);
    let held = testbed.shell().run(HELD, COMMAND_TIMEOUT)?;
    // Compare with a new daemon, which has served nobody.
    testbed.backend.restart()?;
    let fresh = testbed.shell().run(HELD, COMMAND_TIMEOUT)?;
    if held != fresh {
        wrong.push(format!("held {held:?} and not {fresh:?}"));
    }
    let held = held.split_whitespace().collect::<Vec<_>>().join(", ");
    Ok(verdict(format!("descriptors, ledgers and devices as of a new daemon: {held}"), &wrong))
}
