//! `pvscope check`: whether a path of pvnet takes more than its baseline says.
//!
//! ```text
//!  pvnet bench pps --lockstep, in QEMU ──► windows ──► Measured: medians per window ─┐
//!  docs/baseline.txt ─────────────────────────────────► Baseline ────────────────────┴─► compare ──► Difference …
//! ```

mod baseline;
mod compare;
mod layouts;
mod measured;
mod page;
mod provenance;
mod windows;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::error::{Error, Result};
use baseline::Baseline;
use compare::Difference;
use windows::{Machine, MachineArgs};

/// The exit status if counts differ from the baseline's.
const DIFFERS: u8 = 3;

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
    #[arg(long)]
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
    let shown = if args.json { json(&differences, &now)? } else { text(&differences, &now) };
    crate::report::show(&shown)?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

fn json(differences: &[Difference], now: &Baseline) -> Result<String> {
    let document = serde_json::json!({
        "schema": "pvscope-check-1",
        "differs": !differences.is_empty(),
        "windows": now.windows.len(),
        "provenance": now.provenance.lines(),
        "differences": differences,
    });
    let text = serde_json::to_string(&document);
    Ok(text.map_err(|error| Error::Usage(error.to_string()))? + "\n")
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
