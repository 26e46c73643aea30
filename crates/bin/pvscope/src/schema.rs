//! `pvscope schema`: what the JSON of each command looks like.

use document::Kind;

use crate::calibrate::CalibrateData;
use crate::calls::CallsData;
use crate::check::CheckData;
use crate::diff::Diff;
use crate::list::ListData;
use crate::mark::MarksData;
use crate::packet::{DistributionData, PacketData};
use crate::report_data::ReportData;
use crate::repro::{Document, NetbackData};
use crate::snapshot::SnapshotsData;

/// All kinds of documents.
pub const KINDS: [Kind; 13] = [
    Kind::of::<ReportData<'_>>("report", &["report"]),
    Kind::of::<CallsData>("calls", &["calls"]),
    Kind::of::<PacketData<'_>>("packet", &["packet"]),
    Kind::of::<DistributionData<'_>>("distribution", &["packet --distribution"]),
    Kind::of::<Diff>("diff", &["diff"]),
    Kind::of::<CheckData<'_>>("check", &["check"]),
    Kind::of::<Document>("repro", &["repro"]),
    Kind::of::<NetbackData>("netback", &["repro netback"]),
    Kind::of::<report::Benchmark>("bench", &["bench"]),
    Kind::of::<CalibrateData>("calibrate", &["calibrate"]),
    Kind::of::<MarksData>("marks", &["marks"]),
    Kind::of::<SnapshotsData>("snapshots", &["snapshots"]),
    Kind::of::<ListData>("list", &["list"]),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = report::json_commands(&Cli::command());
        assert!(commands.len() >= 11, "{commands:?}");
        for command in &commands {
            let found = KINDS.iter().any(|kind| kind.commands.contains(&&**command));
            assert!(found, "`pvscope {command} --json` has no schema");
        }
    }

    #[test]
    fn schemas_name_themselves_and_know_all_fields() {
        for kind in KINDS {
            let (name, id) = (kind.name, kind.id);
            assert!(name == "bench" || id == format!("pvscope-{name}/1"), "{id}");
            assert_eq!(document::faults(&kind), [""; 0], "{id}");
        }
    }
}
