//! What the configurations of the experiments' daemons have in common.

use std::fmt::Write as _;
use std::path::Path;

use super::server::Machine;

/// The table `[daemon]`.
pub fn daemon(folder: &Path) -> String {
    // TOML quotes the folder's name, which may have any character.
    let folder = toml::Value::from(folder.to_string_lossy().into_owned());
    // On one CPU nothing arrives while the worker polls, so it sleeps at once.
    format!("[daemon]\ndirectory = {folder}\nworkers = 1\nmeter = true\npoll_us = 0\n")
}

/// The daemon, its NICs, and guests with an interface on each. `nic` gets a NIC's number, `interface` also the guest's,
/// from 1.
pub fn with_guests(
    folder: &Path,
    machine: &Machine<'_>,
    nic: impl Fn(u8) -> String,
    interface: impl Fn(u8, u8) -> String,
) -> String {
    let mut text = daemon(folder);
    text.extend((0..machine.nics).map(nic));
    for (number, name) in (1..).zip(machine.guests) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n[[guest]]\nname = \"{name}\"\nmemory_mib = 32\n");
        text.extend((0..machine.nics).map(|nic| interface(nic, number)));
    }
    text
}

/// The MAC address of a guest on a NIC.
pub fn mac(nic: u8, guest: u8) -> String {
    format!("02:70:76:6e:{:02x}:{guest:02x}", 70 + nic)
}

/// An uplink on the driver domain's context of a card, with further lines.
pub fn uplink_on_card(nic: u8, card: &str, more: &str) -> String {
    let mac = mac(nic, 0xfe);
    format!(
        "\n[[uplink]]\nname = \"nic{nic}\"\nkind = \"cdna\"\nnic = \"{card}\"\nmac = \"{mac}\"\n{more}"
    )
}
