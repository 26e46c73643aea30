//! Programs of Debian's packages, unpacked and not installed.

use std::path::{Path, PathBuf};

use lab::{Progress, TempDir};

use crate::image::{Apt, unpack};
use crate::{Error, Result, Suite};

/// Packages that are not unpacked: their libraries must match the machine's dynamic loader, as the installed ones do.
const LOADER_PACKAGES: [&str; 3] = ["libc6", "libgcc-s1", "gcc-12-base"];

/// A folder `name` below `cache` with these packages of a suite and the libraries that they need. They are unpacked unless an
/// earlier call has done so.
pub fn unpacked_packages(
    suite: Suite,
    cache: &Path,
    name: &str,
    packages: &[&str],
    quiet: bool,
) -> Result<PathBuf> {
    let root = cache.join(name).join(suite.name());
    let what = &packages.join(", ");
    fetch(&root, &Wanted { what, packages, suite, pocket: None }, quiet, |_| Ok(()))?;
    Ok(root)
}

/// Packages to be unpacked.
pub(crate) struct Wanted<'a> {
    /// Their description in progress steps.
    pub(crate) what: &'a str,
    pub(crate) packages: &'a [&'a str],
    pub(crate) suite: Suite,
    /// The part of the suite whose packages are preferred, such as backports.
    pub(crate) pocket: Option<String>,
}

/// Unpacks packages to `root`, unless an earlier call has done so. `check` gets the new folder before it is renamed to `root`: an existing `root` is
/// used unchecked.
pub(crate) fn fetch(
    root: &Path,
    wanted: &Wanted<'_>,
    quiet: bool,
    check: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    let folder = root.parent().unwrap_or(root);
    std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
    let new = TempDir::inside(folder)?;
    let progress = Progress::new(3, quiet);
    let inside = |name: &str| {
        let path = new.path().join(name);
        std::fs::create_dir(&path).map_err(Error::path(&path)).map(|()| path)
    };
    progress.step(format!("look for {} on the mirrors", wanted.what));
    let apt = Apt::update(wanted.suite, wanted.pocket.clone(), &inside("apt")?)?;
    let names: Vec<_> = wanted.packages.iter().map(|package| (*package).to_owned()).collect();
    let mut closure = apt.closure(&names)?;
    closure.retain(|package| !LOADER_PACKAGES.contains(&package.name()));
    progress.step(format!("download {} packages", closure.len()));
    let files = apt.download(&closure, &inside("packages")?)?;
    progress.step("unpack them");
    let unpacked = inside("root")?;
    unpack(&files, &unpacked)?;
    progress.finish();
    check(&unpacked)?;
    match std::fs::rename(unpacked, root) {
        // Another process was faster.
        Err(_) if root.is_dir() => Ok(()),
        other => other.map_err(Error::path(root)),
    }
}

/// The file that cargo puts at the top of its target folder.
const MARK: &str = "CACHEDIR.TAG";

/// The folder `xenlab` in the target folder that this program was built in, or in the user's cache if it is installed.
#[must_use]
pub fn default_cache() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    build_folder(&program).map_or_else(user_cache, Path::to_owned).join("xenlab")
}

/// The user's cache (XDG Base Directory Specification), or `target` where there is no home.
fn user_cache() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let absolute = folder("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let cache = absolute.or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(|| "target".into())
}

/// The target folder that cargo built `program` in.
fn build_folder(program: &Path) -> Option<&Path> {
    program.ancestors().skip(1).find(|folder| folder.join(MARK).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_folder_is_found_from_any_depth() {
        let folder = lab::TempDir::new().expect("folder");
        let built = folder.path().join("target");
        std::fs::create_dir(&built).expect("folder");
        let program = built.join("debug/deps/short-0123");
        assert_eq!(build_folder(&program), None);
        std::fs::write(built.join(MARK), "").expect("mark");
        assert_eq!(build_folder(&program), Some(built.as_path()));
        assert_eq!(build_folder(&built.join("release/xenlab")), Some(built.as_path()));
    }
}
