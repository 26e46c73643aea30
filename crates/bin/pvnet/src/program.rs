//! What every command does as a program: errors as text, signals, and an output that nobody reads.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::{panic, process};

use document::Document;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// What `print!` says when it panics.
const FAILED: &str = "failed printing to stdout: ";

/// From here on, a command whose output cannot be written ends: quietly if its reader has gone, as in `pvnet status | head`, and with the
/// reason otherwise. `print!` would panic, and report a fault of this program.
pub fn end_when_it_is_closed() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let Some(reason) = panic.payload_as_str().and_then(|text| text.strip_prefix(FAILED)) else {
            return report(panic);
        };
        if !reason.contains("Broken pipe") {
            eprintln!("pvnet: standard output: {reason}");
        }
        process::exit(1);
    }));
}

/// An error as text; for `map_err`.
pub fn text(error: impl Display) -> String {
    error.to_string()
}

/// Prints a document as JSON on one line, or what people read instead.
pub fn show(
    json: bool,
    document: &impl Document,
    text: impl FnOnce() -> String,
) -> Result<(), String> {
    match json {
        true => print!("{}", document::line(document).map_err(self::text)?),
        false => print!("{}", text()),
    }
    Ok(())
}

/// A descriptor that becomes readable at SIGINT, SIGTERM or, except under `nohup`, SIGHUP.
pub fn stop_signal() -> Result<UnixStream, String> {
    let (reader, writer) = UnixStream::pair().map_err(text)?;
    let hangup = host::Interrupt::signals().into_iter().filter(|signal| *signal == SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        let writer = writer.try_clone().map_err(text)?;
        signal_hook::low_level::pipe::register(signal, writer).map_err(text)?;
    }
    Ok(reader)
}

/// Descriptors that become readable at signals.
pub struct Signals {
    /// At those of [`stop_signal`].
    pub stop: OwnedFd,
    /// At SIGUSR1, by which `dd` and others are asked for a report.
    pub report: OwnedFd,
}

impl Signals {
    /// From here on, these signals only make them readable.
    pub fn watch() -> Result<Self, String> {
        let (report, writer) = UnixStream::pair().map_err(text)?;
        signal_hook::low_level::pipe::register(SIGUSR1, writer).map_err(text)?;
        Ok(Self { stop: stop_signal()?.into(), report: report.into() })
    }
}
