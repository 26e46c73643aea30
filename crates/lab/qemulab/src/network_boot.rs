//! Steps in which other projects' firmware boots a machine over the network.

use std::path::{Path, PathBuf};
use std::time::Duration;

use control_socket::PortState;
use xenlab::{Error, Machine, MachineConfig, Result};

use crate::firmware::Kind;
use crate::setup::Setup;
use crate::testbed::{Testbed, WIRE};
use crate::traffic::{self, Peer};

/// How long a boot loader may take to fetch a megabyte, packet by packet, on a busy machine.
const FETCH: Duration = Duration::from_secs(180);
/// The device of machines that boot over the network.
pub(crate) const BOOTED: usize = 2;

/// iPXE boots a machine, first from its ROM, then loaded by UEFI.
pub(crate) fn run(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let folder = lab::TempDir::new()?;
    let server = setup.inputs.firmware.serve(&setup.testbed.wire_namespace, folder.path())?;
    let mut seen = Vec::new();
    let mut passed = true;
    for (kind, name) in [(Kind::Ipxe, "iPXE"), (Kind::Ovmf, "OVMF and iPXE")] {
        let config = prepare(setup, kind, folder.path())?;
        let booted = Machine::boot(setup.inputs.images, setup.inputs.emulator, &config);
        let mut machine = booted.map_err(|cause| Error::Explained {
            cause: Box::new(cause),
            log: format!("{name}; the server said: {}", server.stderr()),
        })?;
        setup.testbed.bring_up(&mut machine, BOOTED)?;
        let ping = traffic::ping(Peer::Machine(machine.shell()), WIRE, 3)?;
        seen.push(format!(
            "{name}: {} of {} echoes of the kernel that it booted",
            ping.received, ping.sent
        ));
        passed &= ping.received == ping.sent;
        machine.kill()?;
        setup
            .testbed
            .daemon
            .until_port(&setup.testbed.device(BOOTED).name.clone(), PortState::Down)?;
    }
    Ok((seen.join("; "), passed))
}

/// Puts the files that a machine with this firmware asks for into a folder.
fn prepare(setup: &Setup<'_>, kind: Kind, folder: &Path) -> Result<MachineConfig> {
    let device = setup.testbed.device(BOOTED);
    let config = Testbed::machine(device, setup.inputs.emulator, &setup.testbed.daemon)?;
    let config = MachineConfig { firmware: Some(setup.inputs.firmware.arguments(kind)), ..config };
    config.write_root(setup.inputs.images, &folder.join("root.cpio"))?;
    let copy = |from: PathBuf, name: &str| {
        let copied = std::fs::copy(&from, folder.join(name));
        copied.map(drop).map_err(|cause| Error::Path { path: from, cause })
    };
    copy(setup.inputs.images.boot_image(), "vmlinuz")?;
    copy(setup.inputs.firmware.ipxe_for_efi(), "ipxe.efi")?;
    let script = format!(
        "#!ipxe\nkernel vmlinuz {} initrd=root.cpio\ninitrd root.cpio\nboot\n",
        config.command_line()
    );
    let file = folder.join("boot.ipxe");
    std::fs::write(&file, script).map_err(|cause| Error::Path { path: file, cause })?;
    Ok(config)
}

/// U-Boot gets an address and fetches a file.
pub(crate) fn u_boot(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let folder = lab::TempDir::new()?;
    let mut server = setup.inputs.firmware.serve(&setup.testbed.wire_namespace, folder.path())?;
    let config = prepare(setup, Kind::UBoot, folder.path())?;
    let machine = Machine::start(setup.inputs.images, setup.inputs.emulator, &config)?;
    server.says("/ipxe.efi to", FETCH)?;
    machine.kill()?;
    Ok(("it fetched 1 MB".to_owned(), true))
}
