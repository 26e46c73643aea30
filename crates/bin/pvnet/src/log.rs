//! The log on standard error: lines of text, or of JSON for programs.

mod limit;
mod line;
mod recent;

use std::process::ExitCode;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;
use tracing::level_filters::LevelFilter;
use tracing::{error, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use line::Line;

pub use limit::{LogLimit, OPERATOR};
pub use recent::Recent;

/// The log of a service.
#[derive(Clone, Default)]
pub struct Log {
    /// Bounds what each guest writes into it.
    pub limit: LogLimit,
    /// Its last lines.
    pub recent: Recent,
}

/// Runs a service with its log until it ends, and writes its error as the log is written.
pub fn serve(
    format: LogFormat,
    service: impl FnOnce(&Log) -> Result<(), String>,
) -> Result<ExitCode, String> {
    let log = start(format);
    let result = service(&log);
    log.limit.summarise();
    match (format, result) {
        (_, Ok(())) => Ok(ExitCode::SUCCESS),
        (LogFormat::Text, Err(error)) => Err(error),
        (LogFormat::Json, Err(error)) => {
            error!(target: OPERATOR, "{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

pub fn start(format: LogFormat) -> Log {
    let text = std::env::var(LEVELS).unwrap_or_default();
    let filter = filter(&text);
    let refused = filter.is_none().then_some(text);
    let filter = filter.unwrap_or_else(|| EnvFilter::new("info"));
    let log = Log::default();
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Line(format));
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => {
            let json = lines.json().flatten_event(true);
            json.with_current_span(false).with_span_list(false).boxed()
        }
    };
    let layers = tracing_subscriber::registry().with(filter).with(log.limit.clone());
    layers.with(log.recent.clone()).with(lines).init();
    if let Some(text) = refused {
        warn!(target: OPERATOR, value = text, "{LEVELS} is not off, error, warn, info, debug or trace, or TARGET=LEVEL, or several with commas; info is used");
    }
    log
}

/// The variable with the levels that are written.
const LEVELS: &str = "PVNET_LOG";

/// The levels that a text asks for; none if it is wrong. A word alone must be a level: taken for a target, a level that is misspelt would silence all others.
fn filter(text: &str) -> Option<EnvFilter> {
    let text = if text.trim().is_empty() { "info" } else { text };
    let is_level = |word: &str| word.is_empty() || word.parse::<LevelFilter>().is_ok();
    // A space is part of a span's fields at most.
    let is_directive =
        |part: &str| part.contains('=') && (part.contains('[') || !part.contains(' '));
    let known = text.split(',').map(str::trim).all(|part| is_level(part) || is_directive(part));
    known.then(|| EnvFilter::try_new(text).ok()).flatten()
}

/// `log`, `--log-format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// A line of text per message, for people.
    #[default]
    Text,
    /// A JSON object per message: `timestamp`, `level`, `target`, `message`, and the message's own fields.
    Json,
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn levels_that_are_misspelt_are_refused() {
        for right in ["", "info", "warn", "DEBUG", "pvnet=debug", "info,pvnet::daemon=trace", "off"]
        {
            assert!(filter(right).is_some(), "{right}");
        }
        for wrong in ["garbage", "wran", "pvnet=loud", "info,pvnet", "info pvnet=debug"] {
            assert!(filter(wrong).is_none(), "{wrong}");
        }
    }
}
