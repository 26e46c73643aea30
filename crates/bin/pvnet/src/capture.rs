//! `pvnet capture`: the frames of a port, as they pass it.

mod lines;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use capture::{Block, Blocks, CaptureRequest, Content, Options, Totals};
use clap::Args;
use control_socket::control_socket;
use lines::Line;

use crate::args::DaemonArgs;
use crate::program;
use crate::program::text;

/// Options of `pvnet capture`.
#[derive(Args)]
pub struct CaptureArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// The port's name, as in `pvnet status`.
    port: String,
    /// Write pcapng to this file, instead of a line per frame; `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Record at most this many bytes of each frame; 0 for whole frames, the default with -w.
    #[arg(long, short, value_name = "BYTES")]
    snaplen: Option<u32>,
    /// Record large TCP frames as the segments that a wire would carry.
    #[arg(long)]
    segmented: bool,
    /// End after that many frames [default: at Ctrl-C].
    #[arg(long, short, value_name = "N")]
    count: Option<u64>,
    /// The frames to capture: `host`, `net`, `port`, `tcp`, `arp` and more of tcpdump's filters, and
    /// `dropped`, joined by `and`, `or`, `not` and parentheses [default: all].
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// The exit code after a second signal, as in a shell.
const INTERRUPTED: i32 = 130;

/// Captures until Ctrl-C, the count, or the end of the port.
pub fn run(args: &CaptureArgs) -> Result<(), String> {
    if args.write.as_deref().is_some_and(is_terminal) {
        return Err("standard output is a terminal, which shows no pcapng; add \
                    `| wireshark -k -i -` or leave out -w"
            .into());
    }
    let signals = program::stop_signal()?;
    let default = if args.write.is_some() { 0 } else { lines::SNAPLEN };
    let options = Options {
        snaplen: args.snaplen.unwrap_or(default),
        segmented: args.segmented,
        count: args.count,
        filter: args.filter.join(" "),
    };
    let request = CaptureRequest { port: args.port.clone(), options };
    let stream = control_socket::capture(&control_socket(&args.daemon.directory), &request)?;
    // Not before: a refusal leaves an old file as it is.
    let mut output = Output::open(args.write.as_deref())?;
    end_at_signal(signals, stream.get_ref().try_clone().map_err(text)?);
    let mut blocks = Blocks::new(stream);
    let mut totals = Totals::default();
    let ended = copy(&mut blocks, &mut output, &mut totals);
    eprintln!("{} frames captured, {} lost", totals.written, totals.lost);
    if totals.lost > 0 {
        eprintln!("this output was slower than the port; use a filter or --snaplen to record less");
    }
    ended
}

/// Copies the stream to its end, and counts the frames.
fn copy(
    blocks: &mut Blocks<io::BufReader<UnixStream>>,
    output: &mut Output,
    totals: &mut Totals,
) -> Result<(), String> {
    let mut has_ended = false;
    loop {
        let block = match blocks.next() {
            Ok(Some(block)) => block,
            Ok(None) if has_ended => return Ok(()),
            Ok(None) => return Err("the daemon has gone".into()),
            Err(error) => return Err(format!("the daemon's answer: {error}")),
        };
        let is_frame = matches!(block.content, Content::Packet(_));
        if let Content::End(Totals { lost, .. }) = block.content {
            has_ended = true;
            totals.lost = lost;
        }
        let mut result = output.write(&block);
        // Flush when no more data waits, so that a viewer sees each frame at once.
        if result.is_ok() && blocks.input().buffer().is_empty() {
            result = output.flush();
        }
        match result {
            Ok(()) => totals.written += u64::from(is_frame && !matches!(output, Output::Closed)),
            // The reader has closed the pipe. Only the statistics still matter.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                *output = Output::Closed;
                end(blocks.input().get_ref());
            }
            Err(error) => return Err(format!("the output: {error}")),
        }
    }
}

/// Asks the daemon to end the capture. It sends the rest, and the statistics.
fn end(stream: &UnixStream) {
    // The daemon may have ended it already.
    let _ = stream.shutdown(Shutdown::Write);
}

/// Ends the capture at the first signal, and the program at the second.
fn end_at_signal(mut signals: UnixStream, stream: UnixStream) {
    thread::spawn(move || {
        let mut signal = [0];
        if signals.read_exact(&mut signal).is_ok() {
            end(&stream);
        }
        if signals.read_exact(&mut signal).is_ok() {
            std::process::exit(INTERRUPTED);
        }
    });
}

/// Bytes per write.
const WRITE_BYTES: usize = 256 << 10;

/// The output of a capture, and its format.
enum Output {
    /// The pcapng stream.
    Pcapng(BufWriter<Box<dyn Write>>),
    /// One line per frame, with the time since the first frame.
    Lines { out: BufWriter<io::Stdout>, start: Option<u64> },
    /// Nobody reads it any more.
    Closed,
}

impl Output {
    /// Lines on standard output, or pcapng in a file, where `-` is standard output.
    fn open(file: Option<&Path>) -> Result<Self, String> {
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

    fn write(&mut self, block: &Block<'_>) -> io::Result<()> {
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

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Pcapng(out) => out.flush(),
            Self::Lines { out, .. } => out.flush(),
            Self::Closed => Ok(()),
        }
    }
}

/// Whether `file` is a terminal, which shows no pcapng.
fn is_terminal(file: &Path) -> bool {
    file == Path::new("-") && io::stdout().is_terminal()
}
