//! Guests of other kinds as logical ports: a virtual machine, and a context of a card.

use std::net::Ipv4Addr;

use control_socket::PortState;
use lab::Process;
use lab::documents::shell_block;
use qemulab::{COMMAND, Peer};
use xenlab::scenario::lease;
use xenlab::{Machine, MachineConfig, Result};

use crate::central::Central;
use crate::dhcp;
use crate::guest::{self, Guest};
use crate::host::Host;
use crate::plan::{Attachment, MTU, Plan};
use crate::programs::LIMIT;
use crate::testbed::{P11, Testbed};

const PAGE: &str = include_str!("../../../../docs/ovn.md");
/// The size of files, in MiB.
const FILE_MIB: u32 = 4;

/// A host with a virtual machine and a card, and its guests.
struct Kinds {
    // Dropped in this order: guests before their host.
    machine: Machine,
    guest: Guest,
    card: Process,
    host: Host,
    vm: Plan,
}

impl Kinds {
    /// Starts all. Both guests get their addresses from OVN.
    fn start(testbed: &Testbed) -> Result<Self> {
        let vm = Plan::new(2, 22, "p22", None).attached(Attachment::Machine).asking();
        let mut guest = Guest::new(2, 23, None)?.attached(Attachment::Card).asking();
        guest = guest.named("green-port", "card0");
        let central = &testbed.central;
        let plans = [vm.clone(), guest.plan.clone()];
        let host = Host::start(central, "d", "172.31.0.14", &plans)?;
        central.until_known(host.name)?;
        for plan in &plans {
            central.add_port(plan)?;
            central.offer(plan)?;
        }
        // The wire exists before the card and outlives it, so that Open vSwitch keeps its port.
        host.paste(central, &shell_block(PAGE, "ip tuntap add"))?;
        let card = start_card(&host, &guest.plan)?;
        guest.enter(&host)?;
        host.bind(&vm)?;
        let machine = boot(&host, &vm)?;
        dhcp::ask(&host.node.programs, &guest.namespace)?;
        for plan in &plans {
            central.until_bound(plan, host.name)?;
        }
        Ok(Self { machine, guest, card, host, vm })
    }

    /// Whether the machine has its lease, both reach each other and, through the router, another host's guest, and both exchange files.
    fn carry(&self, other: &Guest) -> Result<bool> {
        let Self { machine, guest, vm, .. } = self;
        let shown = machine.run("ip address show dev eth0; ip route show", COMMAND)?;
        let (far, near) = (other.plan.address, guest.plan.address);
        let reached =
            reaches(machine, far)? && reaches(machine, near)? && guest.reaches(other, &[])?;
        let peer = Peer::Namespace(&other.namespace);
        let file = qemulab::file(machine.shell(), peer, &far.to_string(), FILE_MIB)?;
        let bytes = u64::from(FILE_MIB) << 20;
        lab::transfer_file(&guest.namespace, &other.namespace, far, bytes, 11)?;
        lab::transfer_file(&other.namespace, &guest.namespace, near, bytes, 12)?;
        Ok(dhcp::has_lease(vm, &shown) && reached && file)
    }

    /// Whether an ACL keeps another host's guest from both of them.
    fn are_protected(&self, central: &Central, from: &Guest) -> Result<bool> {
        let plans = [&self.vm, &self.guest.plan];
        for plan in plans {
            let matches = format!("outport==\"{}\" && ip4", plan.port);
            central.north_words(&["acl-add", "s2", "to-lport", "1000", &matches, "drop"])?;
        }
        central.sync()?;
        let (mut passes, mut after) = (false, true);
        for plan in plans {
            passes |= from.reaches_at_once(plan.address, &[])?;
        }
        central.north("acl-del s2")?;
        central.sync()?;
        for plan in plans {
            after &= guest::reaches(&from.namespace, plan.address, &[])?;
        }
        Ok(!passes && after)
    }

    /// Kills and restarts the card, then pvnet. Returns whether the card's guest reaches `other` after the first, and the machine after the second.
    fn outlive(&mut self, other: &Guest) -> Result<[bool; 2]> {
        self.card.kill()?;
        self.card = start_card(&self.host, &self.guest.plan)?;
        let card = self.guest.reaches(other, &[])?;
        self.host.daemon.kill()?;
        self.host.daemon.restart()?;
        self.host.daemon.until_port(&self.vm.name, PortState::Up)?;
        Ok([card, reaches(&self.machine, other.plan.address)?])
    }
}

fn start_card(host: &Host, plan: &Plan) -> Result<Process> {
    let mut command = host.node.namespace.exec(&host.node.programs.pvnet.to_string_lossy())?;
    command.args(["nic", "--directory"]).arg(host.daemon.folder()).arg(&plan.device);
    let mut card = Process::capture(command)?;
    card.says("is up", LIMIT)?;
    Ok(card)
}

/// Boots a virtual machine, which asks OVN for its address.
fn boot(host: &Host, plan: &Plan) -> Result<Machine> {
    let (images, emulator) = host.node.programs.machines()?;
    let config = MachineConfig::new(&plan.name);
    let config = plan.vhost_user().plug(config, emulator, host.daemon.folder())?;
    let machine = Machine::boot(images, emulator, &config)?;
    lease::ask(machine.shell(), "eth0")?;
    Ok(machine)
}

/// Whether a machine reaches an address within a few attempts, with packets of the largest size.
fn reaches(machine: &Machine, to: Ipv4Addr) -> Result<bool> {
    // Without the headers of IPv4 and ICMP.
    let ping = format!("ping -q -n -c 1 -W 1 -M do -s {} {to}", MTU - 28);
    let attempts = "for attempt in 1 2 3 4 5 6 7 8";
    let output = machine.sh(&format!("{attempts}; do {ping} && exit; done; exit 1"), COMMAND)?;
    Ok(output.status == 0)
}

/// A host with a machine and a card joins, its guests are tried, and it leaves.
pub(crate) fn run(testbed: &mut Testbed) -> Result<(String, bool)> {
    let mut kinds = Kinds::start(testbed)?;
    let other = &testbed.guests[P11];
    let carries = kinds.carry(other)?;
    let protected = kinds.are_protected(&testbed.central, other)?;
    let [card, machine] = kinds.outlive(other)?;
    let name = kinds.host.name;
    drop(kinds);
    testbed.central.forget(name)?;
    let seen = format!(
        "leases, {MTU} bytes, 3 files: {carries}; an ACL holds: {protected}; after the card's end: {card}; after pvnet's: {machine}"
    );
    Ok((seen, carries && protected && card && machine))
}
