//! The files of a guest's memory, for whoever asks whether memory is taken out of them.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::fstat;

/// The files of a guest's memory.
///
/// Whoever has such a file can make a hole in it, and whoever touches a page of the hole sleeps until the hole is made.
#[derive(Debug, Default)]
pub struct MemoryFiles(Mutex<Vec<Arc<File>>>);

impl MemoryFiles {
    pub(crate) fn set(&self, files: impl Iterator<Item = Arc<File>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = files.collect();
    }

    /// How many bytes they have now. They get fewer while a hole is made; this does not wait for that.
    pub fn bytes(&self) -> u64 {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks =
            files.iter().filter_map(|file| u64::try_from(fstat(file).ok()?.st_blocks).ok());
        // Blocks of 512 bytes, whatever the file system's are.
        blocks.sum::<u64>() * 512
    }
}
