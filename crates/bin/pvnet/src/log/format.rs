//! How messages are written.

use clap::ValueEnum;
use serde::Deserialize;

/// `log`, `--log-format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// A line of text per message, for people.
    #[default]
    Text,
    /// A JSON object per message: `timestamp`, `level`, `target`, `message`, and the message's own fields.
    Json,
}
