//! What a guest's administrator does with the interface. QEMU executes most of it by itself, and tells a vhost-user back-end only a
//! part, or nothing. Frames must go on in any case, and nobody's memory may change.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control_socket::PortState;
use lab::{Ping, Process};
use xenlab::{Result, scenario};

use crate::COMMAND;
use crate::network_boot::BOOTED;
use crate::setup::Setup;
use crate::testbed::{GUEST, Testbed, WIRE};
use crate::traffic::{self, Peer};

/// MiB of a file.
const MIB: u32 = 4;
/// `ethtool -G` several times, while large echo requests flood in.
pub(crate) fn ring_sizes(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    const SIZES: &str = "128 256 64 256 128 256";
    let mut command = setup.testbed.guest_namespace.exec("ping")?;
    command.args(["-q", "-f", "-s", "1400", "-w", "8", &Testbed::address(0)]);
    let mut flood = Process::capture(command)?;
    let script = format!(
        "for size in {SIZES}; do ethtool -G eth0 rx $size tx $size 2>&1 || true; sleep 1; done"
    );
    let said = setup.shell(0)?.run(&script, COMMAND)?;
    flood.wait(COMMAND)?;
    let flood = Ping::parse(&flood.stdout())?;
    let (echoes, all) = setup.ping_all()?;
    let refusal = said.lines().last().unwrap_or("every size was accepted");
    let seen = format!(
        "{} of {} echoes of the flood; after it {echoes}; {refusal}",
        flood.received, flood.sent
    );
    Ok((seen, all && flood.received * 10 > flood.sent * 9))
}

/// `ethtool -L`, with a TCP stream at each number of queues.
pub(crate) fn queues(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let mut seen = Vec::new();
    let mut passed = true;
    for number in [1, 2] {
        let shell = setup.shell(1)?;
        shell.run(&format!("ethtool -L eth0 combined {number}"), COMMAND)?;
        let server = Peer::Namespace(&setup.testbed.guest_namespace);
        traffic::tcp(shell, server, GUEST, 2, false)?;
        let queues = setup.testbed.daemon.port("vm2")?.queues;
        let (echoes, all) = setup.ping_all()?;
        seen.push(format!("{number}: the port has {queues}, {echoes}"));
        passed &= all && queues == number;
    }
    Ok((seen.join("; "), passed))
}

/// `ethtool -K`: switches each offload off that the driver allows, one after the other, with files both ways after each; then all on again.
pub(crate) fn offloads(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let mut off = Vec::new();
    let (mut files, mut same) = (0, 0);
    for feature in ["tso", "gso", "tx", "rx", "gro", "rx-gro-hw"] {
        let shell = setup.shell(0)?;
        if shell.sh(&format!("ethtool -K eth0 {feature} off"), COMMAND)?.status == 0 {
            off.push(feature);
        }
        let guest = &setup.testbed.guest_namespace;
        let arrived = [
            traffic::file(shell, Peer::Namespace(guest), GUEST, MIB)?,
            traffic::file_to(guest, shell, &Testbed::address(0), MIB)?,
        ];
        files += arrived.len();
        same += arrived.iter().filter(|same| **same).count();
    }
    // In reverse order: an offload may need one that was switched off after it.
    for feature in off.iter().rev() {
        setup.shell(0)?.run(&format!("ethtool -K eth0 {feature} on"), COMMAND)?;
    }
    let (echoes, all) = setup.ping_all()?;
    let seen = format!(
        "off one after the other: {}; {same} of {files} files unchanged; {echoes}",
        off.join(", ")
    );
    Ok((seen, all && same == files))
}

/// The driver is unbound from its device and bound again, then unloaded as a module and loaded again.
pub(crate) fn reload(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let rebind = "set -e\ndevice=$(basename \"$(readlink /sys/class/net/eth0/device)\")\n\
                  cd /sys/bus/virtio/drivers/virtio_net\necho $device >unbind\necho $device >bind";
    let mut seen = Vec::new();
    let mut passed = true;
    for (how, script) in
        [("bound again", rebind), ("loaded again", "rmmod virtio_net && modprobe virtio_net")]
    {
        for number in 0..setup.machines.len() {
            setup.machine(number)?.run(script, COMMAND)?;
            setup.bring_up(number)?;
        }
        let (echoes, all) = setup.ping_all()?;
        seen.push(format!("{how}: {echoes}"));
        passed &= all;
    }
    Ok((seen.join("; "), passed))
}

/// A machine suspends its devices and resumes them: the driver takes the device down and sets it up again. The rest of sleep (S3) is left
/// out, because emulated machines do not wake up from it.
pub(crate) fn suspend(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let script = "echo devices >/sys/power/pm_test && echo mem >/sys/power/state";
    let sleeper = setup.shell(0)?.spawn(script)?;
    setup.testbed.daemon.until_port("vm1", PortState::Down)?;
    // Frames for a machine that sleeps harm nobody.
    let guest = Peer::Namespace(&setup.testbed.guest_namespace);
    let asleep = traffic::ping(guest, &Testbed::address(0), 3)?;
    sleeper.wait(COMMAND)?;
    setup.testbed.daemon.until_port("vm1", PortState::Up)?;
    let (echoes, all) = setup.ping_all()?;
    let seen = format!("{} of {} echoes asleep, then {echoes}", asleep.received, asleep.sent);
    Ok((seen, all && asleep.received == 0))
}

/// The machine gets another kernel over the interface, and starts it (`kexec`) without telling the device.
pub(crate) fn kexec(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (kernel, root) =
        (setup.inputs.images.boot_image(), setup.testbed.daemon.folder().join("root.cpio"));
    let config = setup.testbed.config(setup.inputs.emulator, 0)?;
    config.write_root(setup.inputs.images, &root)?;
    for (file, name) in [(kernel.as_path(), "vmlinuz"), (&root, "root.cpio")] {
        let (from, to) = (&setup.testbed.wire_namespace, setup.shell(0)?);
        traffic::upload(from, to, &Testbed::address(0), file, name)?;
    }
    let load = format!(
        "kexec -l /run/vmlinuz --initrd=/run/root.cpio --append='{}' && rm /run/vmlinuz /run/root.cpio",
        config.command_line()
    );
    let machine = setup.machine(0)?;
    machine.run(&load, COMMAND)?;
    machine.restarted_by("kexec -e")?;
    setup.bring_up(0)?;
    let ping = traffic::ping(Peer::Machine(setup.shell(0)?), WIRE, 3)?;
    let (echoes, all) = setup.ping_all()?;
    Ok((format!("the new kernel is up: {echoes}"), all && ping.received == ping.sent))
}

/// An XDP program in a machine whose port offers no offloads to the guest: QEMU would not tell pvnet that the guest switches them off.
pub(crate) fn xdp(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    const ECHOES: u32 = 5;
    let machine = setup.boot(BOOTED)?;
    let (shell, address) = (machine.shell(), Testbed::address(BOOTED));
    let guest = &setup.testbed.guest_namespace;
    let load = format!(
        "set -e\nmount -t bpf bpf /sys/fs/bpf\necho {} | base64 -d >/run/drop_icmp.o\n\
         ip link set dev eth0 xdpdrv object /run/drop_icmp.o section {}",
        STANDARD.encode(scenario::drop_icmp()),
        scenario::SECTION
    );
    shell.run(&load, COMMAND)?;
    let dropped = traffic::ping(Peer::Namespace(guest), &address, ECHOES)?;
    let same = [
        traffic::file(shell, Peer::Namespace(guest), GUEST, MIB)?,
        traffic::file_to(guest, shell, &address, MIB)?,
    ];
    shell.run("ip link set dev eth0 xdpdrv off", COMMAND)?;
    let passed = traffic::ping(Peer::Namespace(guest), &address, ECHOES)?;
    machine.kill()?;
    let name = setup.testbed.device(BOOTED).name.clone();
    setup.testbed.daemon.until_port(&name, PortState::Down)?;
    let seen = format!(
        "the program dropped {} of {ECHOES} echoes; {} of {} files unchanged; {} echoes without it",
        dropped.sent - dropped.received,
        same.iter().filter(|same| **same).count(),
        same.len(),
        passed.received
    );
    Ok((seen, dropped.received == 0 && same == [true; 2] && passed.received == passed.sent))
}
