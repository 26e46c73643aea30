//! Waits for QEMU and for the messages of the plugin.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use lab::{Interrupt, Process, Progress};

use crate::error::{Error, Result};

/// The start of the plugin's messages.
const PREFIX: &str = "pvscope: ";
/// The plugin's progress messages; all others are errors.
const PROGRESS: [&str; 3] = [HELD, RECORDING, RECORDED];
/// The plugin holds the machine before its first mark.
const HELD: &str = "held";
const RECORDING: &str = "recording";
const RECORDED: &str = "recorded";
/// The start of the plugin's message when QEMU has ended, which is noticed anyway.
const ENDED: &str = "the machine ended";
/// The interval at which QEMU's output is checked.
const POLL: Duration = Duration::from_millis(20);

/// A running machine.
pub struct Watch<'a> {
    consoles: &'a [(&'static str, PathBuf)],
    pub progress: &'a Progress,
    limit: u64,
    since: SystemTime,
}

impl<'a> Watch<'a> {
    /// A machine that is about to start: the files of its consoles with their names, where to show progress, and the time
    /// limit of each phase in seconds.
    pub fn new(
        consoles: &'a [(&'static str, PathBuf)],
        progress: &'a Progress,
        limit: u64,
    ) -> Self {
        Self { consoles, progress, limit, since: SystemTime::now() }
    }

    /// Waits until the plugin holds the machine before its first mark.
    pub fn hold(&self, qemu: &mut Process) -> Result<()> {
        self.wait(qemu, MISSING_BEGIN, Some(HELD))
    }

    /// Whether the machine has passed its first mark.
    pub fn is_recording(qemu: &Process) -> bool {
        says(&qemu.stderr(), RECORDING)
    }

    /// Waits until the part between the marks is recorded.
    pub fn record(&self, qemu: &mut Process) -> Result<()> {
        self.wait(qemu, MISSING_BEGIN, Some(RECORDING))?;
        self.progress.step("record");
        self.wait(qemu, "record: mark-end was not executed", Some(RECORDED))
    }

    /// Waits until the machine ends.
    pub fn end(&self, qemu: &mut Process) -> Result<()> {
        self.wait(qemu, "the machine has not ended", None)
    }

    /// Waits until the plugin has printed `message`, or for QEMU's end if there is none.
    fn wait(&self, qemu: &mut Process, missing: &str, message: Option<&str>) -> Result<()> {
        let start = Instant::now();
        loop {
            let ended = qemu.ended()?;
            let said = qemu.stderr();
            if message.is_some_and(|message| says(&said, message)) {
                return Ok(());
            }
            let problem = match ended {
                Some(status) if status.success() && message.is_none() => return Ok(()),
                _ if said.lines().any(is_error) => format!("{missing}: the plugin gave up"),
                Some(status) => {
                    let why = explanation(&said).map(|why| format!(": {why}"));
                    format!("{missing}: QEMU ended ({status}){}", why.unwrap_or_default())
                }
                None if start.elapsed() > Duration::from_secs(self.limit) => {
                    format!("{missing} within {} s; raise --limit", self.limit)
                }
                None => {
                    Interrupt::sleep(POLL)?;
                    continue;
                }
            };
            return Err(Error::Machine { what: problem, said: self.last_words(qemu) });
        }
    }

    /// The last lines that QEMU and its guest printed.
    fn last_words(&self, qemu: &Process) -> String {
        let own = [("QEMU", qemu.stderr()), ("QEMU's output", qemu.stdout())];
        // An earlier machine may have left a file there.
        let is_new = |path: &Path| {
            let written = std::fs::metadata(path).and_then(|file| file.modified());
            written.is_ok_and(|written| written >= self.since)
        };
        let files = self.consoles.iter().filter(|(_, path)| is_new(path)).map(|(who, path)| {
            let text = std::fs::read(path).unwrap_or_default();
            (*who, String::from_utf8_lossy(&text).into_owned())
        });
        let parts = own.into_iter().chain(files).filter(|(_, text)| !text.trim().is_empty());
        parts.map(|(who, text)| format!("\n{who}:\n  {}", tail(&text))).collect()
    }
}

/// What is missing if the machine ends before its first mark.
const MISSING_BEGIN: &str = "boot, to the first mark: mark-begin was not executed";

/// Whether the plugin has printed this message.
fn says(said: &str, message: &str) -> bool {
    said.lines().any(|line| line.strip_prefix(PREFIX) == Some(message))
}

/// The last lines of a text, without those of an unpacked QEMU about modules of an installed one.
fn tail(text: &str) -> String {
    let matters = |line: &&str| {
        !(line.trim().is_empty()
            || line.contains("failed to initialize module")
            || line.starts_with("Only modules from the same build"))
    };
    let lines: Vec<&str> = text.lines().filter(matters).collect();
    lines[lines.len().saturating_sub(8)..].join("\n  ")
}

/// Whether a line is an error message of the plugin.
fn is_error(line: &str) -> bool {
    let is_progress = |words: &str| PROGRESS.contains(&words) || words.starts_with(ENDED);
    line.strip_prefix(PREFIX).is_some_and(|words| !is_progress(words))
}

/// The cause of an error message of QEMU, if it is known.
fn explanation(said: &str) -> Option<&'static str> {
    let said = said.to_lowercase();
    let has = |words: &str| said.contains(words);
    if has("plugin interface not enabled") || has("-plugin: invalid option") {
        Some(
            "this QEMU was built without plugins: give only the name qemu-system-x86_64, for which pvscope fetches Debian's \
             if the system has no QEMU 10, or build yours with --enable-plugins",
        )
    } else if has("bad icount read") {
        Some(
            "QEMU 10 cannot read the clock of an x2APIC's timer under -icount: remove it, as in -cpu max,-x2apic",
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_the_plugin_is_no_error() {
        let ended = "pvscope: the machine ended before the first mark";
        for line in
            ["pvscope: held", "pvscope: recording", "pvscope: recorded", ended, "qemu: warning", ""]
        {
            assert!(!is_error(line), "{line}");
        }
        assert!(is_error("pvscope: /run/recording: No space left on device (os error 28)"));
    }

    #[test]
    fn known_errors_of_qemu_are_explained() {
        for said in [
            "qemu-system-x86_64: -plugin x: Plugin interface not enabled in this build",
            "qemu-system-x86_64: -plugin: invalid option",
        ] {
            assert!(explanation(said).is_some_and(|why| why.contains("without plugins")), "{said}");
        }
        assert!(explanation("Bad icount read").is_some_and(|why| why.contains("-x2apic")));
        assert_eq!(explanation("qemu-system-x86_64: -m x: no size"), None);
    }
}
