//! What a snapshot is known by: everything that the machine boots from.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::provenance::hex;

/// The version of the files.
pub const FORMAT: u32 = 4;
/// Stands for the folder that is another one in each run.
const FOLDER: &str = "FOLDER";

/// What a machine boots from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// What the machine is, in words.
    pub what: String,
    /// QEMU, as it names itself.
    pub qemu: String,
    /// QEMU's arguments.
    words: Vec<String>,
    /// The files among them.
    files: Vec<PathBuf>,
}

impl Identity {
    /// Of QEMU's arguments, in which `folder` is another one in each run, and of the files that it loads.
    pub fn new(
        (what, qemu): (&str, &str),
        command: &Command,
        folder: &Path,
        files: Vec<PathBuf>,
    ) -> Self {
        let folder = folder.display().to_string();
        let word = |word: &std::ffi::OsStr| word.to_string_lossy().replace(&folder, FOLDER);
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(word);
        Self { what: what.to_owned(), qemu: qemu.to_owned(), words: words.collect(), files }
    }

    /// Of a machine that does not exist.
    #[cfg(test)]
    pub fn named(what: &str) -> Self {
        Self { what: what.to_owned(), qemu: "QEMU 10".to_owned(), ..Self::default() }
    }

    /// QEMU and its arguments; folders that are other ones in each run have a fixed name.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The name of its snapshot: a digest of the arguments and of the files' contents.
    pub fn digest(&self) -> Result<String> {
        let mut digest = Sha256::new();
        digest.update(format!("{FORMAT} {} {:?}", self.qemu, self.words));
        for file in &self.files {
            digest.update(std::fs::read(file).map_err(Error::path(file))?);
        }
        Ok(hex(&digest.finalize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_the_same_if_its_arguments_and_files_are() {
        let folders = [lab::TempDir::new().unwrap(), lab::TempDir::new().unwrap()];
        let of = |folder: usize, memory: &str, content: &str, qemu: &str| {
            let folder = folders[folder].path();
            let root = folder.join("root");
            std::fs::write(&root, content).unwrap();
            let mut command = Command::new("qemu");
            command.args(["-m", memory]).arg("-initrd").arg(&root);
            Identity::new(("what", qemu), &command, folder, vec![root]).digest().unwrap()
        };
        let own = of(0, "1G", "root", "QEMU 10.0.2");
        // The folder has another name in each run.
        assert_eq!(own, of(1, "1G", "root", "QEMU 10.0.2"));
        assert_ne!(own, of(0, "2G", "root", "QEMU 10.0.2"));
        assert_ne!(own, of(0, "1G", "other", "QEMU 10.0.2"));
        assert_ne!(own, of(0, "1G", "root", "QEMU 10.0.7"));
    }
}
