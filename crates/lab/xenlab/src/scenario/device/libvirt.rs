//! libvirt instead of `xl`: it calls the same library of the toolstack, and that the same scripts.

use crate::Result;
use crate::host::{Domu, DomuConfig, interface_xml};

use super::super::check::{self, Transfer};
use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT};
use super::lifecycle;
use super::testbed::{BRIDGE, Testbed, address, verdict};

/// There is no policy daemon to ask about root.
const START: &str = r#"
set -e
mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt
cat >/etc/libvirt/libvirtd.conf <<'END'
auth_unix_ro = "none"
auth_unix_rw = "none"
END
libvirtd --daemon
"#;
const VIRSH: &str = "virsh --quiet --connect xen:///system";

/// Two guests.
pub(super) fn create(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let dom0 = testbed.host.dom0();
    dom0.run(START, COMMAND_TIMEOUT)?;
    dom0.until("libvirt", &format!("{VIRSH} list"), COMMAND_TIMEOUT)?;
    for number in [2, 3] {
        let guest = start(testbed, number)?;
        testbed.guests.push(guest);
    }
    let listed = dom0.run(&format!("{VIRSH} list --name --state-running"), COMMAND_TIMEOUT)?;
    let running =
        testbed.guests.iter().filter(|guest| listed.lines().any(|name| name == guest.name()));
    let running = running.count();
    let version = dom0.run("virsh --version", COMMAND_TIMEOUT)?;
    Ok((format!("libvirt {}: {running} guests run", version.trim()), running == 2))
}

fn start(testbed: &Testbed<'_>, number: u8) -> Result<Domu> {
    let name = format!("guest{number}");
    let config = DomuConfig::new(&name).vif(testbed.vif(number, BRIDGE, ""));
    let script = format!(
        "set -e\ncat >{name}.xml <<'END'\n{}END\n{VIRSH} define {name}.xml\n{VIRSH} start {name}\nxl domid {name}",
        config.xml()
    );
    let guest = testbed.host.start(&name, &script, BOOT_TIMEOUT)?;
    testbed.bring_up(&guest, 0, &address(number))?;
    Ok(guest)
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
