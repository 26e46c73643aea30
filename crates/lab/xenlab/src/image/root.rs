//! The content of the root file systems of dom0 and of a guest.

use std::collections::BTreeSet;
use std::path::Path;

use super::cpio::Archive;
use super::elf::Linker;
use super::modules::Modules;
use crate::{Error, Result, Suite, tool};

/// A part of one kind of root.
#[derive(Debug)]
pub(super) struct Plan {
    /// Programs, and files that they read. `|` separates the paths that a file has in different suites. A path that ends with `/`
    /// stands for all files of a folder.
    programs: &'static [&'static str],
    /// Names in the folder of Xen's programs, or paths below Xen's own folder.
    xen_programs: &'static [&'static str],
    modules: &'static [&'static str],
}

/// dom0: the toolstack, and programs for backends and measurements.
pub(super) const DOM0: Plan = Plan {
    programs: &[
        "usr/bin/dash",
        "usr/bin/iperf3",
        "usr/bin/ip",
        "usr/bin/ping",
        "usr/bin/tcpdump",
        "usr/bin/xenstore",
        "usr/sbin/ethtool",
        // libpthread loads this when a thread is cancelled. Without it, xl aborts at its end.
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    ],
    xen_programs: &[
        "libxl-save-helper",
        "lsevtchn",
        "xen-diag",
        "xen-init-dom0",
        "xenconsoled",
        "xenstore-control",
        "xenstored",
        "xentop",
        "xl",
    ],
    modules: &[
        "9p",
        "9pnet_virtio",
        "bridge",
        "tun",
        "veth",
        "virtio_console",
        "virtio_net",
        "virtio_pci",
        "xen-evtchn",
        "xen-gntalloc",
        "xen-gntdev",
        "xen-netback",
        "xen-netfront",
        "xen-privcmd",
        "xenfs",
    ],
};

/// A guest, which may be a driver domain.
pub(super) const DOMU: Plan = Plan {
    programs: &[
        "usr/bin/dash",
        "usr/bin/iperf3",
        "usr/bin/ip",
        "usr/bin/ping",
        "usr/bin/tcpdump",
        "usr/bin/xenstore",
        "usr/sbin/ethtool",
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    ],
    xen_programs: &[],
    modules: &[
        "bridge",
        "tun",
        "veth",
        "xen-evtchn",
        "xen-gntalloc",
        "xen-gntdev",
        "xen-netback",
        "xen-netfront",
        "xen-privcmd",
        "xenfs",
    ],
};

/// The toolstack's own scripts, and what they need in the backend's domain.
const SCRIPTS: [&str; 11] = [
    "etc/xen/scripts/hotplugpath.sh",
    "etc/xen/scripts/locking.sh",
    "etc/xen/scripts/logging.sh",
    "etc/xen/scripts/vif-bridge",
    "etc/xen/scripts/vif-common.sh",
    "etc/xen/scripts/vif-openvswitch",
    "etc/xen/scripts/vif-route",
    "etc/xen/scripts/xen-hotplug-common.sh",
    "etc/xen/scripts/xen-network-common.sh",
    "etc/xen/scripts/xen-script-common.sh",
    "usr/bin/bash",
];

/// The scripts as a part of a root.
pub(super) const HOTPLUG: Plan = Plan { programs: &SCRIPTS, xen_programs: &[], modules: &[] };

/// An operator's tools in dom0 beside the toolstack, and an emulator for HVM guests.
pub(super) const OPERATOR: Plan = Plan {
    programs: &[
        "boot/ipxe.lkrn",
        "usr/bin/ovs-vsctl",
        "usr/bin/ovsdb-tool",
        "usr/lib/ipxe/qemu/efi-rtl8139.rom|usr/share/qemu/efi-rtl8139.rom",
        "usr/lib/openvswitch-switch/ovs-vswitchd",
        "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "usr/libexec/xen-qemu-system-i386",
        "usr/sbin/bridge",
        "usr/sbin/nft",
        "usr/sbin/ovsdb-server",
        "usr/sbin/tc",
        "usr/share/openvswitch/vswitch.ovsschema",
        "usr/share/qemu/keymaps/en-us",
        "usr/share/qemu/kvmvapic.bin",
        "usr/share/qemu/linuxboot.bin",
        "usr/share/qemu/linuxboot_dma.bin",
        "usr/share/seabios/bios-256k.bin",
    ],
    xen_programs: &["boot/hvmloader"],
    modules: &[
        "act_police",
        "cls_matchall",
        "crc32c_generic",
        "nf_tables",
        "openvswitch",
        "sch_ingress",
        "sch_netem",
    ],
};

/// OVN, both its central part and a host's.
pub(super) const OVN: Plan = Plan {
    programs: &[
        "usr/bin/ovn-controller",
        "usr/bin/ovn-nbctl",
        "usr/bin/ovn-northd",
        "usr/share/ovn/ovn-nb.ovsschema",
        "usr/share/ovn/ovn-sb.ovsschema",
    ],
    xen_programs: &[],
    modules: &[],
};

/// libvirt with only its driver for Xen.
pub(super) const LIBVIRT: Plan = Plan {
    programs: &[
        "usr/bin/virsh",
        "usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_libxl.so",
        "usr/sbin/libvirtd",
        "usr/share/libvirt/cpu_map/",
    ],
    xen_programs: &[],
    modules: &[],
};

/// VLAN devices.
pub(super) const VLAN: Plan = Plan { programs: &[], xen_programs: &[], modules: &["8021q"] };

/// The toolstack's daemon in a driver domain.
pub(super) const DEVD: Plan = Plan { programs: &[], xen_programs: &["xl"], modules: &[] };

/// The names of the program xenstore, after `xenstore-`.
const XENSTORE_NAMES: [&str; 8] = ["chmod", "exists", "list", "ls", "read", "rm", "watch", "write"];
/// Names that busybox must not take, because another program has them.
const REAL: [&str; 5] = ["busybox", "ip", "ping", "sh", "tcpdump"];

impl Plan {
    /// The plan as text, for the images' digest.
    pub(super) fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// Makes a root of all `parts` from unpacked packages in `stage`.
pub(super) fn make(
    parts: &[&Plan],
    suite: Suite,
    stage: &Path,
    modules: &Modules,
) -> Result<Archive> {
    let mut archive = Archive::new();
    skeleton(&mut archive);
    let mut linker = Linker::new(stage, BTreeSet::new());
    for paths in parts.iter().flat_map(|part| part.programs) {
        let found = paths.split('|').find(|path| stage.join(path).exists());
        for path in files(stage, found.unwrap_or(paths))? {
            linker.add(&mut archive, &path)?;
        }
    }
    for program in parts.iter().flat_map(|part| part.xen_programs) {
        let folder = if program.contains('/') { "" } else { "bin/" };
        linker.add(&mut archive, &format!("usr/lib/xen-{}/{folder}{program}", suite.xen()))?;
    }
    for name in XENSTORE_NAMES {
        archive.symlink(&format!("usr/bin/xenstore-{name}"), "xenstore");
    }
    // `sh` is dash: busybox's sh would run its built-in ip and ping instead of the real programs.
    archive.symlink("usr/bin/sh", "dash");
    busybox(&mut archive, &mut linker, stage)?;
    let names: Vec<&str> = parts.iter().flat_map(|part| part.modules).copied().collect();
    modules.add(&mut archive, &names)?;
    Ok(archive)
}

/// The files that a path of a plan stands for.
fn files(stage: &Path, path: &str) -> Result<Vec<String>> {
    if !path.ends_with('/') {
        return Ok(vec![path.to_owned()]);
    }
    let folder = stage.join(path);
    let list = std::fs::read_dir(&folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries = list.map_err(Error::path(&folder))?;
    let name = |entry: &std::fs::DirEntry| format!("{path}{}", entry.file_name().to_string_lossy());
    let mut names: Vec<_> = entries.iter().map(name).collect();
    // Sorted, so that the same packages give the same archive.
    names.sort();
    Ok(names)
}

/// Folders, and the files that programs expect.
fn skeleton(archive: &mut Archive) {
    for folder in ["bin", "lib", "lib64", "sbin"] {
        archive.folder(&format!("usr/{folder}"));
        archive.symlink(folder, &format!("usr/{folder}"));
    }
    for folder in ["dev", "etc", "lab", "proc", "root", "run", "sys", "tmp", "usr/local/bin"] {
        archive.folder(folder);
    }
    for folder in ["var/lib/xen", "var/lib/xenstored", "var/log/xen/console"] {
        archive.folder(folder);
    }
    archive.symlink("var/lock", "../run/lock");
    archive.symlink("var/run", "../run");
    for (file, text) in [
        ("group", "root:x:0:\n"),
        ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
        ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        // Without this file xl complains.
        ("xen/xl.conf", ""),
    ] {
        archive.file(&format!("etc/{file}"), 0o644, text.as_bytes());
    }
}

/// busybox under the names of all its tools, except those of another program.
fn busybox(archive: &mut Archive, linker: &mut Linker<'_>, stage: &Path) -> Result<()> {
    let path = "usr/bin/busybox";
    linker.add(archive, path)?;
    let mut list = std::process::Command::new(stage.join(path));
    list.arg("--list");
    for name in tool::run(list)?.lines().filter(|name| !REAL.contains(name)) {
        archive.symlink(&format!("usr/bin/{name}"), "busybox");
    }
    Ok(())
}
