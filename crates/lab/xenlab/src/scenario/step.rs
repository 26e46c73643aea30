//! The steps of an experiment, one after the other.

use std::path::Path;

use lab::Progress;
use report::{Machine, Table, write_atomic};
use serde::Serialize;

use crate::{Error, Result};

/// A step and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What was done.
    pub what: String,
    /// The observation.
    pub seen: String,
    /// Whether that is as expected.
    pub passed: bool,
}

/// Does all steps in order. `act` does one, and returns the observation and whether it is as expected. Stops at the first step that
/// fails to run.
///
/// # Errors
/// Those of `act`.
pub fn run_all<F: Copy>(
    steps: &[(&str, F)],
    progress: &Progress,
    mut act: impl FnMut(F) -> Result<(String, bool)>,
) -> Result<Vec<Step>> {
    let run = |(what, step): &(&str, F)| {
        progress.step(*what);
        let (seen, passed) = act(*step)?;
        Ok(Step { what: (*what).to_owned(), seen, passed })
    };
    steps.iter().map(run).collect()
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bench: &'static str,
    machine: Machine,
    steps: &'a [Step],
}

/// Prints the steps, and writes them to a file if one is given. Returns whether all passed.
///
/// # Errors
/// A file that cannot be written.
pub fn report(bench: &'static str, steps: &[Step], json: Option<&Path>) -> Result<bool> {
    let table = Table::new().left("what").left("seen").left("");
    let table = steps.iter().fold(table, |mut table, step| {
        let verdict = if step.passed { "" } else { "WRONG" };
        table.row([step.what.clone(), step.seen.clone(), verdict.to_owned()]);
        table
    });
    let print = table.print();
    print.map_err(|cause| Error::Path { path: "standard output".into(), cause })?;
    if let Some(file) = json {
        let document = Document { bench, machine: Machine::detect(), steps };
        let text = serde_json::to_string(&document).map_err(report::Error::from)?;
        write_atomic(file, (text + "\n").as_bytes())?;
    }
    Ok(steps.iter().all(|step| step.passed))
}
