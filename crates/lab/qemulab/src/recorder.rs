//! Records the frames that pass a device, and reads them with tshark.

use std::time::Duration;

use lab::{Namespace, Process, TempDir};
use xenlab::Result;

/// How long tshark may take to start.
const START: Duration = Duration::from_secs(60);
/// How long tshark may take to read a recording of some hundred thousand frames on a busy machine.
const READ: Duration = Duration::from_secs(300);

/// A running recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    tshark: Process,
    folder: TempDir,
}

/// The TCP frames of one sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) frames: usize,
    /// Bytes of the longest one.
    pub(crate) longest: usize,
    /// Frames with a wrong TCP checksum.
    pub(crate) wrong: usize,
}

impl Recorder {
    /// Records the frames of a device in a namespace.
    pub(crate) fn start(namespace: &Namespace, device: &str) -> Result<Self> {
        let folder = TempDir::new()?;
        let file = folder.path().join("wire.pcapng");
        let mut command = namespace.exec("tshark")?;
        command.args(["-q", "-i", device, "-w"]).arg(&file);
        let mut tshark = Process::capture(command)?;
        tshark.says("Capturing on", START)?;
        // tshark prints this before it opens the device. It makes the file afterwards.
        tshark.makes(&file, START)?;
        Ok(Self { tshark, folder })
    }

    /// Ends the recording. Returns the TCP frames of each of these senders.
    pub(crate) fn finish<const N: usize>(mut self, senders: [&str; N]) -> Result<[Recorded; N]> {
        self.tshark.stop()?;
        let mut command = lab::command("tshark")?;
        command.arg("-r").arg(self.folder.path().join("wire.pcapng"));
        command.args(["-n", "-o", "tcp.analyze_sequence_numbers:FALSE"]);
        command.args(["-o", "tcp.check_checksum:TRUE", "-Y", "tcp", "-T", "fields"]);
        command.args(["-e", "ip.src", "-e", "frame.len", "-e", "tcp.checksum.status"]);
        let text = lab::run(command, READ)?;
        Ok(senders.map(|sender| count(&text, sender)))
    }
}

/// tshark's number for a good checksum.
const GOOD: &str = "1";

fn count(text: &str, sender: &str) -> Recorded {
    let mut recorded = Recorded::default();
    for line in text.lines() {
        let mut fields = line.split('\t');
        if fields.next() != Some(sender) {
            continue;
        }
        let length = fields.next().and_then(|length| length.parse().ok()).unwrap_or(0);
        recorded.frames += 1;
        recorded.longest = recorded.longest.max(length);
        recorded.wrong += usize::from(fields.next() != Some(GOOD));
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_by_sender() {
        let text = "10.0.0.1\t1514\t1\n10.0.0.1\t66\t0\n10.0.0.254\t65226\t0\n";
        assert_eq!(count(text, "10.0.0.1"), Recorded { frames: 2, longest: 1514, wrong: 1 });
        assert_eq!(count(text, "10.0.0.254").longest, 65226);
        assert_eq!(count(text, "10.0.0.2"), Recorded::default());
    }
}
