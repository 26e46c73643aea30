//! Where an end leaves what it found.

use std::path::PathBuf;

use clap::Args;
use document::Document;

use crate::error::Result;
use crate::output;

/// Where the result goes.
#[derive(Args)]
pub struct ResultArgs {
    /// Write the result to FILE as JSON; - is standard output, instead of text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ResultArgs {
    fn is_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|file| file.as_os_str() == "-")
    }

    /// Checks that the file can be written, so that an error comes before the measurement.
    pub fn prepare(&self) -> Result<()> {
        match &self.json {
            Some(file) if !self.is_stdout() => output::prepare(file),
            _ => Ok(()),
        }
    }

    /// Writes the result, and has it printed as text unless standard output has the JSON.
    pub fn show(&self, result: &impl Document, print: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_stdout() {
            return output::print(&output::line(result)?);
        }
        print()?;
        match &self.json {
            Some(file) => output::write_json(file, result),
            None => Ok(()),
        }
    }
}
