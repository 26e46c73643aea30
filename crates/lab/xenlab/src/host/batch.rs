//! A machine that nobody talks to: what is to be done is in its archive.
//!
//! Nothing from outside comes in after the start, so that with QEMU's `-icount` a second run executes the
//! same instructions in the same order: no agent, no share, no clock but the machine's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::overlay::{self, GUEST_ROOT, HostFile};
use super::{DomuConfig, Options, qemu};
use crate::image::{Images, Index, Kind};
use crate::{Emulator, Error, Result};
use lab::Folder;

/// A processor for [`CLOCK`]: what the emulator's clock and its copies of strings do badly is left out, and
/// page tables of five levels, which pvscope does not read.
pub const PROCESSOR: &str = "max,-smap,-smep,-x2apic,-erms,-fsrm,-la57";
/// Words of QEMU's command line with which two runs are the same: time is counted in instructions, one a nanosecond.
pub const CLOCK: [[&str; 2]; 3] =
    [["-icount", "shift=0,sleep=off"], ["-seed", "1"], ["-rtc", "base=2026-01-01,clock=vm"]];

/// What is done.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Whether there is a hypervisor, and dom0 on it; else the script runs on the machine itself.
    pub xen: bool,
    /// What dom0, or the machine, does, a shell script; when it ends the machine does.
    pub script: String,
    /// What every guest does, when it is up.
    pub guest_script: String,
    /// Guests that the script may make: `xl create /lab/NAME.cfg`.
    pub guests: Vec<DomuConfig>,
    /// Files of this machine that dom0 and guests get.
    pub files: Vec<HostFile>,
    /// More words of QEMU's command line, such as devices.
    pub devices: Vec<String>,
    /// Programs that are on no disk, which they get as well: their names and their bytes.
    pub programs: Vec<(String, Vec<u8>)>,
}

/// What has a kernel load programs at the same addresses each time.
pub const SAME_PLACES: &str = "norandmaps";

/// A batch that is ready to be run, any number of times.
#[derive(Debug)]
pub struct BatchHost {
    folder: Folder,
    images: Images,
    options: Options,
    root: PathBuf,
    xen: bool,
    devices: Vec<String>,
}

impl BatchHost {
    /// Writes what is booted.
    ///
    /// # Errors
    /// [`Error::Path`](crate::Error::Path); [`Error::Content`](crate::Error::Content) if a file needs a library that this machine lacks.
    pub fn new(images: &Images, batch: &Batch) -> Result<Self> {
        let folder = Folder::new()?;
        let root = folder.path().join("dom0.cpio");
        if batch.xen {
            overlay::write_batch(images, batch, &root)?;
        } else {
            overlay::write_linux(images, batch, &root)?;
        }
        // Off by default on an AMD that is itself virtual, which this one looks like; on as on a real one.
        let xen_arguments = "global-pages".to_owned();
        // Libraries lie where they do in every process: QEMU shares translated code, and a plugin is told of its first place.
        let kernel_arguments = SAME_PLACES.to_owned();
        let options = Options { xen_arguments, kernel_arguments, ..Options::default() };
        let (images, devices) = (images.clone(), batch.devices.clone());
        Ok(Self { folder, images, options, root, xen: batch.xen, devices })
    }

    /// QEMU's command line, to which a plugin can be added.
    ///
    /// Time is counted in instructions, one a nanosecond; memory is shared, for the plugin to read.
    ///
    /// # Errors
    /// [`lab::Error::MissingTool`] as [`Error::Lab`](crate::Error::Lab).
    pub fn command(&self, emulator: &Emulator) -> Result<Command> {
        let mut command = emulator.command()?;
        let memory = self.options.memory_mib;
        command.args(["-accel", "tcg", "-smp", "1", "-m", &memory.to_string()]);
        command.args(["-cpu", PROCESSOR]).args(CLOCK.as_flattened());
        let backend = format!("memory-backend-memfd,id=ram,size={memory}M,share=on");
        command.args(["-object", &backend, "-machine", "memory-backend=ram"]);
        command.args(["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
        if self.xen {
            qemu::boot(&mut command, &self.images, &self.options, &self.root);
        } else {
            qemu::boot_linux(&mut command, &self.images, &self.options, &self.root);
        }
        command.args(&self.devices);
        for path in [self.log(), self.printed()] {
            command.arg("-serial").arg(format!("file:{}", path.display()));
        }
        Ok(command)
    }

    /// The files that dom0, or the machine, and its guests start with.
    ///
    /// # Errors
    /// [`Error::Path`](crate::Error::Path); [`Error::Content`](crate::Error::Content) if what was written is no archive.
    pub fn files(&self) -> Result<BatchFiles> {
        BatchFiles::read(&self.root)
    }

    /// The console of the hypervisor and of dom0's kernel.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("console.log")
    }

    /// What the script has printed.
    #[must_use]
    pub fn printed(&self) -> PathBuf {
        self.folder.path().join("printed")
    }

    /// A folder that goes with this value.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// The files that the domains of a batch start with, as they lie in its archive.
#[derive(Debug)]
pub struct BatchFiles {
    archive: Vec<u8>,
    dom0: Index,
    /// The guests' archive is a file of dom0's: this one's places count from its start.
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

    /// The content of a regular file by its path in that domain, whose links were followed.
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
    use crate::image::Archive;

    #[test]
    fn files_of_dom0_and_of_guests_are_told_apart() {
        let mut guest = Archive::new();
        guest.file("usr/bin/tool", 0o755, b"the guest's");
        let mut dom0 = Archive::new();
        dom0.file("usr/bin/tool", 0o755, b"dom0's");
        dom0.file(GUEST_ROOT, 0o644, &guest.finish());
        let folder = Folder::new().expect("folder");
        let path = folder.path().join("dom0.cpio");
        std::fs::write(&path, dom0.finish()).expect("write");
        let files = BatchFiles::read(&path).expect("archives");
        let tool = |kind| files.file(kind, "/usr/bin/tool");
        assert_eq!(tool(Kind::Dom0), Some(&b"dom0's"[..]));
        assert_eq!(tool(Kind::DomU), Some(&b"the guest's"[..]));
        assert_eq!(files.file(Kind::DomU, "/usr/bin/other"), None);
    }

    #[test]
    fn without_guests_there_are_no_files_of_theirs() {
        let folder = Folder::new().expect("folder");
        let path = folder.path().join("dom0.cpio");
        std::fs::write(&path, Archive::new().finish()).expect("write");
        let files = BatchFiles::read(&path).expect("an archive");
        assert_eq!(files.file(Kind::DomU, "/init"), None);
        std::fs::write(&path, "text").expect("write");
        let error = BatchFiles::read(&path).expect_err("no archive").to_string();
        assert!(error.ends_with("dom0.cpio: no archive, or cut off"), "{error}");
    }
}
