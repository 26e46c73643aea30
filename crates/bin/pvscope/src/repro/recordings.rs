//! The recordings from which a paper's figures are made.

use scope_result::Recording;

use super::plot::RecordingRow;

pub struct WorkloadRecording {
    /// The workload's name.
    pub workload: &'static str,
    pub recording: Recording,
}

impl WorkloadRecording {
    /// The row of the document's table of recordings.
    pub fn summary(&self) -> RecordingRow {
        let work = &self.recording.work;
        RecordingRow {
            workload: self.workload.to_owned(),
            what: work.what.clone(),
            instructions: self.recording.instructions,
            frames: work.frames,
            bytes: work.bytes,
        }
    }
}
