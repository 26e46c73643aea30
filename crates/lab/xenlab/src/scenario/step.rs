//! The steps of an experiment, one after the other.

use lab::Progress;
use serde::Serialize;

use crate::Result;

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
pub(super) fn run_all<F: Copy>(
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
