//! libvirt instead of `xl`. It calls the toolstack's library too, so the scripts are the same.

use crate::Result;
use crate::host::{Domu, DomuConfig, interface_xml};

use super::super::check::{self, Transfer};
use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT};
use super::lifecycle;
use super::testbed::{BRIDGE, Testbed, address, verdict};

/// Starts libvirt without authentication: there is no policy daemon to ask about root.
const START: &str = r#"
set -e
mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt
cat >/etc/libvirt/libvirtd.conf <<'END'
auth_unix_ro = "none"
auth_unix_rw = "none"
END
libvirtd --daemon
"#;
/// Replaces the configuration that has a device for each interface.
const OWN_SWITCH: &str = r#"
cat >/lab/pvnet.toml <<'END'
[daemon]
platform = "xen"

[[uplink]]
name = "host"
tap = "pvnet0"
addresses = ["10.0.3.1/24"]
END
"#;
const UPLINK_ADDRESS: &str = "10.0.3.1";
const GUEST_ADDRESS: &str = "10.0.3.2";
const VIRSH: &str = "virsh --quiet --connect xen:///system";

/// Starts libvirt and two guests.
pub(super) fn create(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let dom0 = testbed.host.dom0();
    dom0.run(START, COMMAND_TIMEOUT)?;
    dom0.until("libvirt", &format!("{VIRSH} list"), COMMAND_TIMEOUT)?;
    for number in [2, 3] {
        let guest = start(testbed, number, &testbed.vif(number, BRIDGE, ""), &address(number))?;
        testbed.guests.push(guest);
    }
    let listed = dom0.run(&format!("{VIRSH} list --name --state-running"), COMMAND_TIMEOUT)?;
    let running =
        testbed.guests.iter().filter(|guest| listed.lines().any(|name| name == guest.name()));
    let running = running.count();
    let version = dom0.run("virsh --version", COMMAND_TIMEOUT)?;
    Ok((format!("libvirt {}: {running} guests run", version.trim()), running == 2))
}

fn start(testbed: &Testbed<'_>, number: u8, vif: &str, address: &str) -> Result<Domu> {
    let name = format!("guest{number}");
    let config = DomuConfig::new(&name).vif(vif);
    let script = format!(
        "set -e\ncat >{name}.xml <<'END'\n{}END\n{VIRSH} define {name}.xml\n{VIRSH} start {name}\nxl domid {name}",
        config.xml()
    );
    let guest = testbed.host.start(&name, &script, BOOT_TIMEOUT)?;
    testbed.bring_up(&guest, 0, address)?;
    Ok(guest)
}

/// A guest on pvnet's own switch, without a device or a bridge: its script has nothing to do.
pub(super) fn own_switch(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    testbed.backend.kill()?;
    testbed.shell().run(OWN_SWITCH, COMMAND_TIMEOUT)?;
    testbed.backend.restart()?;
    let vif = testbed.interface(4, ",script=/bin/true");
    let guest = start(testbed, 4, &vif, GUEST_ADDRESS)?;
    let outer = testbed.shell();
    let ping = check::ping(guest.shell(), UPLINK_ADDRESS, 5)?;
    let files = check::same_file(guest.shell(), outer, UPLINK_ADDRESS, 1)?
        & check::same_file(outer, guest.shell(), GUEST_ADDRESS, 1)?;
    let (id, name) = (guest.id(), guest.name());
    let end = format!("{VIRSH} destroy {name} && {VIRSH} undefine {name} >/dev/null");
    testbed.host.run(&end, COMMAND_TIMEOUT)?;
    let wrong = testbed.left(id, 0)?;
    let same = if files { "files arrive both ways" } else { "files are CORRUPTED" };
    let (seen, right) =
        verdict(format!("{} of {} echoes; {same}", ping.received, ping.sent), &wrong);
    Ok((seen, right && files && ping.received == ping.sent))
}

pub(super) fn hot_plug(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let name = testbed.guests[0].name();
    let xml = interface_xml(&testbed.vif(12, BRIDGE, ",script=vif-bridge"));
    let attach =
        format!("cat >nic.xml <<'END'\n{xml}END\n{VIRSH} attach-device {name} nic.xml --live");
    let detach = format!("{VIRSH} detach-device {name} nic.xml --live >/dev/null");
    lifecycle::come_and_go(testbed, &attach, &detach)
}

pub(super) fn destroy(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let guest = testbed.guests.remove(0);
    let (id, name) = (guest.id(), guest.name());
    let transfer = Transfer::begin(testbed.shell(), guest.shell(), &address(2))?;
    let end =
        format!("{VIRSH} destroy {name} && {VIRSH} domstate {name} && {VIRSH} undefine {name}");
    let state = testbed.host.run(&end, COMMAND_TIMEOUT)?;
    transfer.stop()?;
    let mut wrong = testbed.left(id, 0)?;
    wrong.extend((!state.contains("shut off")).then_some(state));
    let ping = check::ping(testbed.shell(), &address(3), 3)?;
    wrong.extend((ping.received < ping.sent).then(|| "the other guest".to_owned()));
    Ok(verdict(format!("vif{id}.0 is gone; the other guest answers"), &wrong))
}
