//! The files of a recording: how long each may be, and how many there may be.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::blocks::{Block, Blocks, Content};

/// What a file's name ends with.
pub const EXTENSION: &str = ".pcapng";
/// Numbers of files are below this.
const NUMBERS: u64 = 10_000_000;
/// How long a writer waits after an error.
const PAUSE: Duration = Duration::from_secs(10);

/// Files `NAME.00001.pcapng` and so on in a folder. The newest stay; files of an earlier process count too. A new file is one more than
/// the limit until it has packets, or finds no room for them: then the oldest one is removed.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    name: String,
    pub(crate) most_bytes: u64,
    most_files: usize,
    /// How long a writer waits after an error.
    pub(crate) pause: Duration,
    last: u64,
    /// The first file, if it was opened beforehand.
    first: Option<(File, PathBuf)>,
    /// Whether no file is removed.
    keeps: Arc<AtomicBool>,
}

impl Files {
    /// Files in `folder` of at most `most_bytes` each, and at most `most_files` of them.
    #[must_use]
    pub fn new(folder: &Path, name: &str, most_bytes: u64, most_files: usize) -> Self {
        let (folder, name) = (folder.to_owned(), name.to_owned());
        let most_files = most_files.max(1);
        let (last, first, keeps) = (0, None, Arc::default());
        Self { folder, name, most_bytes, most_files, pause: PAUSE, last, first, keeps }
    }

    /// The same files, with another pause after an error.
    #[must_use]
    pub fn pausing(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// The same files; none is removed while `keeps` is true. Then another writer of this name has begun and removes surplus files.
    /// Its first file may be older than this writer's next one: this writer would remove it.
    #[must_use]
    pub fn keeping(self, keeps: Arc<AtomicBool>) -> Self {
        Self { keeps, ..self }
    }

    /// Opens the first file now, so that the operator who asks for a recording hears of an error. No other file is removed for it.
    ///
    /// # Errors
    /// The folder is not there, or files cannot be made there.
    pub fn open_first(&mut self) -> io::Result<()> {
        self.first = Some(self.open()?);
        Ok(())
    }

    /// The next file, which is new and empty.
    pub(crate) fn next(&mut self) -> io::Result<(File, PathBuf)> {
        self.first.take().map_or_else(|| self.open(), Ok)
    }

    /// Removes the oldest files where there are too many. Returns the number of the newest, if there is one.
    pub(crate) fn make_room(&self) -> io::Result<Option<u64>> {
        let numbers = self.numbers()?;
        let too_many = numbers.len().saturating_sub(self.most_files);
        for number in self.older(&numbers).iter().take(too_many) {
            fs::remove_file(self.path(*number))?;
        }
        Ok(numbers.last().copied())
    }

    /// Removes the oldest file when the disk is full, if the newest one would replace it anyway. `most_files` - 1 older ones stay, whoever
    /// fills the disk. Returns whether a file was removed.
    pub(crate) fn give_way(&self) -> io::Result<bool> {
        let numbers = self.numbers()?;
        let mut older = self.older(&numbers).to_vec();
        if older.len() >= self.most_files {
            older.retain(|number| has_packets(&self.path(*number)));
        }
        match older[..] {
            [oldest, ..] if older.len() >= self.most_files => {
                fs::remove_file(self.path(oldest)).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The numbers of files that may be removed: those below this writer's last one. During a change, higher ones are another writer's.
    fn older<'a>(&self, numbers: &'a [u64]) -> &'a [u64] {
        match self.keeps.load(Ordering::Acquire) {
            true => &[],
            false => &numbers[..numbers.partition_point(|number| *number < self.last)],
        }
    }

    /// Makes a file.
    fn open(&mut self) -> io::Result<(File, PathBuf)> {
        // Files that could not be removed earlier go now, or each new one would add to them.
        let newest = self.make_room()?;
        self.last = newest.map_or(self.last, |newest| self.last.max(newest)).wrapping_add(1);
        let path = self.path(self.last);
        // `create_new` follows no link. Only the owner and the group may read what ports carry.
        let file = File::options().write(true).create_new(true).mode(0o640).open(&path)?;
        Ok((file, path))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{}.{number:05}{EXTENSION}", self.name))
    }

    /// The numbers of the files that are there, in order.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(&*self.name));
            let digits = rest.and_then(|rest| rest.strip_prefix('.')?.strip_suffix(EXTENSION));
            numbers.extend(digits.and_then(number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Whether there are packets in a file. One that cannot be read counts as one without.
fn has_packets(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut blocks = Blocks::new(BufReader::new(file));
    loop {
        match blocks.next() {
            Ok(Some(Block { content: Content::Packet(_), .. })) => return true,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// The number of a file, as [`Files`] writes it. A date in its place is above [`NUMBERS`]: an operator's copy with that name is left alone.
fn number(digits: &str) -> Option<u64> {
    let number = digits.parse().ok().filter(|number| *number < NUMBERS)?;
    (format!("{number:05}") == digits).then_some(number)
}
