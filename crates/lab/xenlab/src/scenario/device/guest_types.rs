//! Guests that the processor virtualises.

use crate::Result;
use crate::host::GuestType;

use super::super::{COMMAND_TIMEOUT, check};
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
