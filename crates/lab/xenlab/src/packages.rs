//! Programs of Debian's packages, unpacked and not installed.

use std::path::{Path, PathBuf};

use lab::{Progress, TempDir};

use crate::image::{Apt, unpack};
use crate::{Error, Result, Suite};

/// Packages that must stay the installed ones: their version is that of the machine's dynamic loader.
pub(crate) const LOADER_PACKAGES: [&str; 3] = ["libc6", "libgcc-s1", "gcc-12-base"];

/// The folder with these packages of a suite and the libraries that they need, unpacked below `cache` under `name` unless an earlier
/// call has done so.
pub fn unpacked_packages(
    suite: Suite,
    cache: &Path,
    name: &str,
    packages: &[&str],
    quiet: bool,
) -> Result<PathBuf> {
    let folder = cache.join(name);
    let root = folder.join(suite.name());
    if root.is_dir() {
        return Ok(root);
    }
    std::fs::create_dir_all(&folder).map_err(Error::path(&folder))?;
    let new = TempDir::inside(&folder)?;
    let progress = Progress::new(3, quiet);
    let inside = |name: &str| {
        let path = new.path().join(name);
        std::fs::create_dir(&path).map_err(Error::path(&path)).map(|()| path)
    };
    progress.step(format!("look for {} on the mirrors", packages.join(", ")));
    let apt = Apt::update(suite, &inside("apt")?)?;
    let names: Vec<_> = packages.iter().map(|package| (*package).to_owned()).collect();
    let mut closure = apt.closure(&names)?;
    closure.retain(|package| !LOADER_PACKAGES.contains(&package.name()));
    progress.step(format!("download {} packages", closure.len()));
    let files = apt.download(&closure, &inside("packages")?)?;
    progress.step("unpack them");
    let unpacked = inside("root")?;
    unpack(&files, &unpacked)?;
    progress.finish();
    match std::fs::rename(unpacked, &root) {
        // Another process was faster.
        Err(_) if root.is_dir() => {}
        other => other.map_err(Error::path(&root))?,
    }
    Ok(root)
}
