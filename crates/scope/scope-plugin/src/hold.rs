//! Holds the machine before its first mark, so that it can be saved there.

use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time to hold the machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits while the file exists with which the program that started QEMU asks for it; with an empty path it does not wait. QEMU translates
/// the first mark here, and does not execute the translation if it was told to stop meanwhile.
pub fn wait(file: &Path, say: fn(&str)) {
    if file.as_os_str().is_empty() {
        return;
    }
    say("held");
    let start = Instant::now();
    while file.exists() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
}
