//! Signals to a command.

use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::error::text;

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

/// A descriptor that becomes readable at SIGUSR1, by which `dd` and others are asked for a report.
pub fn report_signal() -> Result<UnixStream, String> {
    let (reader, writer) = UnixStream::pair().map_err(text)?;
    signal_hook::low_level::pipe::register(SIGUSR1, writer).map_err(text)?;
    Ok(reader)
}
