//! A folder of one's own for a while.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Error, Result};

/// A new folder under the system's one for temporary files, removed with all that is in it when
/// dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one that nobody else can look into.
    pub fn new() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("pvnet-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            // Made, never taken over: what is there may be anybody's.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error::Path { path, source }),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("clean-up: {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_differ_and_go_with_their_content() {
        let [first, second] = [Folder::new(), Folder::new()].map(|folder| folder.unwrap());
        assert_ne!(first.path(), second.path());
        std::fs::write(first.path().join("inside"), "x").unwrap();
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && second.path().exists());
    }
}
