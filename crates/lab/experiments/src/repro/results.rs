//! Where an experiment's results go.

use std::path::PathBuf;

use clap::Args;
use report::html::Report;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::output;

/// Options of all experiments.
#[derive(Args)]
pub struct Results {
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables and figures to FILE as a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Results {
    /// Checks that the files can be written, before minutes of measuring.
    pub fn prepare(&self) -> Result<()> {
        self.json.iter().chain(&self.html).try_for_each(|file| output::prepare(file))
    }

    /// Writes the files. The error says how many measurements failed, if some did.
    pub fn write(
        &self,
        document: &impl Serialize,
        page: impl FnOnce() -> Report,
        failures: usize,
    ) -> Result<()> {
        if let Some(file) = &self.json {
            output::write_json(file, document)?;
        }
        if let Some(file) = &self.html {
            page().write(file)?;
        }
        match failures {
            0 => Ok(()),
            n => Err(Error::Failed(format!("{n} of the measurements failed; their rows say why"))),
        }
    }
}
