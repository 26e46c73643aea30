//! Temporary folders.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// A new folder that only this user can read. It is removed with its content when dropped, unless it was renamed.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes one in the system's folder for temporary files.
    ///
    /// # Errors
    /// [`Error::Io`], naming the folder.
    pub fn new() -> Result<Self> {
        Self::inside(&std::env::temp_dir())
    }

    /// Makes one in another folder, which must exist.
    pub fn inside(parent: &Path) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("pvnet-{}-{number}", std::process::id()));
            // Never an existing folder: another user may own it.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(path.display().to_string())(error)),
            }
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.0) {
            // It was renamed to a place where it stays.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => eprintln!("clean-up: {}: {error}", self.0.display()),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_differ_and_are_removed_with_their_content() {
        let [first, second] =
            [TempDir::new(), TempDir::new()].map(|folder| folder.expect("folder"));
        assert_ne!(first.path(), second.path());
        std::fs::write(first.path().join("inside"), "x").expect("write");
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && second.path().exists());
    }

    #[test]
    fn a_renamed_folder_stays() {
        let parent = TempDir::new().expect("folder");
        let kept = parent.path().join("kept");
        let folder = TempDir::inside(parent.path()).expect("folder");
        std::fs::rename(folder.path(), &kept).expect("rename");
        drop(folder);
        assert!(kept.exists());
    }
}
