//! The files that a Xen host boots from, made from Debian's packages.
//!
//! ```text
//! apt ──► packages ──► unpacked ──┬──► xen, vmlinux      what QEMU and xl load
//!                                 └──► dom0, domu        first roots: programs, libraries, modules
//! ```
//!
//! Nothing is installed on this machine. The images hold no file of this project: those are added at every boot.

mod apt;
mod cpio;
mod elf;
mod kernel;
mod modules;
mod root;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use lab::Progress;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};

use crate::{Error, Result, Suite, tool};
pub(crate) use apt::Apt;
pub(crate) use cpio::{Archive, Index};
pub(crate) use elf::{Linker, file_name};
pub use kernel::read_boot_image;
use lab::TempDir;
use modules::Modules;

/// The version of the images' format. Raise it when this code makes other images from the same packages.
const FORMAT: u32 = 2;
/// Progress steps of a build.
const STEPS: usize = 4;

/// The images of one suite.
#[derive(Clone, Debug)]
pub struct Images {
    folder: PathBuf,
}

impl Images {
    /// The images of a suite below `cache`. Builds them unless an earlier call has done so; `quiet` shows no progress.
    ///
    /// The folder's name is a digest of everything that decides its content. The folder gets this name once it is complete.
    pub fn prepare(suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        Self::prepare_edition(Edition::Base, suite, cache, quiet)
    }

    /// As [`prepare`](Self::prepare), for any edition.
    pub fn prepare_edition(
        edition: Edition,
        suite: Suite,
        cache: &Path,
        quiet: bool,
    ) -> Result<Self> {
        let folder = cache.join(edition.folder(suite));
        let images = Self { folder: folder.join(digest(edition, suite)) };
        if images.folder.is_dir() {
            return Ok(images);
        }
        std::fs::create_dir_all(&folder).map_err(Error::path(&folder))?;
        let lock = folder.join("lock");
        let lock = File::create(&lock).map_err(Error::path(lock))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(Error::path(&folder))?;
        // Another process may have built the images while this one waited.
        if !images.folder.is_dir() {
            remove_others(&folder)?;
            let new = TempDir::inside(&folder)?;
            // Editions of a suite share their downloads.
            let downloads = cache.join(suite.name()).join("packages");
            build(edition, suite, &downloads, new.path(), quiet)?;
            std::fs::rename(new.path().join("images"), &images.folder)
                .map_err(Error::path(&images.folder))?;
        }
        Ok(images)
    }

    /// The hypervisor, an ELF file.
    #[must_use]
    pub fn xen(&self) -> PathBuf {
        self.folder.join("xen")
    }

    /// The kernel of dom0 and of guests, an ELF file.
    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    /// The kernel as a boot loader reads it, which firmware and the emulator of an HVM guest need.
    #[must_use]
    pub fn boot_image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The root file system of a domain, a cpio archive.
    #[must_use]
    pub fn root(&self, kind: Kind) -> PathBuf {
        self.folder.join(kind.name()).with_extension("cpio")
    }

    /// Names of the libraries in a domain's root.
    pub(crate) fn libraries(&self, kind: Kind) -> Result<BTreeSet<String>> {
        let list = self.list(kind);
        let text = std::fs::read_to_string(&list).map_err(Error::path(list))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn list(&self, kind: Kind) -> PathBuf {
        self.folder.join(kind.name()).with_extension("libraries")
    }
}

/// The content of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    /// The toolstack, and what most experiments need.
    Base,
    /// Also the toolstack's own hotplug scripts, an operator's network tools, Open vSwitch, OVN and an emulator for HVM guests.
    Network,
    /// As `Network` with libvirt in place of OVN.
    Libvirt,
    /// As `Base`, with the newest kernel of the release's backports.
    Backports,
    /// As `Base`, with VLAN devices in dom0.
    Vlan,
}

impl Edition {
    /// The name of the folder below the cache.
    fn folder(self, suite: Suite) -> String {
        match self {
            Self::Base => suite.name().to_owned(),
            Self::Network => format!("{suite}-network"),
            Self::Libvirt => format!("{suite}-libvirt"),
            Self::Backports => format!("{suite}-backports"),
            Self::Vlan => format!("{suite}-vlan"),
        }
    }

    /// The parts of a domain's root.
    fn parts(self, kind: Kind) -> &'static [&'static root::Plan] {
        match (self, kind) {
            (Self::Base | Self::Backports, Kind::Dom0) => &[&root::DOM0],
            (Self::Vlan, Kind::Dom0) => &[&root::DOM0, &root::VLAN],
            (Self::Base | Self::Backports | Self::Vlan, Kind::DomU) => &[&root::DOMU],
            (Self::Network, Kind::Dom0) => {
                &[&root::DOM0, &root::HOTPLUG, &root::OPERATOR, &root::OVN]
            }
            (Self::Libvirt, Kind::Dom0) => {
                &[&root::DOM0, &root::HOTPLUG, &root::OPERATOR, &root::LIBVIRT]
            }
            (Self::Network | Self::Libvirt, Kind::DomU) => {
                &[&root::DOMU, &root::HOTPLUG, &root::DEVD]
            }
        }
    }

    /// The pocket whose packages are preferred, if there is one.
    fn pocket(self, suite: Suite) -> Option<String> {
        (self == Self::Backports).then(|| format!("{suite}-backports"))
    }

    /// Whether it has an operator's network tools.
    fn has_network(self) -> bool {
        matches!(self, Self::Network | Self::Libvirt)
    }
}

named::named! {
    /// Which domain a root is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Kind {
        /// dom0.
        Dom0 => "dom0",
        /// A guest.
        DomU => "domu",
    }
}

/// The packages to fetch. Their dependencies come with them.
fn packages(edition: Edition, suite: Suite) -> Vec<String> {
    let xen = suite.xen();
    let versioned = [format!("xen-hypervisor-{xen}-amd64"), format!("xen-utils-{xen}")];
    let others = [
        "busybox-static",
        "dash",
        "ethtool",
        "iperf3",
        "iproute2",
        "iputils-ping",
        "linux-image-amd64",
        "tcpdump",
        "xenstore-utils",
    ];
    let network =
        ["bash", "ipxe", "nftables", "openvswitch-switch", "qemu-system-xen", "xen-utils-common"];
    let network = network.iter().filter(|_| edition.has_network());
    let ovn = ["ovn-central", "ovn-host"];
    let ovn = ovn.iter().filter(|_| edition == Edition::Network);
    let libvirt = ["libvirt-clients", "libvirt-daemon-driver-xen"];
    let libvirt = libvirt.iter().filter(|_| edition == Edition::Libvirt);
    let others =
        others.iter().chain(network).chain(ovn).chain(libvirt).map(|name| (*name).to_owned());
    versioned.into_iter().chain(others).collect()
}

/// A digest of everything that decides the images' content, except the versions on the mirrors.
fn digest(edition: Edition, suite: Suite) -> String {
    let mut digest = Sha256::new();
    digest.update(format!("{FORMAT} {suite} {:?}", packages(edition, suite)));
    for part in Kind::ALL.iter().flat_map(|kind| edition.parts(*kind)) {
        digest.update(part.describe());
    }
    lab::hexadecimal(&digest.finalize()[..6])
}

/// Removes images of other versions of this code, and what killed builds have left.
fn remove_others(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(Error::path(folder))? {
        let path = entry.map_err(Error::path(folder))?.path();
        if path.is_dir() && !path.ends_with("packages") {
            std::fs::remove_dir_all(&path).map_err(Error::path(path))?;
        }
    }
    Ok(())
}

/// Builds everything into `new/images`.
fn build(edition: Edition, suite: Suite, downloads: &Path, new: &Path, quiet: bool) -> Result<()> {
    let progress = Progress::new(STEPS, quiet);
    let folder = |name: &str| {
        let path = new.join(name);
        std::fs::create_dir(&path).map_err(Error::path(&path)).map(|()| path)
    };
    progress.step(format!("fetch the package lists of {suite}"));
    let apt = Apt::update(suite, edition.pocket(suite), &folder("apt")?)?;
    let packages = apt.closure(&packages(edition, suite))?;
    progress.step(format!("download {} packages", packages.len()));
    let files = apt.download(&packages, downloads)?;
    progress.step("unpack them");
    let stage = folder("stage")?;
    unpack(&files, &stage)?;
    progress.step("make the images");
    make(edition, suite, &stage, &Images { folder: folder("images")? })
}

/// Unpacks packages into `stage`, where `/bin` and the like are links into `/usr`, as in current Debian releases.
pub(crate) fn unpack(packages: &[PathBuf], stage: &Path) -> Result<()> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        let real = stage.join("usr").join(name);
        std::fs::create_dir_all(&real).map_err(Error::path(real))?;
        let link = stage.join(name);
        std::os::unix::fs::symlink(Path::new("usr").join(name), &link)
            .map_err(Error::path(link))?;
    }
    for package in packages {
        let mut content = lab::command("dpkg-deb")?;
        content.arg("--fsys-tarfile").arg(package);
        let archive = tool::output(content)?;
        let mut tar = lab::command("tar")?;
        tar.args(["--extract", "--keep-directory-symlink", "--no-same-owner", "--directory"]);
        tar.arg(stage).args(["--exclude=./usr/share/doc", "--exclude=./usr/share/man"]);
        // These are most of the kernel's modules, for hardware that the machine does not have.
        for folder in ["gpu", "media", "infiniband", "staging", "iio"] {
            tar.arg(format!("--exclude=*/kernel/drivers/{folder}"));
        }
        tool::feed(tar, archive)?;
    }
    Ok(())
}

/// The path of the kernel, which Debian puts beside its modules since Linux 7.
fn vmlinuz(stage: &Path, release: &str) -> PathBuf {
    let beside = stage.join(format!("usr/lib/modules/{release}/vmlinuz"));
    if beside.is_file() { beside } else { stage.join(format!("boot/vmlinuz-{release}")) }
}

fn make(edition: Edition, suite: Suite, stage: &Path, images: &Images) -> Result<()> {
    let write =
        |path: PathBuf, bytes: &[u8]| std::fs::write(&path, bytes).map_err(Error::path(path));
    let xen = stage.join(format!("boot/xen-{}-amd64.gz", suite.xen()));
    write(images.xen(), &kernel::read_unpacked(&xen)?)?;
    let modules = Modules::find(stage)?;
    let vmlinuz = vmlinuz(stage, modules.release());
    kernel::unpack(&vmlinuz, &images.kernel())?;
    std::fs::copy(&vmlinuz, images.boot_image()).map_err(Error::path(&vmlinuz))?;
    for kind in Kind::ALL {
        let archive = root::make(edition.parts(kind), suite, stage, &modules)?;
        let libraries = archive.paths().filter(|path| path.contains(".so"));
        let libraries: Vec<&str> = libraries.map(file_name).collect();
        write(images.list(kind), libraries.join("\n").as_bytes())?;
        write(images.root(kind), &archive.finish())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_images_are_used_as_they_are() {
        let cache = TempDir::new().expect("folder");
        let whole = cache.path().join("bookworm").join(digest(Edition::Base, Suite::Bookworm));
        std::fs::create_dir_all(&whole).expect("folders");
        let images = Images::prepare(Suite::Bookworm, cache.path(), true).expect("nothing to do");
        assert_eq!(images.xen(), whole.join("xen"));
    }

    #[test]
    fn half_built_images_and_those_of_other_versions_are_removed_and_downloads_stay() {
        let folder = TempDir::new().expect("folder");
        for name in ["xenlab-17-0/images", "0123456789ab", "packages"] {
            std::fs::create_dir_all(folder.path().join(name)).expect("folders");
        }
        std::fs::write(folder.path().join("lock"), "").expect("file");
        remove_others(folder.path()).expect("removed");
        let mut left: Vec<_> = std::fs::read_dir(folder.path())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["lock", "packages"]);
    }

    #[test]
    fn each_suite_has_its_own_images() {
        let all = [Edition::Base, Edition::Network, Edition::Libvirt, Edition::Vlan]
            .map(|edition| Suite::ALL.map(|suite| digest(edition, suite)));
        let distinct: BTreeSet<_> = all.as_flattened().iter().collect();
        assert_eq!(distinct.len(), 8);
        let base = packages(Edition::Base, Suite::Trixie);
        assert!(base.contains(&"xen-hypervisor-4.20-amd64".to_owned()));
        let network = packages(Edition::Network, Suite::Trixie);
        assert!(base.iter().all(|package| network.contains(package)));
    }
}
