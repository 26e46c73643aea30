//! A QEMU that plugins can be loaded into.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab::Progress;

use crate::folder::Folder;
use crate::image::{Apt, unpack};
use crate::{Error, Result, Suite, tool};

/// The versions whose plugin interface is number 4: a later one calls plugins another way.
const MAJOR: u32 = 10;
/// What every Debian has, in the version of its loader.
const OWN: [&str; 3] = ["libc6", "libgcc-s1", "gcc-12-base"];

/// QEMU 10, this machine's or one of our own.
#[derive(Clone, Debug)]
pub struct Emulator {
    /// Where its packages were unpacked, if it is not installed.
    root: Option<PathBuf>,
}

impl Emulator {
    /// This machine's QEMU if it is of the right version; else Debian's, of the suite or its
    /// backports, unpacked below `cache` now unless an earlier call has done so. Nothing is installed.
    ///
    /// # Errors
    /// [`Error::Packages`] if the mirrors fail or have no such version; [`Error::Path`];
    /// [`lab::Error::Interrupted`] as [`Error::Lab`].
    pub fn prepare(suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        let installed = Self { root: None };
        if installed.version().is_ok_and(|version| version == MAJOR) {
            return Ok(installed);
        }
        let folder = cache.join("qemu");
        let own = Self { root: Some(folder.join(format!("{suite}-{MAJOR}"))) };
        if own.root.as_ref().is_some_and(|root| root.is_dir()) {
            return Ok(own);
        }
        std::fs::create_dir_all(&folder).map_err(Error::path(&folder))?;
        let new = Folder::inside(&folder)?;
        fetch(suite, new.path(), quiet)?;
        if let Some(root) = &own.root {
            let unpacked = new.path().join("root");
            // Before it has its name: what has it is taken as it is.
            Self { root: Some(unpacked.clone()) }.check(suite)?;
            match std::fs::rename(unpacked, root) {
                // Another process was faster.
                Err(_) if root.is_dir() => {}
                other => other.map_err(Error::path(root))?,
            }
        }
        Ok(own)
    }

    /// QEMU, to be given the rest of its command line.
    ///
    /// # Errors
    /// [`lab::Error::MissingTool`] as [`Error::Lab`].
    pub fn command(&self) -> Result<Command> {
        let Some(root) = &self.root else { return Ok(lab::command("qemu-system-x86_64")?) };
        let mut command = lab::command(&root.join("usr/bin/qemu-system-x86_64").to_string_lossy())?;
        command.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
        command.arg("-L").arg(root.join("usr/share/seabios"));
        command.arg("-L").arg(root.join("usr/share/qemu"));
        Ok(command)
    }

    fn version(&self) -> Result<u32> {
        let mut command = self.command()?;
        command.arg("--version");
        let text = tool::run(command)?;
        major(&text).ok_or_else(|| Error::Parse {
            what: "QEMU's version".to_owned(),
            cause: "no number".to_owned(),
            text,
        })
    }

    fn check(&self, suite: Suite) -> Result<()> {
        let found = self.version()?;
        let cause = format!("QEMU {found} came, and the plugin needs {MAJOR}");
        let what = "no QEMU for plugins".to_owned();
        if found == MAJOR { Ok(()) } else { Err(Error::Packages { what, suite, cause }) }
    }
}

/// `QEMU emulator version 10.0.2 (Debian …)`
fn major(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("version ")?;
    version.split('.').next()?.parse().ok()
}

fn fetch(suite: Suite, new: &Path, quiet: bool) -> Result<()> {
    let progress = Progress::new(3, quiet);
    let folder = |name: &str| {
        let path = new.join(name);
        std::fs::create_dir(&path).map_err(Error::path(&path)).map(|()| path)
    };
    progress.step(format!("ask the mirrors for QEMU {MAJOR}"));
    // Bookworm's own is 7.2.
    let backports = (suite == Suite::Bookworm).then(|| format!("{suite}-backports"));
    let apt = Apt::update_with(suite, backports, &folder("apt")?)?;
    let mut packages = apt.closure(&["qemu-system-x86".to_owned()])?;
    packages.retain(|package| !OWN.contains(&package.name()));
    progress.step(format!("download {} packages", packages.len()));
    let files = apt.download(&packages, &folder("packages")?)?;
    progress.step("unpack them");
    unpack(&files, &folder("root")?)?;
    progress.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_first_number() {
        let text =
            "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\nCopyright\n";
        assert_eq!(major(text), Some(10));
        assert_eq!(major("QEMU emulator version 7.2.22"), Some(7));
        assert_eq!(major("qemu: not found"), None);
    }
}
