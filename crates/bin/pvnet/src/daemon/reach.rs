//! What of the host the daemon reaches after its start.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the daemon may make files and sockets.
#[derive(Clone)]
pub(super) struct Reach {
    /// Folders, with all that is in them; none if it has no sandbox. The kernel goes by the folders that were there at the start,
    /// whatever their names are now.
    folders: Option<Vec<FileId>>,
    /// Whether it may connect to sockets.
    pub(super) connects: bool,
}

/// A file system's number, and that of a file on it.
type FileId = (u64, u64);

impl Reach {
    pub(super) fn everywhere() -> Self {
        Self { folders: None, connects: true }
    }

    pub(super) fn within(paths: &[PathBuf]) -> Self {
        Self {
            folders: Some(paths.iter().filter_map(|path| file_id(path)).collect()),
            connects: true,
        }
    }

    /// Whether it has a folder.
    pub(super) fn has(&self, folder: &Path) -> bool {
        let Some(folders) = &self.folders else { return true };
        let (mut folder, mut below) = (folder.to_owned(), None);
        while let Some(id) = file_id(&folder).filter(|id| below != Some(*id)) {
            if folders.contains(&id) {
                return true;
            }
            // The root is its own parent.
            below = Some(id);
            folder.push("..");
        }
        false
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_under_those_of_the_start_are_in_reach() {
        let folder = host::TempDir::new().unwrap();
        let [old, new, link] = ["old", "new", "link"].map(|name| folder.path().join(name));
        std::fs::create_dir_all(old.join("inside")).unwrap();
        std::os::unix::fs::symlink(old.join("inside"), &link).unwrap();
        let reach = Reach::within(&[old.clone(), new.clone()]);
        std::fs::create_dir(&new).unwrap();
        assert!([&old, &old.join("inside"), &link].iter().all(|path| reach.has(path)));
        // What comes later has no rule.
        let others = [&new, folder.path(), Path::new("/"), &old.join("missing")];
        assert!(!others.iter().any(|path| reach.has(path)));
        assert!(Reach::everywhere().has(&new));
    }
}
