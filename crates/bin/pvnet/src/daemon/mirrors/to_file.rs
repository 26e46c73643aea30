//! A mirror whose copies are written to files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use capture::{Files, Place, Recording, Totals};
use control_socket::RecordingStatus;

use crate::config;
use crate::daemon::thread::spawn_for_client;
use crate::error::text;

/// A recording, and the thread that writes it.
pub(super) struct ToFile {
    recording: Recording,
    stop: Arc<AtomicBool>,
    /// Says nothing, and ends with the thread.
    ended: mpsc::Receiver<()>,
}

impl ToFile {
    /// With `strict`, a file that cannot be made is an error; otherwise it is tried again.
    pub(super) fn start(
        config: &config::Mirror,
        folder: &Path,
        strict: bool,
    ) -> Result<Self, String> {
        let (bytes, files) = config.file_limits();
        let mut files = Files::new(folder, config.file_name().unwrap_or_default(), bytes, files);
        if strict {
            files.open_first().map_err(|error| {
                format!(
                    "{}: {error}; recordings in [daemon] is the folder of its files, which must be there, and the daemon's, \
                     when it starts",
                    folder.display()
                )
            })?;
        }
        let recording = Recording::new(&config.from, &config.recorded()).map_err(text)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (lives, ended) = mpsc::channel::<()>();
        let (writer, stops) = (recording.clone(), stop.clone());
        spawn_for_client("recording", move || {
            let _lives = lives;
            writer.run(files, &mut || stops.load(Ordering::Acquire));
        })
        .map_err(text)?;
        Ok(Self { recording, stop, ended })
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
