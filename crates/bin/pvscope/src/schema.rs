//! `pvscope schema`: what the JSON of each command looks like.

use document::Kind;

use crate::calls::CallsData;
use crate::check::CheckData;
use crate::diff::Diff;
use crate::packet::{DistributionData, PacketData};
use crate::report_data::ReportData;
use crate::repro::Document;

/// All kinds of documents.
pub const KINDS: [Kind; 8] = [
    Kind::of::<ReportData<'_>>("report", &["report"]),
    Kind::of::<CallsData>("calls", &["calls"]),
    Kind::of::<PacketData<'_>>("packet", &["packet"]),
    Kind::of::<DistributionData<'_>>("distribution", &["packet --distribution"]),
    Kind::of::<Diff>("diff", &["diff"]),
    Kind::of::<CheckData<'_>>("check", &["check"]),
    Kind::of::<Document>("repro", &["repro"]),
    Kind::of::<report::Benchmark>("bench", &["bench"]),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = report::json_commands(&Cli::command());
        assert!(commands.len() >= 7, "{commands:?}");
        for command in &commands {
            let found = KINDS.iter().any(|kind| kind.commands.contains(&&**command));
            assert!(found, "`pvscope {command} --json` has no schema");
        }
    }

    #[test]
    fn schemas_name_themselves() {
        for Kind { name, id, schema, .. } in KINDS {
            assert_eq!(schema()["properties"]["schema"]["const"], id);
            assert!(name == "bench" || id == format!("pvscope-{name}/1"), "{id}");
        }
    }
}
