//! `pvnet run --check`: whether a configuration is valid.

use std::process::ExitCode;

use cpus::Available;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::USAGE;
use crate::config::{Config, ConfigFile};
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
    let config = file.path().display().to_string();
    let error = match file.read() {
        Ok(loaded) => check_cpus(&loaded.config)?.map(|error| format!("{config}: {error}")),
        Err(error) => Some(error.to_string()),
    };
    let code = ExitCode::from(if error.is_none() { 0 } else { USAGE });
    if let Some(error) = error.as_ref().filter(|_| !json) {
        eprintln!("pvnet: {error}");
        return Ok(code);
    }
    let document = CheckDocument { config, valid: error.is_none(), error };
    show(json, &document, || format!("{}: valid\n", document.config)).map(|()| code)
}

/// Why the daemon would not start with the CPUs that a configuration names, if it would not.
fn check_cpus(config: &Config) -> Result<Option<String>, String> {
    let Some(named) = &config.daemon.cpus else { return Ok(None) };
    let available =
        Available::read().map_err(|error| format!("ask for the CPUs of this process: {error}"))?;
    Ok(available.beside(named).err().map(|error| format!("daemon.cpus: {error}")))
}
