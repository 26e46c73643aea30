//! QEMU: the installed one, one at a path, or a certain version fetched from Debian.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::{self, Wanted};
use crate::{Error, Result, Suite, tool};

/// The major version with plugin interface 4. Later versions call plugins differently.
const MAJOR: u32 = 10;

/// The program's name.
const PROGRAM: &str = "qemu-system-x86_64";

/// A program QEMU, and its folder if it was fetched.
#[derive(Clone, Debug)]
pub struct Emulator {
    program: PathBuf,
    /// Where its packages were unpacked, if it was downloaded.
    root: Option<PathBuf>,
}

impl Emulator {
    /// The QEMU at a path, or the installed one by its name, whatever its version.
    pub fn any(program: impl Into<PathBuf>) -> Result<Self> {
        let emulator = Self { program: program.into(), root: None };
        emulator.command().map(|_| emulator)
    }

    /// The QEMU at a path, which must be of the right version.
    pub fn given(program: &Path) -> Result<Self> {
        let emulator = Self { program: program.to_owned(), root: None };
        let found = emulator.version_line()?;
        if major(&found) == Some(MAJOR) {
            return Ok(emulator);
        }
        Err(Error::Emulator { program: program.to_owned(), found, needed: MAJOR })
    }

    /// The version that loads the profiler's plugin: [`prepare_version`](Self::prepare_version).
    pub fn prepare(suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        Self::prepare_version(MAJOR, suite, cache, quiet)
    }

    /// The installed QEMU if it has this major version. Otherwise Debian's, from the suite, its backports or an older
    /// release: it is unpacked below `cache`, unless an earlier call has done so. Nothing is installed.
    pub fn prepare_version(wanted: u32, suite: Suite, cache: &Path, quiet: bool) -> Result<Self> {
        let installed = Self { program: PROGRAM.into(), root: None };
        if installed.version().is_ok_and(|version| version == wanted) {
            return Ok(installed);
        }
        let root = cache.join("qemu").join(format!("{suite}-{wanted}"));
        let what = &format!("QEMU {wanted}");
        let pocket = pocket(wanted, suite);
        let packages = Wanted { what, packages: &["qemu-system-x86"], suite, pocket };
        let check = |root: &Path| Self::unpacked(root.to_owned()).check(wanted, suite);
        packages::fetch(&root, &packages, quiet, check)?;
        Ok(Self::unpacked(root))
    }

    fn unpacked(root: PathBuf) -> Self {
        Self { program: root.join("usr/bin").join(PROGRAM), root: Some(root) }
    }

    /// Where its packages were unpacked, if it was downloaded.
    #[must_use]
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// The start of QEMU's command line.
    pub fn command(&self) -> Result<Command> {
        let mut command = lab::command(&self.program.to_string_lossy())?;
        if let Some(root) = &self.root {
            let libraries = root.join("usr/lib/x86_64-linux-gnu");
            // The installed libraries may have another version.
            command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
            command.env("LD_LIBRARY_PATH", libraries);
            command.arg("-L").arg(root.join("usr/share/seabios"));
            command.arg("-L").arg(root.join("usr/share/qemu"));
        }
        Ok(command)
    }

    /// The major number of its version.
    pub fn version(&self) -> Result<u32> {
        let text = self.version_line()?;
        major(&text).ok_or_else(|| Error::parse("QEMU's version", "no number", text))
    }

    /// Its version in its own words: `QEMU emulator version 10.0.2 (Debian …)`.
    pub fn version_line(&self) -> Result<String> {
        let mut command = self.command()?;
        command.arg("--version");
        let text = tool::run(command)?;
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    fn check(&self, wanted: u32, suite: Suite) -> Result<()> {
        let (found, suite) = (self.version()?, suite.name());
        let (what, cause) = (format!("no QEMU {wanted}"), format!("the mirrors have QEMU {found}"));
        if found == wanted { Ok(()) } else { Err(Error::Packages { what, suite, cause }) }
    }
}

/// `QEMU emulator version 10.0.2 (Debian …)`
fn major(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("version ")?;
    version.split('.').next()?.parse().ok()
}

/// The release or pocket of Debian that has this version, if it is not the suite itself.
fn pocket(wanted: u32, suite: Suite) -> Option<String> {
    match (wanted, suite) {
        (5, _) => Some("bullseye".to_owned()),
        (MAJOR, Suite::Bookworm) => Some(format!("{suite}-backports")),
        _ => None,
    }
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

    #[test]
    fn a_qemu_of_another_version_is_refused_with_advice() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = lab::TempDir::new().expect("folder");
        let given = |text: &str| {
            let path = folder.path().join("qemu");
            std::fs::write(&path, format!("#!/bin/sh\necho '{text}'\n")).expect("write");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
            Emulator::given(&path).map(drop)
        };
        given("QEMU emulator version 10.0.2 (Debian 1:10.0.2)").expect("right");
        for text in ["QEMU emulator version 7.2.0", "QEMU emulator version 11.0.0", "busybox"] {
            let message = given(text).expect_err(text).to_string();
            assert!(message.contains(text), "{message}");
            assert!(
                message.contains("QEMU 10") && message.contains("without a folder"),
                "{message}"
            );
        }
        assert!(Emulator::given(Path::new("/no/such/qemu")).expect_err("none").is_missing_tool());
    }
}
