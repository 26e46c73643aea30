//! The output of a capture.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use capture::{Block, Content};

use super::lines::Line;

/// Bytes per write.
const WRITE_BYTES: usize = 256 << 10;

/// The output of a capture, and its format.
pub(super) enum Output {
    /// The pcapng stream.
    Pcapng(BufWriter<Box<dyn Write>>),
    /// One line per frame, with the time since the first frame.
    Lines { out: BufWriter<io::Stdout>, start: Option<u64> },
    /// Nobody reads it any more.
    Closed,
}

impl Output {
    /// Lines on standard output, or pcapng in a file, where `-` is standard output.
    pub(super) fn open(file: Option<&Path>) -> Result<Self, String> {
        let Some(file) = file else {
            return Ok(Self::Lines { out: BufWriter::new(io::stdout()), start: None });
        };
        let out: Box<dyn Write> = if file == Path::new("-") {
            Box::new(io::stdout())
        } else {
            Box::new(File::create(file).map_err(|error| format!("{}: {error}", file.display()))?)
        };
        Ok(Self::Pcapng(BufWriter::with_capacity(WRITE_BYTES, out)))
    }

    pub(super) fn write(&mut self, block: &Block<'_>) -> io::Result<()> {
        match self {
            Self::Pcapng(out) => out.write_all(block.bytes),
            Self::Lines { out, start } => {
                let Content::Packet(frame) = block.content else { return Ok(()) };
                let start = *start.get_or_insert(frame.timestamp);
                writeln!(out, "{}", Line { frame, start })
            }
            Self::Closed => Ok(()),
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Pcapng(out) => out.flush(),
            Self::Lines { out, .. } => out.flush(),
            Self::Closed => Ok(()),
        }
    }
}

/// Whether `file` is a terminal, which shows no pcapng.
pub(super) fn is_terminal(file: &Path) -> bool {
    file == Path::new("-") && io::stdout().is_terminal()
}
