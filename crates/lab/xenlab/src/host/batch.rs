//! A machine without connections to the outside, whose scripts are in its archive.
//!
//! Nothing comes in from outside after the start: no agent, no shared folder, no clock but the virtual one. So with
//! QEMU's `-icount` a second run executes the same instructions in the same order.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::domu::DomuConfig;
use super::options::{CLOCK, Options, PROCESSOR};
use super::overlay::{HostFile, add, concatenate, read, read_whole, script};
use super::qemu;
use crate::image::{Archive, Images, Index, Kind};
use crate::{Emulator, Error, Result};
use lab::TempDir;

/// A machine, its files and its scripts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Whether to boot Xen with dom0; otherwise the script runs on the machine itself.
    pub xen: bool,
    /// The shell script of dom0 or the machine. The machine powers off when it ends.
    pub script: String,
    /// The shell script of every guest.
    pub guest_script: String,
    /// Guests that the script may create: `xl create /lab/NAME.cfg`.
    pub guests: Vec<DomuConfig>,
    /// Files of this machine to copy into dom0 and guests.
    pub files: Vec<HostFile>,
    /// More arguments for QEMU, such as devices.
    pub devices: Vec<String>,
    /// Programs that are in memory: names and contents.
    pub programs: Vec<(String, Vec<u8>)>,
    /// More words of Xen's command line.
    pub xen_arguments: String,
}

/// The names of Xen, dom0's kernel and its archive in the folder where QEMU runs. Xen and dom0 see these names, so they are the same on
/// each host and in each run.
const NAMES: [&str; 3] = ["xen", "vmlinux", "dom0.cpio"];

/// The path of the guests' archive in a batch's dom0.
const GUEST_ROOT: &str = "lab/guests/domu.cpio";

/// The kernel argument that loads programs at the same addresses in every run.
pub const NO_ASLR: &str = "norandmaps";

/// A batch that is ready to run, any number of times.
#[derive(Debug)]
pub struct BatchHost {
    folder: TempDir,
    images: Images,
    options: Options,
    root: PathBuf,
    xen: bool,
    devices: Vec<String>,
}

impl BatchHost {
    /// Writes the archive that boots.
    pub fn new(images: &Images, batch: &Batch) -> Result<Self> {
        let folder = TempDir::new()?;
        let [xen, kernel, root] = NAMES.map(|name| folder.path().join(name));
        if batch.xen {
            for (file, link) in [(images.xen(), xen), (images.kernel(), kernel)] {
                symlink(&file, &link).map_err(Error::path(&link))?;
            }
            write_xen(images, batch, &root)?;
        } else {
            write_linux(images, batch, &root)?;
        }
        // Xen uses global pages on a real AMD processor, and by default not on a virtual one such as this.
        let xen_arguments = format!("global-pages {}", batch.xen_arguments);
        // QEMU shares translated code between processes, and shows a plugin only the code's first address. So
        // libraries must lie at the same address in each process.
        let kernel_arguments = NO_ASLR.to_owned();
        let options = Options { xen_arguments, kernel_arguments, ..Options::default() };
        let (images, devices) = (images.clone(), batch.devices.clone());
        Ok(Self { folder, images, options, root, xen: batch.xen, devices })
    }

    /// QEMU's command line. The caller may add a plugin.
    ///
    /// Time is counted in instructions, one per nanosecond. The guest's memory is shared, so that the plugin can read
    /// it.
    pub fn command(&self, emulator: &Emulator) -> Result<Command> {
        let mut command = emulator.command()?;
        let memory = self.options.memory_mib;
        command.args(["-accel", "tcg", "-smp", "1", "-m", &memory.to_string()]);
        command.args(["-cpu", PROCESSOR]).args(CLOCK.as_flattened());
        let backend = format!("memory-backend-memfd,id=ram,size={memory}M,share=on");
        command.args(["-object", &backend, "-machine", "memory-backend=ram"]);
        command.args(["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
        if self.xen {
            let [xen, kernel, root] = NAMES.map(Path::new);
            command.current_dir(self.folder.path());
            qemu::boot(&mut command, &qemu::Files { xen, kernel, root }, &self.options);
        } else {
            let more = &self.options.kernel_arguments;
            qemu::boot_linux(
                &mut command,
                &self.images,
                &qemu::linux_command_line(more),
                &self.root,
            );
        }
        command.args(&self.devices);
        for path in [self.log(), self.printed()] {
            command.arg("-serial").arg(format!("file:{}", path.display()));
        }
        Ok(command)
    }

    /// The files that dom0, or the machine, and its guests start with.
    pub fn files(&self) -> Result<BatchFiles> {
        BatchFiles::read(&self.root)
    }

    /// The archive that boots.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The console of the hypervisor and of dom0's kernel.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("console.log")
    }

    /// The file with the script's output.
    #[must_use]
    pub fn printed(&self) -> PathBuf {
        self.folder.path().join("printed")
    }

    /// The working folder, which is removed with this value.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Writes the archive of dom0, with the guests and the scripts in it.
fn write_xen(images: &Images, batch: &Batch, destination: &Path) -> Result<()> {
    let files: Vec<(&str, Vec<u8>)> = batch.files.iter().map(read).collect::<Result<_>>()?;
    let mut guest = Archive::new();
    script(&mut guest, "init", include_str!("../guest/domu.sh"));
    script(&mut guest, "lab/script", &batch.guest_script);
    programs(&mut guest, batch);
    add(&mut guest, images.libraries(Kind::DomU)?, &files)?;
    let mut guest_root = read_whole(&images.root(Kind::DomU))?;
    guest_root.extend(guest.finish());

    let mut overlay = Archive::new();
    script(&mut overlay, "init", include_str!("../guest/dom0.sh"));
    script(&mut overlay, "lab/script", &batch.script);
    script(&mut overlay, "etc/xen/scripts/vif-lab", include_str!("../guest/vif-lab.sh"));
    overlay.file("lab/guests/vmlinux", 0o644, &read_whole(&images.kernel())?);
    overlay.file(GUEST_ROOT, 0o644, &guest_root);
    for guest in &batch.guests {
        overlay.file(&format!("lab/{}.cfg", guest.name), 0o644, guest.text().as_bytes());
    }
    programs(&mut overlay, batch);
    add(&mut overlay, images.libraries(Kind::Dom0)?, &files)?;
    concatenate(&images.root(Kind::Dom0), &overlay.finish(), destination)
}

/// Writes the archive of a machine without a hypervisor: dom0's, with another init.
fn write_linux(images: &Images, batch: &Batch, destination: &Path) -> Result<()> {
    let files: Vec<(&str, Vec<u8>)> = batch.files.iter().map(read).collect::<Result<_>>()?;
    let mut overlay = Archive::new();
    script(&mut overlay, "init", include_str!("../guest/linux.sh"));
    script(&mut overlay, "lab/script", &batch.script);
    programs(&mut overlay, batch);
    add(&mut overlay, images.libraries(Kind::Dom0)?, &files)?;
    concatenate(&images.root(Kind::Dom0), &overlay.finish(), destination)
}

fn programs(archive: &mut Archive, batch: &Batch) {
    for (name, bytes) in &batch.programs {
        archive.file(&format!("usr/local/bin/{name}"), 0o755, bytes);
    }
}

/// The files that the domains of a batch start with.
#[derive(Debug)]
pub struct BatchFiles {
    archive: Vec<u8>,
    dom0: Index,
    /// The offset of the guests' archive in dom0's, and its index, whose offsets count from there.
    guest: Option<(usize, Index)>,
}

impl BatchFiles {
    fn read(path: &Path) -> Result<Self> {
        let archive = std::fs::read(path).map_err(Error::path(path))?;
        let broken = || Error::content(path.display().to_string(), &"no archive, or cut off");
        let dom0 = Index::of(&archive).ok_or_else(broken)?;
        let guest = match dom0.find(GUEST_ROOT) {
            Some(range) => Some((range.start, Index::of(&archive[range]).ok_or_else(broken)?)),
            None => None,
        };
        Ok(Self { archive, dom0, guest })
    }

    /// The content of the regular file at `path` in a domain of `kind`. The caller has resolved links in `path`.
    #[must_use]
    pub fn file(&self, kind: Kind, path: &str) -> Option<&[u8]> {
        let (start, index) = match kind {
            Kind::Dom0 => (0, &self.dom0),
            Kind::DomU => self.guest.as_ref().map(|(start, index)| (*start, index))?,
        };
        let range = index.find(path.trim_start_matches('/'))?;
        self.archive.get(start..)?.get(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_dom0_and_of_guests_are_separate() {
        let mut guest = Archive::new();
        guest.file("usr/bin/tool", 0o755, b"the guest's");
        let mut dom0 = Archive::new();
        dom0.file("usr/bin/tool", 0o755, b"dom0's");
        dom0.file(GUEST_ROOT, 0o644, &guest.finish());
        let folder = TempDir::new().expect("folder");
        let path = folder.path().join("dom0.cpio");
        std::fs::write(&path, dom0.finish()).expect("write");
        let files = BatchFiles::read(&path).expect("archives");
        let tool = |kind| files.file(kind, "/usr/bin/tool");
        assert_eq!(tool(Kind::Dom0), Some(&b"dom0's"[..]));
        assert_eq!(tool(Kind::DomU), Some(&b"the guest's"[..]));
        assert_eq!(files.file(Kind::DomU, "/usr/bin/other"), None);
    }

    #[test]
    fn without_guests_there_are_no_guest_files() {
        let folder = TempDir::new().expect("folder");
        let path = folder.path().join("dom0.cpio");
        std::fs::write(&path, Archive::new().finish()).expect("write");
        let files = BatchFiles::read(&path).expect("an archive");
        assert_eq!(files.file(Kind::DomU, "/init"), None);
        std::fs::write(&path, "text").expect("write");
        let error = BatchFiles::read(&path).expect_err("no archive").to_string();
        assert!(error.ends_with("dom0.cpio: no archive, or cut off"), "{error}");
    }
}
