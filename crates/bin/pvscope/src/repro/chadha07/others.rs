//! The same numbers of the workloads that no rule judges.

use report::Unit;
use scope_result::Recording;

use crate::repro::recordings::WorkloadRecording;

/// A sentence with the same number of other workloads.
pub fn also(
    others: &[WorkloadRecording],
    unit: Unit,
    of: impl Fn(&Recording) -> Option<f64>,
) -> String {
    let numbers = others.iter().filter_map(|named| {
        of(&named.recording).map(|number| format!("{} {}", named.workload, unit.show(number)))
    });
    let numbers: Vec<String> = numbers.collect();
    if numbers.is_empty() { String::new() } else { format!(" Others: {}.", numbers.join(", ")) }
}
