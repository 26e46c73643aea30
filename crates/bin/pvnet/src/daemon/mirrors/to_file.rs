//! A mirror whose copies are written to files.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use capture::{Files, Place, Recording, Totals};
use control_socket::RecordingStatus;

use crate::config;
use crate::daemon::thread::spawn_for_client;
use crate::error::text;

/// How long the first file may take: a disk may hang, and the whole daemon waits.
const FIRST_FILE: Duration = Duration::from_secs(1);

/// A recording, and the thread that writes it.
pub(super) struct ToFile {
    recording: Recording,
    stop: Arc<AtomicBool>,
    /// Says nothing, and ends with the thread.
    ended: mpsc::Receiver<()>,
}

impl ToFile {
    /// With `strict`, a file that cannot be made within [`FIRST_FILE`] is an error; otherwise nothing is waited for, and it is tried
    /// again.
    pub(super) fn start(
        config: &config::Mirror,
        folder: &Path,
        strict: bool,
    ) -> Result<Self, String> {
        let (bytes, files) = config.file_limits();
        let mut files = Files::new(folder, config.file_name().unwrap_or_default(), bytes, files);
        let recording = Recording::new(&config.from, &config.recorded()).map_err(text)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (lives, ended) = mpsc::channel::<()>();
        let (opened, first) = mpsc::channel();
        let (writer, stops) = (recording.clone(), stop.clone());
        spawn_for_client("recording", move || {
            let _lives = lives;
            if strict {
                let result = files.open_first();
                let has_failed = result.is_err();
                // Who has waited in vain has said so, and wants the recording stopped.
                let _ = opened.send(result);
                if has_failed {
                    return;
                }
            }
            writer.run(files, &mut || stops.load(Ordering::Acquire));
        })
        .map_err(text)?;
        let this = Self { recording, stop, ended };
        if strict && let Err(error) = wait_for(&first, FIRST_FILE) {
            this.stop();
            return Err(format!(
                "{}: {error}; recordings in [daemon] is the folder of its files, which must be there, and the daemon's, when it \
                 starts",
                folder.display()
            ));
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

/// Waits until a file was made, or could not be, but no longer than `limit`.
fn wait_for(first: &mpsc::Receiver<io::Result<()>>, limit: Duration) -> io::Result<()> {
    first.recv_timeout(limit).unwrap_or_else(|_| {
        let message = format!("the disk hangs: no file could be made within {limit:?}");
        Err(io::Error::new(ErrorKind::TimedOut, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_is_waited_for_no_longer_than_the_limit() {
        let (opened, first) = mpsc::channel();
        let error = wait_for(&first, Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("within 10ms"), "{error}");
        opened.send(Err(ErrorKind::NotFound.into())).unwrap();
        assert_eq!(wait_for(&first, FIRST_FILE).unwrap_err().kind(), ErrorKind::NotFound);
        opened.send(Ok(())).unwrap();
        wait_for(&first, FIRST_FILE).unwrap();
    }
}
