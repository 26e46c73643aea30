//! Where images are kept.

use std::path::{Path, PathBuf};

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
