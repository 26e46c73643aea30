//! `pvnet run --check`: whether a configuration is valid.

use std::process::ExitCode;

use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::USAGE;
use crate::config::ConfigFile;
use crate::program::show;

/// What a configuration was found to be.
#[derive(Serialize, JsonSchema)]
pub struct CheckDocument {
    /// The configuration's file.
    config: String,
    /// Whether the daemon would take it.
    valid: bool,
    /// Its first error, which may have several lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Document for CheckDocument {
    const SCHEMA: &str = "pvnet-check/1";
}

/// Checks a configuration and says what it is.
///
/// # Errors
/// The document cannot be made.
pub fn run(file: &ConfigFile, json: bool) -> Result<ExitCode, String> {
    let error = file.read().err().map(|error| error.to_string());
    let code = ExitCode::from(if error.is_none() { 0 } else { USAGE });
    let config = file.path().display().to_string();
    if let Some(error) = error.as_ref().filter(|_| !json) {
        eprintln!("pvnet: {error}");
        return Ok(code);
    }
    let document = CheckDocument { config, valid: error.is_none(), error };
    show(json, &document, || format!("{}: valid\n", document.config)).map(|()| code)
}
