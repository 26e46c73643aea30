//! Guests as logical ports of OVN, with the kernel's datapath.

use lab::documents::shell_block;

use crate::Result;
use crate::host::Domu;

use super::super::{COMMAND_TIMEOUT, check, lease};
use super::testbed::{Testbed, device_name, mac, verdict};

const PAGE: &str = include_str!("../../../../../../docs/ovn.md");

/// An interface in the integration bridge.
struct Interface {
    guest: usize,
    /// The number of the guest's interface.
    devid: u32,
    /// The number of its logical switch.
    switch: u8,
    /// The number of its MAC address.
    number: u8,
    /// The toolstack's script for it.
    script: &'static str,
}

/// An operator sets the `iface-id` of the first one, a script that of the second one.
const INTERFACES: [Interface; 2] = [
    Interface { guest: 0, devid: 1, switch: 3, number: 15, script: "vif-openvswitch" },
    Interface { guest: 1, devid: 2, switch: 4, number: 16, script: "vif-ovn" },
];
const MTU: u32 = 1442;
const FILE: u32 = 4;
/// Waits until the host has applied the northbound database.
const SYNC: &str = "ovn-nbctl --timeout=60 --wait=hv sync";

/// Starts OVN's central part, and dom0 as its host. Open vSwitch runs already.
const START: &str = r#"
set -e
mkdir -p /run/ovn /etc/ovn /var/log/ovn /var/lib/ovn
for name in nb sb; do
    ovsdb-tool create /etc/ovn/$name.db /usr/share/ovn/ovn-$name.ovsschema
    ovsdb-server /etc/ovn/$name.db --remote=punix:/run/ovn/ovn${name}_db.sock --unixctl=/run/ovn/$name.ctl --pidfile=/run/ovn/$name.pid --detach
done
ovn-northd --pidfile --detach
ovs-vsctl set open . external_ids:system-id=dom0 external_ids:hostname=dom0 external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock \
    external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=127.0.0.1
ovn-controller --pidfile --detach
ovn-nbctl lr-add r
"#;

impl Interface {
    /// The address that its guest gets by DHCP.
    fn address(&self) -> String {
        format!("10.{}.0.2", self.switch)
    }

    fn router(&self) -> String {
        format!("10.{}.0.1", self.switch)
    }

    /// Its logical port.
    fn port(&self, guest: &Domu) -> String {
        format!("{}-{}", guest.name(), self.devid)
    }

    /// The command that makes its logical switch behind the router, and its logical port.
    fn network(&self, port: &str) -> String {
        let (switch, router, address) = (self.switch, self.router(), self.address());
        let (mac, own) = (mac(self.number), format!("0e:00:00:00:0{switch}:01"));
        format!(
            "set -e\n\
             ovn-nbctl -- ls-add s{switch} -- lrp-add r r-s{switch} {own} {router}/24 -- lsp-add s{switch} s{switch}-r \
             -- lsp-set-type s{switch}-r router -- lsp-set-addresses s{switch}-r router -- lsp-set-options s{switch}-r router-port=r-s{switch}\n\
             options=$(ovn-nbctl create DHCP_Options cidr=10.{switch}.0.0/24 options:server_id={router} options:server_mac='\"{own}\"' \
             options:lease_time=3600 options:router={router} options:mtu={MTU})\n\
             ovn-nbctl -- lsp-add s{switch} {port} -- lsp-set-addresses {port} '{mac} {address}' \
             -- lsp-set-port-security {port} '{mac} {address}' -- lsp-set-dhcpv4-options {port} $options"
        )
    }

    /// Plugs it in: the toolstack's script puts its device into the integration bridge, and its guest asks OVN for its address.
    fn join(&self, testbed: &Testbed<'_>, guest: &Domu) -> Result<()> {
        let (shell, port) = (testbed.shell(), self.port(guest));
        shell.run(&self.network(&port), COMMAND_TIMEOUT)?;
        let vif = testbed.vif(self.number, "br-int", &format!(",script={}", self.script));
        let attach = format!("xl network-attach {} {}", guest.id(), vif.replace(',', " "));
        testbed.host.run(&attach, COMMAND_TIMEOUT)?;
        if self.script == "vif-openvswitch" {
            let name = device_name(guest, self.devid);
            let set = format!("ovs-vsctl set interface {name} external_ids:iface-id={port}");
            shell.run(&set, COMMAND_TIMEOUT)?;
        }
        let bound = format!(
            "ovn-nbctl --timeout=60 wait-until logical_switch_port {port} up=true && {SYNC}"
        );
        shell.run(&bound, COMMAND_TIMEOUT)?;
        lease::ask(guest.shell(), &format!("eth{}", self.devid))
    }

    /// The differences from the expected state.
    fn wrong(&self, testbed: &Testbed<'_>, guest: &Domu) -> Result<Vec<String>> {
        let store = testbed.store(guest, self.devid)?;
        let mut wrong = store.wrong(&[("hotplug-status", "connected"), ("state", "4")]);
        let shown = format!("ip address show dev eth{}; ip route show", self.devid);
        let shown = guest.run(&shown, COMMAND_TIMEOUT)?;
        let announced = [self.address(), format!("mtu {MTU}"), format!("via {}", self.router())];
        wrong.extend(announced.into_iter().filter(|words| !shown.contains(words)));
        Ok(wrong)
    }
}

pub(super) fn connected(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    testbed.shell().run(START, COMMAND_TIMEOUT)?;
    let script = shell_block(PAGE, "/etc/xen/scripts/vif-ovn");
    let install = format!("f=/etc/xen/scripts/vif-ovn; cat >$f <<'END'\n{script}END\nchmod 755 $f");
    testbed.shell().run(&install, COMMAND_TIMEOUT)?;
    let mut wrong = Vec::new();
    for interface in INTERFACES {
        let guest = &testbed.guests[interface.guest];
        interface.join(testbed, guest)?;
        wrong.extend(interface.wrong(testbed, guest)?);
    }
    let [one, two] = INTERFACES.map(|interface| testbed.guests[interface.guest].shell());
    let [near, far] = INTERFACES.map(|interface| interface.address());
    // The first packet to a new neighbour may be lost.
    check::ping(one, &far, 1)?;
    let ping = check::ping(one, &format!("-M do -s {} {far}", MTU - 28), 5)?;
    let files = check::same_file(one, two, &far, FILE)? && check::same_file(two, one, &near, FILE)?;
    if ping.received < ping.sent || !files {
        wrong.push("frames".to_owned());
    }
    let seen = format!(
        "addresses from OVN's DHCP; {} of {} echoes of {MTU} bytes through the router; files both ways",
        ping.received, ping.sent
    );
    Ok(verdict(seen, &wrong))
}

/// Tries an access rule for the second guest, then unplugs both interfaces.
pub(super) fn protected(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let (shell, from) = (testbed.shell(), testbed.guests[0].shell());
    let other = &INTERFACES[1];
    let (switch, address) = (other.switch, other.address());
    let port = other.port(&testbed.guests[other.guest]);
    let rule =
        |words: &str| shell.run(&format!("ovn-nbctl {words} && {SYNC}"), COMMAND_TIMEOUT).map(drop);
    rule(&format!("acl-add s{switch} to-lport 1000 'outport==\"{port}\" && ip4' drop"))?;
    let dropped = check::ping(from, &address, 2)?;
    rule(&format!("acl-del s{switch}"))?;
    let passes = check::ping(from, &address, 2)?;
    let mut wrong = Vec::new();
    if dropped.received > 0 || passes.received < passes.sent {
        wrong.push(format!("{} echoes, {} without the rule", dropped.received, passes.received));
    }
    for Interface { guest, devid, .. } in INTERFACES {
        let id = testbed.guests[guest].id();
        testbed.host.run(&format!("xl network-detach {id} {devid}"), COMMAND_TIMEOUT)?;
        wrong.extend(testbed.left(id, devid)?);
    }
    let ports = shell.run("ovs-vsctl list-ports br-int", COMMAND_TIMEOUT)?;
    wrong.extend(ports.lines().filter(|port| port.starts_with("vif")).map(str::to_owned));
    Ok(verdict("no echo with the rule; no port is left".to_owned(), &wrong))
}
