//! Storage for the ledgers of a vif's rings: see [`ring::Ledger`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::LEDGER_LEN;
use shm::Region;

/// Which ring of a queue, or what else is kept for a later backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingKind {
    /// From the guest.
    Tx,
    /// To the guest.
    Rx,
    /// Control requests of the guest; one ring for all queues.
    Ctrl,
    /// Not a ring: the hash that the guest has set; one for all queues.
    Hash,
}

impl fmt::Display for RingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
            Self::Ctrl => "ctrl",
            Self::Hash => "hash",
        })
    }
}

/// The ledgers of one vif.
pub trait Ledgers: Send + Sync {
    /// The memory of one ring's ledger, of [`LEDGER_LEN`] bytes, with the content that an earlier
    /// backend left.
    fn ledger(&self, queue: u32, ring: RingKind) -> io::Result<Region>;

    /// Removes all of them, after the vif is gone.
    fn remove(&self) -> io::Result<()>;
}

/// Ledgers in anonymous memory, for a platform where the guests' rings end with the process too.
#[derive(Debug, Default)]
pub struct Anonymous {
    regions: Mutex<HashMap<(u32, RingKind), Arc<Region>>>,
}

impl Anonymous {
    fn regions(&self) -> MutexGuard<'_, HashMap<(u32, RingKind), Arc<Region>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledgers for Anonymous {
    fn ledger(&self, queue: u32, ring: RingKind) -> io::Result<Region> {
        let region = match self.regions().entry((queue, ring)) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(Arc::new(Region::anonymous(LEDGER_LEN)?)).clone(),
        };
        region.slice(0..LEDGER_LEN).map_err(io::Error::other)
    }

    fn remove(&self) -> io::Result<()> {
        self.regions().clear();
        Ok(())
    }
}

/// Ledgers in files, which outlive the process. They are mapped, so no write waits for a disk.
/// They belong into a directory that a restart of the machine empties (`/run`), since that ends the
/// rings too.
#[derive(Clone, Debug)]
pub struct Files {
    directory: PathBuf,
}

impl Files {
    /// Files in `directory`, which must be used for one vif only. It is created when needed.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    fn open(&self, name: &str) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.directory.join(name))?;
        // The file is new, or its creator was killed here. It is written, not only extended: on a
        // full file system this must fail here, not at the first access (SIGBUS).
        if file.metadata()?.len() < LEDGER_LEN as u64 {
            file.write_all_at(&[0; LEDGER_LEN], 0)?;
        }
        Ok(file)
    }
}

impl Ledgers for Files {
    fn ledger(&self, queue: u32, ring: RingKind) -> io::Result<Region> {
        Region::map(self.open(&format!("{ring}-{queue}"))?, 0, LEDGER_LEN)
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LAST: usize = LEDGER_LEN - 8;

    /// The ledgers are separate, and keep their content.
    fn keep_what_was_written(ledgers: &impl Ledgers) {
        let read = |queue, ring| ledgers.ledger(queue, ring).unwrap().read(LAST);
        ledgers.ledger(0, RingKind::Tx).unwrap().write(LAST, 7u64).unwrap();
        assert_eq!(read(0, RingKind::Tx), Ok(7u64));
        assert_eq!(read(0, RingKind::Rx), Ok(0));
        assert_eq!(read(1, RingKind::Tx), Ok(0));
    }

    #[test]
    fn anonymous_ledgers_are_kept_until_the_vif_is_gone() {
        let ledgers = Anonymous::default();
        keep_what_was_written(&ledgers);
        ledgers.remove().unwrap();
        keep_what_was_written(&ledgers);
    }

    #[test]
    fn files_are_kept_until_the_vif_is_gone_and_only_the_owner_reads_them() {
        let name = format!("pvnet-ledgers-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let ledgers = Files::new(&directory);
        keep_what_was_written(&ledgers);
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(&directory.join("tx-0")), 0o600);

        // A file whose creator was killed before it had written all of it.
        fs::write(directory.join("rx-1"), [1; 100]).unwrap();
        assert_eq!(ledgers.ledger(1, RingKind::Rx).unwrap().read(0), Ok(0u64));

        ledgers.remove().unwrap();
        assert!(!directory.exists());
        ledgers.remove().unwrap();
        keep_what_was_written(&ledgers);
        ledgers.remove().unwrap();
    }
}
