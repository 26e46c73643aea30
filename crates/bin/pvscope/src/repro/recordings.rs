//! The recordings that a paper's figures are taken from.

use scope_result::Recording;

use super::plot::Used;

/// A recording and its workload.
pub struct Named {
    /// The workload's name.
    pub workload: &'static str,
    /// What was recorded of it.
    pub recording: Recording,
}

impl Named {
    /// What the document says about it.
    pub fn used(&self) -> Used {
        let work = &self.recording.work;
        Used {
            workload: self.workload.to_owned(),
            what: work.what.clone(),
            instructions: self.recording.instructions,
            frames: work.frames,
            bytes: work.bytes,
        }
    }
}
