//! The end of a console's log, for error messages.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// How many bytes of a log a message shows.
const TAIL: u64 = 2000;

/// The last lines of a log.
pub(super) fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_else(|error| error.to_string().into_bytes());
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    // The first line is probably incomplete.
    match text.split_once('\n') {
        Some((_, whole)) if bytes.len() as u64 == TAIL => whole.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_whole_lines() {
        let folder = lab::TempDir::new().expect("folder");
        let log = folder.path().join("log");
        std::fs::write(&log, "one\r\ntwo\r\n").expect("write");
        assert_eq!(tail(&log), "one\ntwo\n");
        std::fs::write(&log, "0123456789 12345678\n".repeat(200)).expect("write");
        let tail = tail(&log);
        assert!(tail.lines().all(|line| line == "0123456789 12345678"));
        assert_eq!(tail.lines().count(), 99);
    }
}
