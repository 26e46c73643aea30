//! The steps of an experiment, one after the other.

use std::path::Path;

use document::Document;
use lab::Progress;
use report::{Machine, Table, write_atomic};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Error, Result};

/// A step and its result.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Step {
    /// What was done.
    pub what: String,
    /// The observation.
    pub seen: String,
    /// Whether the observation is as expected.
    pub passed: bool,
}

/// Does all steps in order. `act` does a step, and returns the observation and whether it is as expected. Stops at the first step
/// that fails to run.
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

/// The JSON document of a lab's steps.
#[derive(Debug, JsonSchema, Serialize)]
pub struct StepsDocument<'a> {
    /// The lab's name.
    bench: &'static str,
    /// Where and when it ran.
    machine: Machine,
    /// The steps, in their order.
    steps: &'a [Step],
}

impl Document for StepsDocument<'_> {
    const SCHEMA: &'static str = "lab-steps/1";
}

/// Writes a document to a file, on one line, if a file is given.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(file: Option<&Path>, document: &impl Document) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = document::line(document).map_err(report::Error::from)?;
    Ok(write_atomic(file, text.as_bytes())?)
}

/// Prints a table of results.
///
/// # Errors
/// Standard output fails.
pub fn print(table: &Table) -> Result<()> {
    table.print().map_err(Error::path("standard output"))
}

/// Prints the steps, and writes them to a file if one is given. Returns whether all passed.
///
/// # Errors
/// The file cannot be written.
pub fn report(bench: &'static str, steps: &[Step], json: Option<&Path>) -> Result<bool> {
    let table = Table::new().left("what").left("seen").left("");
    let table = steps.iter().fold(table, |mut table, step| {
        let verdict = if step.passed { "" } else { "WRONG" };
        table.row([step.what.clone(), step.seen.clone(), verdict.to_owned()]);
        table
    });
    print(&table)?;
    write_json(json, &StepsDocument { bench, machine: Machine::detect(), steps })?;
    Ok(steps.iter().all(|step| step.passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_as_the_schema_says() {
        let folder = lab::TempDir::new().unwrap();
        let file = folder.path().join("steps.json");
        let acts = [("boot", true), ("ping", false)];
        let progress = Progress::new(acts.len(), true);
        let steps = run_all(&acts, &progress, |passed| Ok(("seen".to_owned(), passed))).unwrap();
        assert!(!report("a test", &steps, Some(&file)).unwrap(), "a step failed");
        let json = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let schema = document::schema::<StepsDocument<'_>>();
        assert_eq!(document::errors(&schema, &json), [""; 0]);
        assert_eq!(
            (&json["bench"], &json["steps"][1]["passed"]),
            (&"a test".into(), &false.into())
        );
    }
}
