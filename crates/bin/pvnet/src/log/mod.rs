//! The log on standard error: lines of text, or of JSON for programs.

mod format;
mod limit;
mod line;

use std::process::ExitCode;

use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

pub use format::LogFormat;
pub use limit::{LogLimit, OPERATOR};
use line::Line;

/// Runs a service with its log until it ends, and writes its error as the log is written.
///
/// # Errors
/// Those of the service, if the log is text: then the caller prints it.
pub fn serve(
    format: LogFormat,
    service: impl FnOnce(&LogLimit) -> Result<(), String>,
) -> Result<ExitCode, String> {
    let log = start(format);
    let result = service(&log);
    log.summarise();
    match (format, result) {
        (_, Ok(())) => Ok(ExitCode::SUCCESS),
        (LogFormat::Text, Err(error)) => Err(error),
        (LogFormat::Json, Err(error)) => {
            error!(target: OPERATOR, "{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Starts the log.
pub fn start(format: LogFormat) -> LogLimit {
    let filter = EnvFilter::try_from_env("PVNET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let limit = LogLimit::default();
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Line(format));
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => {
            let json = lines.json().flatten_event(true);
            json.with_current_span(false).with_span_list(false).boxed()
        }
    };
    tracing_subscriber::registry().with(filter).with(limit.clone()).with(lines).init();
    limit
}
