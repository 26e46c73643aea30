//! Paths of files.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file of this project: the given path, or the file of this name beside this program.
pub fn built(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    if let Some(path) = given {
        return absolute(path);
    }
    let this = std::env::current_exe().map_err(Error::path("/proc/self/exe"))?;
    let folders = this.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Error::NotBuilt(name.to_owned()))
}

/// The path, independent of the working directory.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::path(path))
}
