//! `pvscope check`: whether a path of pvnet takes more than its baseline says.
//!
//! ```text
//!  pvnet-lab bench pps --lockstep, in QEMU ──► windows ──► Measured: means over layouts ─┐
//!  docs/baseline.txt ─────────────────────────────────► Baseline ────────────────────┴─► compare ──► Difference …
//! ```

mod baseline;
mod compare;
mod layouts;
mod measured;
mod page;
mod windows;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use baseline::Baseline;
use clap::Args;
use compare::Difference;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;
use windows::{Machine, MachineArgs};

use crate::error::{Error, Result};

pub use baseline::{BaselineFile, BaselineProvenance};
pub use page::write_between;

/// The exit status if counts differ from the baseline's.
pub const DIFFERS: u8 = 3;

/// Arguments of `pvscope check`.
#[derive(Args)]
pub struct CheckArgs {
    /// The baseline's file.
    #[arg(value_name = "BASELINE")]
    file: PathBuf,
    /// Write what was measured to the baseline instead of comparing. Commit it with the change that explains it.
    #[arg(long)]
    update: bool,
    /// Write the tables of docs/performance.md, which lie between two comments there.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long, conflicts_with = "update")]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Runs the command. Returns the exit status.
pub fn run(args: &CheckArgs) -> Result<ExitCode> {
    // A baseline that cannot be used is said before a minute of recording.
    let known = if args.update { None } else { Some(Baseline::read(&args.file)?) };
    let machine = Machine::prepare(&args.machine)?;
    if let Some(known) = &known {
        known.provenance.check(&machine.provenance).map_err(Error::Usage)?;
    }
    let measured = machine.record(&args.machine)?;
    let now = Baseline { provenance: machine.provenance, windows: measured };
    if let Some(page) = &args.page {
        page::write(page, &now)?;
    }
    let Some(known) = known else {
        now.write(&args.file)?;
        crate::report::show(&format!("{}\n", args.file.display()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let is_chosen = |name: &str| args.machine.windows.is_empty() || now.windows.contains_key(name);
    let differences = compare::compare(&known.windows, &now.windows, is_chosen);
    let shown = match args.json {
        true => document::line(&CheckData::new(&differences, &now))
            .map_err(|error| Error::Usage(error.to_string()))?,
        false => text(&differences, &now),
    };
    crate::report::show(&shown)?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

/// What was found, for programs.
#[derive(JsonSchema, Serialize)]
pub struct CheckData<'a> {
    /// Whether a count is out of its band.
    differs: bool,
    /// The number of windows that were recorded.
    windows: usize,
    /// What the numbers depend on besides pvnet's source: a key and a value each.
    provenance: Vec<String>,
    /// The counts that are out of their bands.
    differences: &'a [Difference],
}

impl Document for CheckData<'_> {
    const SCHEMA: &'static str = "pvscope-check/1";
}

impl<'a> CheckData<'a> {
    fn new(differences: &'a [Difference], now: &Baseline) -> Self {
        Self {
            differs: !differences.is_empty(),
            windows: now.windows.len(),
            provenance: now.provenance.lines(),
            differences,
        }
    }
}

fn text(differences: &[Difference], now: &Baseline) -> String {
    let mut text = String::new();
    for difference in differences {
        let _ = writeln!(text, "{difference}");
    }
    let count = now.windows.len();
    match differences.len() {
        0 => format!("{count} windows: as in the baseline.\n"),
        some => {
            let _ = writeln!(
                text,
                "{some} differences in {count} windows. If they are meant, run this with --update and commit the baseline with \
                 the reason."
            );
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_as_its_schema_says() {
        let now =
            Baseline { provenance: baseline::BaselineProvenance::default(), windows: [].into() };
        let difference = Difference {
            window: "copy-64".to_owned(),
            what: "instructions per frame, pvnet".to_owned(),
            before: 1.0,
            now: 2.5,
            functions: vec![("pvnet f".to_owned(), 0.0, 1.5)],
        };
        let mut json = document::checked(&CheckData::new(&[difference], &now));
        json["differences"][0]["functions"][0][1] = "many".into();
        let schema = document::schema::<CheckData<'_>>();
        assert_eq!(document::errors(&schema, &json).len(), 1);
    }
}
