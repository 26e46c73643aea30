//! The mistakes that operators make first: `pvnet status` has to name the cause.

use std::time::Duration;

use control_socket::{PortState, PortStatus, Reason};
use lab::Process;
use xenlab::{MachineConfig, Result};

use crate::COMMAND;
use crate::daemon::Daemon;
use crate::network_boot::BOOTED;
use crate::setup::Setup;
use crate::testbed::Testbed;
use crate::traffic::{self, Peer};

/// A correct memory object.
const SHARED: &str = "memory-backend-memfd,id=ram,size=128M,share=on";
/// A folder on a disk, for a memory object's file. `/tmp` may be in memory itself.
const DISK: &str = "/var/tmp";

/// Starts another QEMU at this port's socket, with the given memory and queues. iPXE drives its device.
fn qemu(setup: &Setup<'_>, port: usize, memory: &[&str], queues: u32) -> Result<Process> {
    let mut device = setup.testbed.device(port).clone();
    device.queues = queues;
    let config = device.plug(
        MachineConfig::new("mistaken"),
        setup.inputs.emulator,
        setup.testbed.daemon.folder(),
    )?;
    let mut command = setup.inputs.emulator.command()?;
    command.args(["-accel", "tcg", "-cpu", "max", "-m", "128", "-nodefaults", "-display", "none"]);
    command.args(memory).args(setup.inputs.firmware.ipxe()).args(&config.devices);
    Ok(Process::capture(command)?)
}

/// Waits until `wanted` accepts a port's status. Returns the port's reason in the words of `pvnet status`.
fn until(daemon: &mut Daemon, name: &str, wanted: impl Fn(&PortStatus) -> bool) -> Result<String> {
    daemon.until(&format!("the reason of {name}"), |status| {
        status.ports.iter().any(|port| port.name == name && wanted(port))
    })?;
    Ok(daemon.port(name)?.reason.map(|reason| reason.to_string()).unwrap_or_default())
}

/// Memory that is not shared (no object, or `share=off`), and memory in a file on a disk.
pub(crate) fn memory(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let name = setup.testbed.device(BOOTED).name.clone();
    let disk = format!("memory-backend-file,id=ram,size=128M,share=on,mem-path={DISK}");
    let private = "memory-backend-memfd,id=ram,size=128M,share=off";
    let mut seen = Vec::new();
    for (what, object) in [
        ("no memory object", None),
        ("share=off", Some(private)),
        ("a file on a disk", Some(disk.as_str())),
    ] {
        let memory = object.map(|object| ["-object", object, "-machine", "memory-backend=ram"]);
        let mut qemu = qemu(setup, BOOTED, memory.as_ref().map_or(&[][..], |args| args), 1)?;
        let said = until(&mut setup.testbed.daemon, &name, |port| match (&port.reason, what) {
            (Some(Reason::FrontendGone(why)), "a file on a disk") => why.contains("no memfd"),
            (Some(reason), _) => *reason == Reason::NoSharedMemory,
            (None, _) => false,
        })?;
        qemu.stop()?;
        seen.push(format!("{what}: {said}"));
        until(&mut setup.testbed.daemon, &name, |port| {
            matches!(port.reason, Some(Reason::FrontendGone(_)))
        })?;
    }
    Ok((seen.join("; "), true))
}

/// More queues than the port has.
pub(crate) fn queues(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let name = setup.testbed.device(BOOTED).name.clone();
    let shared = ["-object", SHARED, "-machine", "memory-backend=ram"];
    let mut qemu = qemu(setup, BOOTED, &shared, 4)?;
    let said = until(
        &mut setup.testbed.daemon,
        &name,
        |port| matches!(&port.reason, Some(Reason::FrontendGone(why)) if why.contains("more queues than the port")),
    )?;
    qemu.stop()?;
    Ok((said, true))
}

/// A second QEMU at the socket of a machine that runs: it is refused, and the machine does not notice.
pub(crate) fn taken(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    const PINGS: u32 = 10;
    let before = setup.testbed.daemon.port("vm1")?.refused_connections;
    let shared = ["-object", SHARED, "-machine", "memory-backend=ram"];
    let mut second = qemu(setup, 0, &shared, 1)?;
    let guest = Peer::Namespace(&setup.testbed.guest_namespace);
    let ping = traffic::ping(guest, &Testbed::address(0), PINGS)?;
    until(&mut setup.testbed.daemon, "vm1", |port| {
        port.refused_connections > before && port.state == PortState::Up
    })?;
    // The second QEMU must learn of the refusal. Formerly it waited in silence.
    let start = std::time::Instant::now();
    while second.stderr().is_empty() && second.ended()?.is_none() && start.elapsed() < COMMAND {
        lab::Interrupt::sleep(Duration::from_millis(50))?;
    }
    let complaint = second.stderr().lines().next().unwrap_or_default().to_owned();
    second.stop()?;
    let refused = setup.testbed.daemon.port("vm1")?.refused_connections - before;
    let seen = format!(
        "{} of {} echoes of the first; refused {refused} times; the second says: {complaint}",
        ping.received, ping.sent
    );
    Ok((seen, ping.received == ping.sent && !complaint.is_empty()))
}
