//! Firmware and boot loaders that others wrote, as clients of a port: a machine that boots over the network.
//!
//! ```text
//!  iPXE, OVMF or U-Boot ── vhost-user ── pvnet ── tap ── dnsmasq: DHCP and TFTP
//! ```
//!
//! They have few receive buffers, take no offloads, and wait for each packet before they ask for the next.

use std::path::{Path, PathBuf};
use std::time::Duration;

use control_socket::PortState;
use lab::{Namespace, Process};
use xenlab::{Error, Machine, MachineConfig, Result, Suite};

use crate::setup::Setup;
use crate::testbed::{TAP, Testbed, WIRE};
use crate::traffic::{self, Peer};

/// The packages with the firmware, the boot loaders, a server for them, and kexec.
const PACKAGES: [&str; 6] =
    ["dnsmasq-base", "ipxe", "ipxe-qemu", "kexec-tools", "ovmf", "u-boot-qemu"];
/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);
/// How long a boot loader may take to fetch a megabyte, from a packet to the next, on a busy machine.
const FETCH: Duration = Duration::from_secs(180);

/// Programs and firmware of Debian's packages, unpacked and not installed.
#[derive(Clone, Debug)]
pub struct Firmware {
    root: PathBuf,
}

/// A machine's firmware.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// iPXE in the card's ROM, called by `SeaBIOS`.
    Ipxe,
    /// UEFI with its own driver. It loads iPXE, which has another.
    Ovmf,
    /// U-Boot, which loads iPXE too.
    UBoot,
}

impl Firmware {
    /// Fetches the packages, unless an earlier call has done so.
    ///
    /// # Errors
    /// [`Error::Packages`] if the mirrors fail; [`Error::Path`].
    pub fn prepare(suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        let root = xenlab::unpacked_packages(suite, cache, "firmware", &PACKAGES, quiet)?;
        Ok(Self { root })
    }

    /// The program that starts another kernel.
    ///
    /// # Errors
    /// [`Error::Path`] if the package lacks it.
    pub(crate) fn kexec(&self) -> Result<xenlab::HostFile> {
        xenlab::HostFile::new(self.root.join("sbin/kexec"))
    }

    /// QEMU's arguments for a machine with this firmware.
    fn arguments(&self, kind: Kind) -> Vec<String> {
        let path = |path: &str| self.root.join(path).display().to_string();
        // UEFI and U-Boot drive the card by themselves, without its ROM.
        let bios = |file: &str| {
            ["-global", "virtio-net-pci.romfile=", "-bios", &path(file)].map(str::to_owned)
        };
        let own = match kind {
            Kind::Ipxe => self.ipxe().to_vec(),
            Kind::Ovmf => bios("usr/share/ovmf/OVMF.fd").to_vec(),
            // As a device of virtio 0.9 its driver takes the first byte of the address for all six, which the port's guard refuses.
            Kind::UBoot => bios("usr/lib/u-boot/qemu-x86_64/u-boot.rom")
                .into_iter()
                .chain(["-global", "virtio-net-pci.disable-legacy=on"].map(str::to_owned))
                .collect(),
        };
        ["-boot", "n"].map(str::to_owned).into_iter().chain(own).collect()
    }

    /// QEMU's arguments for cards with iPXE in their ROM. By its folder: QEMU adapts only a ROM that it finds by itself to the card.
    pub(crate) fn ipxe(&self) -> [String; 2] {
        ["-L".to_owned(), self.root.join("usr/lib/ipxe/qemu").display().to_string()]
    }

    /// Starts a server in a namespace that gives out the files of a folder.
    fn serve(&self, namespace: &Namespace, folder: &Path) -> Result<Process> {
        let mut command = namespace.exec(&self.root.join("usr/sbin/dnsmasq").to_string_lossy())?;
        command.env("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu"));
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-"]);
        // No DNS, and no other user: it serves what only this one may read.
        command.args(["--port=0", "--user=root", "--log-dhcp", "--bind-interfaces", "--pid-file="]);
        command.arg(format!("--interface={TAP}"));
        command.arg(format!("--dhcp-leasefile={}", folder.join("leases").display()));
        command.args(["--dhcp-range=10.0.0.100,10.0.0.200,1h", "--dhcp-userclass=set:ipxe,iPXE"]);
        command.args(["--dhcp-boot=tag:ipxe,boot.ipxe", "--dhcp-boot=tag:!ipxe,ipxe.efi"]);
        command.arg("--enable-tftp").arg(format!("--tftp-root={}", folder.display()));
        let mut server = Process::capture(command)?;
        server.says("TFTP root is", START)?;
        Ok(server)
    }
}

/// iPXE boots a machine, first alone, then from UEFI.
pub(crate) fn network_boot(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let folder = lab::TempDir::new()?;
    let server = setup.firmware.serve(&setup.testbed.wire_namespace, folder.path())?;
    let mut seen = Vec::new();
    let mut passed = true;
    for (kind, name) in [(Kind::Ipxe, "iPXE"), (Kind::Ovmf, "OVMF and iPXE")] {
        let config = prepare(setup, kind, folder.path())?;
        let booted = Machine::boot(setup.images, setup.emulator, &config);
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

/// The device of machines that boot over the network.
pub(crate) const BOOTED: usize = 2;

/// Puts into a folder what a machine with this firmware asks for.
fn prepare(setup: &Setup<'_>, kind: Kind, folder: &Path) -> Result<MachineConfig> {
    let device = setup.testbed.device(BOOTED);
    let config = Testbed::machine(device, setup.emulator, &setup.testbed.daemon)?;
    let config = MachineConfig { firmware: Some(setup.firmware.arguments(kind)), ..config };
    config.write_root(setup.images, &folder.join("root.cpio"))?;
    let copy = |from: PathBuf, name: &str| {
        let copied = std::fs::copy(&from, folder.join(name));
        copied.map(drop).map_err(|cause| Error::Path { path: from, cause })
    };
    copy(setup.images.boot_image(), "vmlinuz")?;
    copy(setup.firmware.root.join("boot/ipxe.efi"), "ipxe.efi")?;
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
    let mut server = setup.firmware.serve(&setup.testbed.wire_namespace, folder.path())?;
    let config = prepare(setup, Kind::UBoot, folder.path())?;
    let machine = Machine::start(setup.images, setup.emulator, &config)?;
    server.says("/ipxe.efi to", FETCH)?;
    machine.kill()?;
    Ok(("it fetched 1 MB".to_owned(), true))
}
