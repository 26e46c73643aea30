//! The folder of snapshots: what is kept, and how much of it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use xenlab::default_cache;

use super::identity::{FORMAT, Identity};
use crate::error::{Error, Result};
use crate::programs::absolute;

/// Bytes of snapshots that are kept. Those that were used longest ago go first.
pub const KEPT_BYTES: u64 = 4 << 30;

/// The machine's state, as QEMU saves it.
const STATE: &str = "state";
/// What a snapshot says about itself.
const ABOUT: &str = "about.json";

/// The snapshots of this build folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// A machine that has booted.
#[derive(Clone, Debug)]
pub struct Snapshot {
    folder: PathBuf,
    about: About,
    used: SystemTime,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct About {
    format: u32,
    what: String,
    qemu: String,
    /// The length of the state: a file that was cut short is no snapshot.
    length: u64,
    /// Bytes of the disk that it takes: it has holes.
    bytes: u64,
    /// What the machine had printed, by console.
    printed: Vec<String>,
}

impl Store {
    /// The store in the target folder that this program was built in.
    pub fn of_this_machine() -> Result<Self> {
        Ok(Self::at(absolute(&default_cache())?.join("snapshots")))
    }

    /// The store in a folder, which need not exist.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The snapshot of this name, if it was saved before.
    pub fn find(&self, name: &str) -> Option<Snapshot> {
        Snapshot::read(&self.folder.join(name))
    }

    /// All snapshots, the one that was used last first.
    pub fn all(&self) -> Vec<Snapshot> {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut all: Vec<_> = folders.filter_map(|entry| Snapshot::read(&entry.path())).collect();
        all.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.used));
        all
    }

    /// Adds a snapshot, whose state `save` writes to a file. `printed` is what the consoles have shown. Others that exceed what is
    /// kept are removed.
    pub fn add(
        &self,
        name: &str,
        identity: &Identity,
        printed: Vec<String>,
        save: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Snapshot> {
        fs::create_dir_all(&self.folder).map_err(Error::path(&self.folder))?;
        let unfinished = lab::TempDir::inside(&self.folder)?;
        let state = unfinished.path().join(STATE);
        save(&state)?;
        let size = fs::metadata(&state).map_err(Error::path(&state))?;
        // Linux counts blocks of 512 bytes, whatever the file system's are.
        let (length, bytes) = (size.len(), size.len().min(size.blocks() * 512));
        let Identity { what, qemu, .. } = identity;
        let (what, qemu) = (what.clone(), qemu.clone());
        let about = About { format: FORMAT, what, qemu, length, bytes, printed };
        let text = serde_json::to_vec(&about).map_err(|error| Error::Usage(error.to_string()))?;
        let file = unfinished.path().join(ABOUT);
        fs::write(&file, text).map_err(Error::path(&file))?;
        let folder = self.folder.join(name);
        // An older one of this machine.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(Error::path(&folder))?;
        // Its description comes last: without it a folder is no snapshot.
        for part in [STATE, ABOUT] {
            let moved = fs::rename(unfinished.path().join(part), folder.join(part));
            moved.map_err(Error::path(&folder))?;
        }
        let snapshot = Snapshot { folder, about, used: SystemTime::now() };
        self.make_room(&snapshot, KEPT_BYTES);
        Ok(snapshot)
    }

    /// Deletes strays, and the oldest snapshots beyond `kept` bytes; keeps `newest`.
    fn make_room(&self, newest: &Snapshot, kept: u64) {
        let mut left = kept.saturating_sub(newest.bytes());
        let all = self.all();
        for other in all.iter().filter(|other| other.folder != newest.folder) {
            match left.checked_sub(other.bytes()) {
                Some(rest) => left = rest,
                None => drop(other.remove()),
            }
        }
        // Earlier versions of pvscope kept files here.
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
        files.for_each(|file| drop(fs::remove_file(file)));
    }

    /// Removes all snapshots, or those whose names begin so. Returns what they were.
    pub fn clear(&self, names: &[String]) -> Result<Vec<Snapshot>> {
        let is_meant = |snapshot: &Snapshot| {
            names.is_empty() || names.iter().any(|name| snapshot.name().starts_with(name))
        };
        let removed: Vec<_> = self.all().into_iter().filter(is_meant).collect();
        removed.iter().try_for_each(Snapshot::remove)?;
        Ok(removed)
    }
}

impl Snapshot {
    fn read(folder: &Path) -> Option<Self> {
        let file = folder.join(ABOUT);
        let about: About = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
        let length = fs::metadata(folder.join(STATE)).ok()?.len();
        let used = fs::metadata(&file).ok()?.modified().ok()?;
        let is_whole = about.format == FORMAT && about.length == length;
        is_whole.then(|| Self { folder: folder.to_owned(), about, used })
    }

    /// The file of the machine's state.
    pub fn state(&self) -> PathBuf {
        self.folder.join(STATE)
    }

    /// Its name: the beginning of a digest.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What the machine is, in words.
    pub fn what(&self) -> &str {
        &self.about.what
    }

    /// The QEMU that saved it, as it names itself.
    pub fn qemu(&self) -> &str {
        &self.about.qemu
    }

    /// The bytes of the disk that it takes.
    pub fn bytes(&self) -> u64 {
        self.about.bytes
    }

    /// When it was used last.
    pub fn used(&self) -> SystemTime {
        self.used
    }

    /// What the machine had printed when it was saved, by console.
    pub fn printed(&self) -> &[String] {
        &self.about.printed
    }

    /// Notes that it is used now.
    pub fn touch(&self) {
        // Only the order of removal depends on it.
        let file = File::options().write(true).open(self.folder.join(ABOUT));
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Removes it.
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.folder).map_err(Error::path(&self.folder))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn add(store: &Store, name: &str, bytes: usize) -> Snapshot {
        let save = |state: &Path| fs::write(state, vec![7; bytes]).map_err(Error::path(state));
        store.add(name, &Identity::named(name), vec!["booted\n".to_owned()], save).unwrap()
    }

    #[test]
    fn what_is_saved_is_found_and_what_is_cut_short_is_not() {
        let folder = lab::TempDir::new().unwrap();
        let store = Store::at(folder.path().join("snapshots"));
        assert!(store.find("one").is_none() && store.all().is_empty());
        add(&store, "one", 100);
        let found = store.find("one").unwrap();
        assert_eq!((found.what(), found.qemu(), found.bytes()), ("one", "QEMU 10", 100));
        assert_eq!(found.printed(), ["booted\n"]);
        fs::write(found.state(), [7; 99]).unwrap();
        assert!(store.find("one").is_none(), "it is cut short");
        // A failure leaves nothing behind.
        let fails = |_: &Path| Err(Error::Usage("full".to_owned()));
        assert!(store.add("two", &Identity::named("two"), Vec::new(), fails).is_err());
        assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let folder = lab::TempDir::new().unwrap();
        let store = Store::at(folder.path().to_owned());
        fs::write(folder.path().join("of-an-earlier-version"), "x").unwrap();
        for (name, ago) in [("old", 30), ("older", 40), ("newest", 0)] {
            let file = add(&store, name, 100).folder.join(ABOUT);
            let at = SystemTime::now() - Duration::from_secs(ago);
            File::options().write(true).open(file).unwrap().set_modified(at).unwrap();
        }
        let names = || store.all().iter().map(Snapshot::name).collect::<Vec<_>>();
        assert_eq!(names(), ["newest", "old", "older"]);
        store.find("older").unwrap().touch();
        store.make_room(&store.find("newest").unwrap(), 250);
        assert_eq!(names(), ["older", "newest"]);
        assert!(!folder.path().join("of-an-earlier-version").exists());
        let clear = |begin: &[String]| -> Vec<String> {
            store.clear(begin).unwrap().iter().map(Snapshot::name).collect()
        };
        assert_eq!(clear(&["old".to_owned()]), ["older"]);
        assert_eq!(names(), ["newest"]);
        assert_eq!(clear(&[]), ["newest"]);
        assert!(names().is_empty());
    }
}
