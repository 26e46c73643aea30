//! `xenlab schema`: what the JSON of each lab looks like.

use std::io::Write as _;

use document::Kind;
use report::SchemaArgs;
use xenlab::scenario::StepsDocument;
use xenlab::{Error, Result};

use crate::hostile::HostileDocument;
use crate::matrix::MatrixDocument;
use crate::queues::QueuesDocument;

/// All kinds of documents. The other labs, qemulab and ovnlab, write steps too.
const KINDS: [Kind; 4] = [
    Kind::of::<StepsDocument<'_>>(
        "steps",
        &["domains", "guest-copy", "device", "clients", "platform"],
    ),
    Kind::of::<MatrixDocument<'_>>("matrix", &["matrix"]),
    Kind::of::<QueuesDocument<'_>>("queues", &["queues"]),
    Kind::of::<HostileDocument<'_>>("hostile", &["hostile"]),
];

/// Prints the schema that is asked for, or a list of all.
///
/// # Errors
/// A name that is none.
pub fn print(args: &SchemaArgs) -> Result<()> {
    let failed = |cause| Error::Path { path: "standard output".into(), cause };
    let text =
        args.text(KINDS.into_iter()).map_err(|words| failed(std::io::Error::other(words)))?;
    std::io::stdout().write_all(text.as_bytes()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_lab_that_writes_json_has_a_schema() {
        let commands = report::json_commands(&Cli::command());
        assert!(commands.len() >= 7, "{commands:?}");
        for command in &commands {
            let found = KINDS.iter().any(|kind| kind.commands.contains(&&**command));
            assert!(found, "`xenlab {command} --json` has no schema");
        }
        let page = include_str!("../../../../docs/operations.md");
        for Kind { name, id, schema, .. } in KINDS {
            assert!(page.contains(&format!("`{id}`")), "{id} is not in docs/operations.md");
            assert_eq!(schema()["properties"]["schema"]["const"], id);
            assert_eq!(id, format!("lab-{name}/1"));
        }
    }
}
