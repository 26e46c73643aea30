//! A machine that has booted, in a file: a second recording of it does not boot again.
//!
//! The guest says that it is ready, and then counts to a large number, in which time it is stopped and saved. It executes the
//! same instructions wherever it is stopped, so that a recording does not depend on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::{Interrupt, Process, Progress};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::mark;
use crate::qmp;

/// The line that the guest prints when it can be saved.
pub const READY: &str = "@ready";
/// The program that the guest executes then.
pub const WAIT: &str = "snapshot-wait";
/// To what it counts.
const COUNT: u32 = 50_000_000;
const POLL: Duration = Duration::from_millis(5);
/// The version of the files.
const FORMAT: u32 = 1;

/// The program that waits.
pub fn program() -> (String, Vec<u8>) {
    let count = COUNT.to_le_bytes();
    // mov ecx, COUNT; 1: dec ecx; jnz 1b
    let code = [&[0xb9][..], &count, &[0xff, 0xc9, 0x75, 0xfc], mark::EXIT].concat();
    (WAIT.to_owned(), mark::executable(&code))
}

/// Where the snapshot of a machine is, or would be.
pub struct Snapshot {
    file: PathBuf,
}

impl Snapshot {
    /// The snapshot of the machine that boots from these files with this script.
    pub fn of(cache: &Path, files: &[&Path], words: &[String]) -> Result<Self> {
        let mut digest = Sha256::new();
        digest.update(format!("{FORMAT} {words:?}"));
        for file in files {
            digest.update(std::fs::read(file).map_err(Error::path(*file))?);
        }
        let name: String =
            digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { file: cache.join("snapshots").join(name) })
    }

    /// Whether it was saved before.
    pub fn exists(&self) -> bool {
        self.file.is_file()
    }

    /// Has QEMU load it.
    pub fn load(&self, command: &mut Command) {
        command.arg("-incoming").arg(format!("file:{}", self.file.display()));
    }

    /// Lets the loaded machine run.
    pub fn resume(&self, socket: &Path, qemu: &mut Process) -> Result<()> {
        let mut monitor = qmp::connect(socket, qemu)?;
        qmp::wait_for_migration(&mut monitor)?;
        monitor.execute("cont", json!({}))?;
        Ok(())
    }

    /// Waits until the machine is ready, which it prints to a file, and saves it. Only the newest snapshot is kept.
    pub fn save(
        &self,
        socket: &Path,
        qemu: &mut Process,
        printed: &Path,
        (limit, progress): (u64, &Progress),
    ) -> Result<()> {
        let mut monitor = qmp::connect(socket, qemu)?;
        let start = Instant::now();
        let is_ready = || {
            std::fs::read_to_string(printed)
                .is_ok_and(|text| text.lines().any(|line| line.trim() == READY))
        };
        while !is_ready() {
            if qemu.ended()?.is_some() || start.elapsed() > Duration::from_secs(limit) {
                let what = "the machine does not come up".to_owned();
                return Err(Error::Machine { what, said: format!("\n{}", qemu.stderr()) });
            }
            Interrupt::sleep(POLL)?;
        }
        monitor.execute("stop", json!({}))?;
        if qemu.stderr().contains("recording") {
            // The machine was faster, so this run is as good, but no snapshot.
            progress.note("this machine was too busy for a snapshot; the next run tries again");
            monitor.execute("cont", json!({}))?;
            return Ok(());
        }
        let folder = self.file.parent().unwrap_or(Path::new("."));
        // Others are of images or programs that have changed.
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
        let unfinished = self.file.with_extension("new");
        monitor.execute("migrate", json!({ "uri": format!("file:{}", unfinished.display()) }))?;
        qmp::wait_for_migration(&mut monitor)?;
        std::fs::rename(&unfinished, &self.file).map_err(Error::path(&self.file))?;
        monitor.execute("cont", json!({}))?;
        Ok(())
    }
}
