//! The content of the root file systems of dom0 and of a guest.

use std::collections::BTreeSet;
use std::path::Path;

use super::cpio::Archive;
use super::elf::Linker;
use super::modules::Modules;
use crate::{Result, Suite, tool};

/// The contents of one kind of root.
#[derive(Debug)]
pub(super) struct Plan {
    programs: &'static [&'static str],
    xen_programs: &'static [&'static str],
    modules: &'static [&'static str],
}

/// dom0: the toolstack, and what a backend or a measurement needs.
pub(super) const DOM0: Plan = Plan {
    programs: &[
        "usr/bin/dash",
        "usr/bin/iperf3",
        "usr/bin/ip",
        "usr/bin/ping",
        "usr/bin/tcpdump",
        "usr/bin/xenstore",
        "usr/sbin/ethtool",
        // libpthread loads it when a thread is cancelled: without it xl aborts at its end.
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

/// One program under many names.
const XENSTORE_NAMES: [&str; 8] = ["chmod", "exists", "list", "ls", "read", "rm", "watch", "write"];
/// Names that busybox must not take, because another program has them.
const REAL: [&str; 5] = ["busybox", "ip", "ping", "sh", "tcpdump"];

impl Plan {
    /// The plan as text, for the images' digest.
    pub(super) fn describe(&self) -> String {
        format!("{self:?}")
    }

    /// Makes the root from unpacked packages in `stage`.
    pub(super) fn make(&self, suite: Suite, stage: &Path, modules: &Modules) -> Result<Archive> {
        let mut archive = Archive::new();
        skeleton(&mut archive);
        let mut linker = Linker::new(stage, BTreeSet::new());
        for program in self.programs {
            linker.add(&mut archive, program)?;
        }
        for program in self.xen_programs {
            linker.add(&mut archive, &format!("usr/lib/xen-{}/bin/{program}", suite.xen()))?;
        }
        for name in XENSTORE_NAMES {
            archive.symlink(&format!("usr/bin/xenstore-{name}"), "xenstore");
        }
        // Not busybox's sh, which runs its built-in ip and ping before the real programs.
        archive.symlink("usr/bin/sh", "dash");
        busybox(&mut archive, &mut linker, stage)?;
        modules.add(&mut archive, self.modules)?;
        Ok(archive)
    }
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
        // xl complains without it.
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
