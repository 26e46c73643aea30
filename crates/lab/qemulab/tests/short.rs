//! A short test of pvnet with a virtual machine in QEMU: a Debian guest with two queues, offloads, a file, and a daemon that
//! is killed during a TCP connection.
//!
//! Needs QEMU, namespaces and, the first time, Debian's mirrors. Without them, see [`lab::needed`].

use std::path::Path;

use control_socket::PortState;
use hypervisor::Counted;
use lab::Namespace;
use qemulab::{Peer, Side, Testbed, VirtioNet, WIRE, file, ping, tcp};
use xenlab::{Emulator, Error, Images, Machine, Result, Suite, default_cache};

/// The program, if this machine has all that the test needs.
fn emulator() -> Option<Emulator> {
    let emulator = lab::needed(Emulator::any("qemu-system-x86_64"))?;
    lab::able(&["iperf3"]).then_some(emulator)
}

fn boot(pvnet: &Path, emulator: &Emulator) -> Result<(Machine, Testbed)> {
    let cache = default_cache();
    let cache = std::path::absolute(&cache).map_err(|cause| Error::Path { path: cache, cause })?;
    let images = Images::prepare(Suite::of_this_machine(), &cache, true)?;
    let device = VirtioNet {
        name: "vm".to_owned(),
        mac: "52:54:00:00:00:01".to_owned(),
        queues: 2,
        side: Side::Pvnet,
        packed: false,
        guest_offloads: true,
    };
    let mut testbed = Testbed::start(pvnet, vec![device])?;
    let machine = testbed.boot(&images, emulator, 0)?;
    Ok((machine, testbed))
}

/// How many segments the daemon has made.
fn segments(testbed: &Testbed) -> Result<u64> {
    Ok(testbed.daemon.status()?.meter.counts.of(Counted::Segments))
}

/// Sends a file from the machine, while the daemon is killed and started again. Returns whether it arrived unchanged,
/// with the rest of it by the second daemon.
fn outlives(machine: &Machine, testbed: &mut Testbed) -> Result<bool> {
    let namespace = Namespace::open(testbed.wire_namespace.name())?;
    let shell = machine.shell().clone();
    let sender = std::thread::spawn(move || file(&shell, Peer::Namespace(&namespace), WIRE, 24));
    // The file is on its way once the port has carried some of it.
    let sent = |testbed: &Testbed| -> Result<u64> { Ok(testbed.daemon.port("vm")?.ingress.bytes) };
    let before = sent(testbed)?;
    testbed.daemon.until("the file's beginning", |status| {
        status.ports.iter().any(|port| port.name == "vm" && port.ingress.bytes > before + (2 << 20))
    })?;
    testbed.daemon.kill()?;
    testbed.daemon.restart()?;
    testbed.daemon.until_port("vm", PortState::Up)?;
    let is_same = sender.join().expect("no panic")?;
    // The second daemon has carried the rest.
    Ok(is_same && sent(testbed)? > 2 << 20)
}

fn test(pvnet: &Path, emulator: &Emulator) -> Result<()> {
    let (machine, mut testbed) = boot(pvnet, emulator)?;
    let queues = testbed.daemon.port("vm")?.queues;
    assert_eq!(queues, 2);
    let echoes = ping(Peer::Machine(machine.shell()), WIRE, 3)?;
    assert_eq!((echoes.sent, echoes.received), (3, 3));

    // The tap has no offloads: frames to it are segmented, frames from it are not.
    let wire = Peer::Namespace(&testbed.wire_namespace);
    let before = segments(&testbed)?;
    let out = tcp(machine.shell(), wire, WIRE, 1, false)?;
    let cut = segments(&testbed)?;
    let back = tcp(machine.shell(), wire, WIRE, 1, true)?;
    assert!(out.mbps > 0.0 && back.mbps > 0.0, "{out:?} {back:?}");
    assert!(cut > before, "frames to the tap are segmented");
    assert_eq!(segments(&testbed)?, cut, "frames to the machine are not");

    assert!(outlives(&machine, &mut testbed)?, "a file changed, or a restart ended its connection");
    let (machine, held) = (machine, testbed.daemon.holdings()?);
    machine.kill()?;
    testbed.daemon.until_port("vm", PortState::Down)?;
    let left = testbed.daemon.holdings()?;
    assert!(left.descriptors < held.descriptors && left.mappings < held.mappings, "{left:?}");
    Ok(())
}

#[test]
fn a_machine_talks_and_its_connection_outlives_the_daemon() {
    let Some(emulator) = emulator() else { return };
    let pvnet = qemulab::pvnet(None).unwrap_or_else(|error| panic!("{error}"));
    test(&pvnet, &emulator).unwrap_or_else(|error| panic!("{error}"));
}
