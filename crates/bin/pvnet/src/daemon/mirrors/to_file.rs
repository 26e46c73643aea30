//! A mirror whose copies are written to files.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use capture::{Files, Place, Recording, Totals};
use control_socket::RecordingStatus;

use crate::config;
use crate::daemon::disk::{Answer, Disk};
use crate::daemon::thread::spawn_for_client;
use crate::program::text;

/// A recording, and the thread that writes it.
pub(super) struct ToFile {
    recording: Recording,
    stop: Arc<AtomicBool>,
    keeps_files: Arc<AtomicBool>,
    /// Says nothing, and ends with the thread.
    ended: mpsc::Receiver<()>,
}

impl ToFile {
    /// With a disk, a first file that it does not make at once is an error; otherwise nothing is waited for, and it is tried again.
    pub(super) fn start(
        config: &config::Mirror,
        folder: &Path,
        disk: Option<&Disk>,
    ) -> Result<Self, String> {
        let (bytes, files) = config.file_limits();
        let keeps_files = Arc::<AtomicBool>::default();
        let name = config.file_name().unwrap_or_default();
        let mut files = Files::new(folder, name, bytes, files).keeping(keeps_files.clone());
        let recording = Recording::new(&config.from, &config.recorded()).map_err(text)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (lives, ended) = mpsc::channel::<()>();
        let asked =
            disk.map(Disk::question).transpose().map_err(|error| with_hint(folder, &error))?;
        let (question, answer) = asked.unzip();
        let (writer, stops) = (recording.clone(), stop.clone());
        spawn_for_client("recording", move || {
            let _lives = lives;
            if let Some(question) = question {
                let first = open_first(&mut files, &stops);
                let has_failed = first.is_err();
                question.answer(first);
                if has_failed {
                    return;
                }
            }
            // One that was stopped meanwhile removes its own file, which is empty, and no other.
            writer.run(files, &mut || stops.load(Ordering::Acquire));
        })
        .map_err(text)?;
        let this = Self { recording, stop, keeps_files, ended };
        if let Some(Err(error)) = answer.map(Answer::wait) {
            this.stop();
            return Err(with_hint(folder, &error));
        }
        Ok(this)
    }

    pub(super) fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Frames that were written, and lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        let Totals { written, lost } = self.recording.totals();
        (written, lost)
    }

    pub(super) fn status(&self) -> RecordingStatus {
        let Place { path, bytes, error } = self.recording.place();
        RecordingStatus { path: path.map(|path| path.display().to_string()), bytes, error }
    }

    /// Whether the thread removes no files.
    pub(super) fn keep_files(&self, keeps: bool) {
        self.keeps_files.store(keeps, Ordering::Release);
    }

    /// Tells the thread of a recording, which no port gives packets any more, to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Waits until the thread has ended: then its file is complete. A disk may hang, so no longer than to `deadline`.
    pub(super) fn end(self, deadline: Instant) {
        self.stop();
        // An error is what is waited for: the thread has ended.
        let _ = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Opens the first file, unless nobody waits for it any more.
fn open_first(files: &mut Files, stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Acquire) {
        return Err(ErrorKind::TimedOut.into());
    }
    files.open_first()
}

/// Why a recording does not begin, and what it needs.
fn with_hint(folder: &Path, error: &dyn Display) -> String {
    format!(
        "{}: {error}; recordings in [daemon] is the folder of its files, which must be there, and the daemon's, when it starts",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_the_first_file_of_a_recording_that_was_stopped() {
        let folder = host::TempDir::new().unwrap();
        let mut files = Files::new(folder.path(), "span", 1 << 20, 1);
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        open_first(&mut files, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(count(), 0);
        open_first(&mut files, &AtomicBool::new(false)).unwrap();
        assert_eq!(count(), 1);
    }
}
