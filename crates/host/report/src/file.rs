//! Files that are either whole or absent, and errors that name them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What can go wrong with a document or the file that holds it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}: {cause}{}", path.display(), advice(cause))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The file could not be written; what stood there before still does.
    #[error("cannot write {}: {cause}{}", path.display(), advice(cause))]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The text is not a benchmark document.
    #[error("not a benchmark document: {0}")]
    Json(#[from] serde_json::Error),
    /// A row that no measurement can have produced.
    #[error("not a benchmark document: row {name:?} breaks min ≤ median ≤ max, n ≥ 1")]
    Row {
        /// The name of the row.
        name: String,
    },
    /// One of the above, in a file.
    #[error("{}: {cause}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with its content.
        #[source]
        cause: Box<Error>,
    },
}

/// What to do about the commonest causes.
fn advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => "; check the path, its directory must exist",
        io::ErrorKind::PermissionDenied => "; choose a place this user may use, or run with sudo",
        io::ErrorKind::StorageFull => "; free some space first",
        _ => "",
    }
}

/// The whole text of `path`.
///
/// # Errors
/// [`Error::Read`], naming the file and the cause.
pub fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|cause| Error::Read { path: path.to_owned(), cause })
}

/// Makes `contents` the content of `path` in one step: a reader sees the old file or the new one, whole, even if the
/// writer dies half-way. The temporary file lies beside `path`, because a rename is atomic only within a file system.
///
/// # Errors
/// [`Error::Write`], naming the file and the cause; no temporary file is left.
pub fn write_atomic(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let temporary = temporary_beside(path);
    let written = write_synced(&temporary, contents).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|cause| {
        // The first failure is the one worth telling; there may be nothing to remove.
        let _ = fs::remove_file(&temporary);
        Error::Write { path: path.to_owned(), cause }
    })
}

/// A name beside `path` that no other writer, here or in another process, uses at the same time.
fn temporary_beside(path: &Path) -> PathBuf {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.{write}.tmp", std::process::id()))
}

fn write_synced(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_replaces_the_file_and_leaves_nothing_beside_it() {
        let folder = host::TempDir::new().unwrap();
        let path = folder.path().join("bench.json");
        write_atomic(&path, b"old").expect("first write");
        write_atomic(&path, b"new").expect("second write");
        assert_eq!(read(&path).expect("read back"), "new");
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn a_failed_write_names_the_file_the_cause_and_the_next_step() {
        let path = Path::new("/nonexistent-folder/bench.json");
        let message = write_atomic(path, b"").expect_err("no such folder").to_string();
        assert!(
            message.starts_with("cannot write /nonexistent-folder/bench.json: No such file"),
            "{message}"
        );
        assert!(message.ends_with("its directory must exist"), "{message}");
    }

    #[test]
    fn a_failed_rename_leaves_no_temporary_file() {
        let folder = host::TempDir::new().unwrap();
        let occupied = folder.path().join("occupied");
        fs::create_dir_all(occupied.join("child")).expect("a directory in the way");
        assert!(write_atomic(&occupied, b"text").is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
    }
}
