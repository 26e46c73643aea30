//! Guests of other kinds as logical ports: a virtual machine, and a context of a card.

use std::net::Ipv4Addr;
use std::path::Path;

use control_socket::PortState;
use lab::Process;
use qemulab::{COMMAND, Peer};
use xenlab::{Machine, MachineConfig, Result};

use crate::dhcp;
use crate::guest::Guest;
use crate::host::Host;
use crate::plan::{Attachment, MTU, Plan};
use crate::programs::{LIMIT, Programs};
use crate::testbed::{P11, Testbed};

/// Bytes of a file between two guests.
const FILE: u64 = 4 << 20;

/// Starts the card of a guest. Its wire is there before it and stays after it, so that Open vSwitch keeps its port.
fn start_card(pvnet: &Path, host: &Host, plan: &Plan) -> Result<Process> {
    let mut command = host.namespace.exec(&pvnet.to_string_lossy())?;
    command.args(["nic", "--directory"]).arg(host.daemon.folder()).arg(&plan.port);
    let mut card = Process::capture(command)?;
    card.says("is up", LIMIT)?;
    Ok(card)
}

/// Boots a virtual machine, which asks OVN for its address.
fn boot(programs: &Programs, host: &Host, plan: &Plan) -> Result<Machine> {
    let (images, emulator) = programs.machines()?;
    let config = MachineConfig::new(&plan.name);
    let config = plan.vhost_user().plug(config, emulator, host.daemon.folder())?;
    let machine = Machine::boot(images, emulator, &config)?;
    let (script, client) = (dhcp::SCRIPT, dhcp::CLIENT);
    machine.run(
        &format!(
            "until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
             cat >/run/lease <<'END'\n{script}END\nchmod 755 /run/lease\n{client} /run/lease"
        ),
        COMMAND,
    )?;
    Ok(machine)
}

/// Whether an address answers a machine within a few attempts, in packets of the largest size.
fn reaches(machine: &Machine, to: Ipv4Addr) -> Result<bool> {
    // Without the headers of IPv4 and ICMP.
    let ping = format!("ping -q -n -c 1 -W 1 -M do -s {} {to}", MTU - 28);
    let attempts = "for attempt in 1 2 3 4 5 6 7 8";
    let output = machine.sh(&format!("{attempts}; do {ping} && exit; done; exit 1"), COMMAND)?;
    Ok(output.status == 0)
}

/// A host comes with a machine and a card. Both guests are told their addresses by OVN, reach each other and another host's guest
/// through the router, and obey an ACL. Then the card is killed, and after it pvnet.
pub(crate) fn run(testbed: &mut Testbed) -> Result<(String, bool)> {
    let vm = Plan::new(2, 22, "p22", None).attached(Attachment::Machine).asking();
    let mut guest = Guest::new(2, 23, None)?.attached(Attachment::Card).asking();
    let Testbed { programs, pvnet, central, .. } = &*testbed;
    let plans = [vm.clone(), guest.plan.clone()];
    let mut host = Host::start(programs, pvnet, central, "d", "172.31.0.14", &plans)?;
    central.until_known(host.name)?;
    for plan in &plans {
        central.add_port(plan)?;
        central.offer(plan)?;
    }
    let wire = guest.plan.device.as_str();
    host.namespace.ip(&["tuntap", "add", "dev", wire, "mode", "tap", "vnet_hdr"])?;
    let card = start_card(pvnet, &host, &guest.plan)?;
    guest.join(pvnet, &host)?;
    host.bind(&vm)?;
    let machine = boot(programs, &host, &vm)?;
    dhcp::ask(programs, &guest.namespace)?;
    for plan in &plans {
        central.until_bound(plan, host.name)?;
    }

    let shown = machine.run("ip address show dev eth0; ip route show", COMMAND)?;
    let has_lease = dhcp::has_lease(&vm, &shown);
    let other = &testbed.guests[P11];
    let (far, near) = (other.plan.address, guest.plan.address);
    let first = reaches(&machine, far)? && reaches(&machine, near)? && guest.reaches(other, &[])?;
    let peer = Peer::Namespace(&other.namespace);
    let file = qemulab::file(machine.shell(), peer, &far.to_string(), 4)?;
    lab::transfer_file(&guest.namespace, &other.namespace, far, FILE, 11)?;
    lab::transfer_file(&other.namespace, &guest.namespace, near, FILE, 12)?;
    let held = holds(testbed, &plans)?;
    drop(card);
    let _card = start_card(&testbed.pvnet, &host, &guest.plan)?;
    let card_again = guest.reaches(other, &[])?;
    host.daemon.kill()?;
    host.daemon.restart()?;
    host.daemon.until_port(&vm.name, PortState::Up)?;
    let again = reaches(&machine, far)?;
    let seen = format!(
        "lease: {has_lease}; reached: {first}; 3 files: {file}; ACL: {held}; after the card's end: {card_again}; after a kill: {again}"
    );
    Ok((seen, has_lease && first && file && held && card_again && again))
}

/// Whether an ACL keeps another host's guest from these.
fn holds(testbed: &Testbed, plans: &[Plan]) -> Result<bool> {
    let central = &testbed.central;
    let from = &testbed.guests[P11];
    for plan in plans {
        let matches = format!("outport==\"{}\" && ip4", plan.port);
        central.north_words(&["acl-add", "s2", "to-lport", "1000", &matches, "drop"])?;
    }
    central.sync()?;
    let mut passes = false;
    for plan in plans {
        passes |= from.reaches_at_once(plan.address, &[])?;
    }
    central.north("acl-del s2")?;
    central.sync()?;
    let mut after = true;
    for plan in plans {
        after &= crate::guest::reaches(&from.namespace, plan.address, &[])?;
    }
    Ok(!passes && after)
}
