//! Addresses by DHCP, from busybox's client.

use crate::Result;
use crate::host::Shell;

use super::COMMAND_TIMEOUT;

/// The client's script, which sets a lease's address, MTU and router, as a distribution's would.
pub const SCRIPT: &str = r#"#!/bin/sh
set -e
ip link set "$interface" up
case "$1" in
bound | renew)
    ip address replace "$ip/$mask" dev "$interface"
    ip link set "$interface" mtu "$mtu"
    ip route replace default via "$router"
    ;;
esac
"#;

/// The client's arguments for one lease, within some seconds. The interface follows, then `-s` with the script's path.
pub const CLIENT: [&str; 11] =
    ["udhcpc", "-f", "-q", "-n", "-t", "10", "-T", "1", "-O", "mtu", "-i"];

/// Waits for an interface of a machine or a domain, and asks for its address.
pub fn ask(guest: &Shell, interface: &str) -> Result<()> {
    let client = CLIENT.join(" ");
    let script = format!(
        "until [ -e /sys/class/net/{interface} ]; do sleep 0.05; done\n\
         cat >/run/lease <<'END'\n{SCRIPT}END\nchmod 755 /run/lease\n{client} {interface} -s /run/lease"
    );
    guest.run(&script, COMMAND_TIMEOUT).map(drop)
}
