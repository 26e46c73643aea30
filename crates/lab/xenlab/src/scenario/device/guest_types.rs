//! Guests that the processor virtualises.

use crate::Result;
use crate::host::GuestType;

use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT, check};
use super::testbed::{BRIDGE, BRIDGE_ADDRESS, Testbed, address, verdict};

const FILE: u32 = 1;

/// Network cards on the emulated PCI bus, and the drivers of the guest's interfaces.
const CARDS: &str = "grep -l ^0x0200 /sys/bus/pci/devices/*/class 2>/dev/null | wc -l\n\
     for link in /sys/class/net/eth*/device/driver; do basename $(readlink $link); done";

/// Emulators that have a network card for their guest.
const EMULATED: &str = "grep -l '[r]tl8139' /proc/[0-9]*/cmdline | wc -l";

pub(super) fn pvh(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    guest(testbed, GuestType::Pvh)
}

pub(super) fn hvm(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    guest(testbed, GuestType::Hvm)
}

/// The number of the guest that is iPXE, and what it does: it fetches a file, and then another one if it got that.
const IPXE: u8 = 9;
const IPXE_SCRIPT: &str = "#!ipxe
set net0/ip 10.0.0.9
set net0/netmask 255.255.255.0
ifopen net0
imgfetch http://10.0.0.1/file && imgfetch http://10.0.0.1/done
sleep 1000";
/// The configuration of a guest that iPXE boots.
const IPXE_CONFIGURATION: &str = r#"name="ipxe"
type="hvm"
kernel="/boot/ipxe.lkrn"
ramdisk="/run/www/script"
memory=64
vga="none"
vnc=0
serial="file:/run/ipxe.log"
on_poweroff="destroy"
on_reboot="destroy""#;

/// iPXE has a netfront of its own, for hosts whose guests boot from the network without an emulated card.
pub(super) fn ipxe(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let vif = testbed.vif(IPXE, BRIDGE, ",type=vif");
    let dom0 = testbed.shell();
    dom0.run(
        &format!(
            "set -e\nmkdir -p /run/www\ncat >/run/www/script <<'END'\n{IPXE_SCRIPT}\nEND\n\
             cat >/run/ipxe.cfg <<'END'\n{IPXE_CONFIGURATION}\nvif=['{vif}']\nEND\n\
             dd if=/dev/urandom of=/run/www/file bs=1M count={FILE} 2>/dev/null\necho done >/run/www/done"
        ),
        COMMAND_TIMEOUT,
    )?;
    let server = dom0.spawn("exec busybox httpd -f -vv -p 80 -h /run/www 2>&1")?;
    testbed.host.run("xl create -q /run/ipxe.cfg", COMMAND_TIMEOUT)?;
    let fetched = format!(
        "grep /done {0} || {{ cat {0}; tail -c 500 /run/ipxe.log; false; }}",
        server.file()
    );
    let fetched = dom0.until("iPXE's requests", &fetched, BOOT_TIMEOUT);
    let id = testbed.host.run("xl domid ipxe", COMMAND_TIMEOUT)?.trim().parse().unwrap_or(0);
    testbed.host.run("xl destroy ipxe", COMMAND_TIMEOUT)?;
    server.stop()?;
    fetched?;
    let left = testbed.left(id, 0)?;
    Ok(verdict(format!("a file of {FILE} MiB over HTTP; nothing is left"), &left))
}

fn guest(testbed: &mut Testbed<'_>, guest_type: GuestType) -> Result<(String, bool)> {
    let guest = testbed.create(2, guest_type, &[])?;
    let id = guest.id();
    let mut wrong =
        testbed.store(&guest, 0)?.wrong(&[("hotplug-status", "connected"), ("state", "4")]);
    wrong.extend(testbed.device(&guest, 0)?.wrong(&[
        ("master", BRIDGE),
        ("hook", "1"),
        ("carrier", "1"),
    ]));
    let cards = guest.run(CARDS, COMMAND_TIMEOUT)?;
    wrong.extend((cards.split_whitespace().ne(["0", "vif"])).then(|| format!("cards {cards:?}")));
    let emulated = testbed.shell().run(EMULATED, COMMAND_TIMEOUT)?.trim() == "1";
    wrong.extend((emulated != (guest_type == GuestType::Hvm)).then(|| "the emulator".to_owned()));
    let (inner, outer) = (guest.shell(), testbed.shell());
    let pings = [check::ping(inner, BRIDGE_ADDRESS, 5)?, check::ping(outer, &address(2), 5)?];
    let received: u64 = pings.iter().map(|ping| ping.received).sum();
    let files = check::same_file(inner, outer, BRIDGE_ADDRESS, FILE)?
        && check::same_file(outer, inner, &address(2), FILE)?;
    wrong.extend((received < 10 || !files).then(|| "frames".to_owned()));
    guest.destroy()?;
    wrong.extend(testbed.left(id, 0)?);
    let names = testbed.shell().run("ls /sys/class/net", COMMAND_TIMEOUT)?;
    wrong.extend(names.split_whitespace().filter(|name| name.ends_with("-emu")).map(str::to_owned));
    Ok(verdict(
        format!(
            "no card but its vif; {received} of 10 echoes; files arrive both ways; nothing is left"
        ),
        &wrong,
    ))
}
