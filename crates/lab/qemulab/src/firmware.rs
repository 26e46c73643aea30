//! Firmware and boot loaders of other projects as clients of a port: a machine boots over the network.
//!
//! ```text
//!  iPXE, OVMF or U-Boot ── vhost-user ── pvnet ── tap ── dnsmasq: DHCP and TFTP
//! ```
//!
//! They have few receive buffers and no offloads, and wait for each packet before they ask for the next.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Namespace, Process};
use xenlab::{Result, Suite};

use crate::testbed::TAP;

/// The packages with the firmware, the boot loaders, a server for them, and kexec.
const PACKAGES: [&str; 6] =
    ["dnsmasq-base", "ipxe", "ipxe-qemu", "kexec-tools", "ovmf", "u-boot-qemu"];
/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);
/// Programs and firmware of Debian's packages, unpacked and not installed.
#[derive(Clone, Debug)]
pub struct Firmware {
    root: PathBuf,
}

/// A machine's firmware.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// iPXE in the card's ROM, called by `SeaBIOS`.
    Ipxe,
    /// UEFI with its own driver, which loads iPXE with another driver.
    Ovmf,
    /// U-Boot with its own driver, which loads iPXE's file.
    UBoot,
}

impl Firmware {
    /// Fetches the packages, unless an earlier call has done so.
    pub fn prepare(suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        let root = xenlab::unpacked_packages(suite, cache, "firmware", &PACKAGES, quiet)?;
        Ok(Self { root })
    }

    /// The program that starts another kernel.
    pub(crate) fn kexec(&self) -> Result<xenlab::HostFile> {
        xenlab::HostFile::new(self.root.join("sbin/kexec"))
    }

    /// QEMU's arguments for a machine with this firmware.
    pub(crate) fn arguments(&self, kind: Kind) -> Vec<String> {
        let path = |path: &str| self.root.join(path).display().to_string();
        // UEFI and U-Boot drive the card by themselves, without its ROM.
        let bios = |file: &str| {
            ["-global", "virtio-net-pci.romfile=", "-bios", &path(file)].map(str::to_owned)
        };
        let own = match kind {
            Kind::Ipxe => self.ipxe().to_vec(),
            Kind::Ovmf => bios("usr/share/ovmf/OVMF.fd").to_vec(),
            // With virtio 0.9 U-Boot's driver sends the MAC address's first byte six times, and the port's guard refuses that.
            Kind::UBoot => bios("usr/lib/u-boot/qemu-x86_64/u-boot.rom")
                .into_iter()
                .chain(["-global", "virtio-net-pci.disable-legacy=on"].map(str::to_owned))
                .collect(),
        };
        ["-boot", "n"].map(str::to_owned).into_iter().chain(own).collect()
    }

    /// QEMU's arguments for cards with iPXE in their ROM. They name its folder, because QEMU adapts only a ROM that it finds by itself to the card.
    pub(crate) fn ipxe(&self) -> [String; 2] {
        ["-L".to_owned(), self.root.join("usr/lib/ipxe/qemu").display().to_string()]
    }

    /// iPXE as an EFI program.
    pub(crate) fn ipxe_for_efi(&self) -> PathBuf {
        self.root.join("boot/ipxe.efi")
    }

    /// Starts a DHCP and TFTP server in a namespace. It serves the files of a folder.
    pub(crate) fn serve(&self, namespace: &Namespace, folder: &Path) -> Result<Process> {
        let mut command = namespace.exec(&self.root.join("usr/sbin/dnsmasq").to_string_lossy())?;
        command.env("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu"));
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-"]);
        // No DNS. It stays this user, who alone may read the files.
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
