//! The report of a command that runs steps in order.

use std::path::Path;

use report::{Machine, Table, write_atomic};
use serde::Serialize;
use xenlab::scenario::Step;
use xenlab::{Error, Result};

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    bench: &'static str,
    machine: Machine,
    steps: &'a [Step],
}

/// Prints the steps, and writes them to a file if one is given. Returns whether all passed.
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
