//! `pvnet schema`: what the JSON of each command looks like, and the configuration.

use std::io::Write as _;

use control_socket::{ChangeReport, GuestReport, MoveReport, Status};
use document::Kind;
use report::SchemaArgs;

use crate::attach::AttachDocument;
use crate::balloon::BalloonDocument;
use crate::config;
use crate::config_check::CheckDocument;
use crate::doctor::DoctorDocument;
use crate::mirrors::MirrorDocument;
use crate::program;
use crate::revoke::RevokeDocument;
use crate::top::TopDocument;
use crate::workers::WorkerDocument;

/// All kinds of documents.
pub const KINDS: &[Kind] = &[
    Kind::of::<Status>("status", &["status"]),
    Kind::of::<TopDocument>("top", &["top"]),
    Kind::of::<ChangeReport>(
        "change",
        &[
            "reload",
            "port add",
            "port del",
            "port set",
            "port up",
            "port down",
            "mirror add",
            "mirror del",
        ],
    ),
    Kind::of::<MirrorDocument>("mirror", &["mirror list"]),
    Kind::of::<WorkerDocument>("worker", &["worker list"]),
    Kind::of::<MoveReport>("move", &["worker move", "worker rebalance"]),
    Kind::of::<RevokeDocument>("revoke", &["revoke"]),
    Kind::of::<BalloonDocument>("balloon", &["balloon"]),
    Kind::of::<AttachDocument>("attach", &["attach", "detach"]),
    Kind::of::<CheckDocument>("check", &["run"]),
    Kind::of::<DoctorDocument>("doctor", &["doctor"]),
    // At SIGUSR1, not with an option.
    Kind::of::<GuestReport>("guest", &["guest", "frontend"]),
    // Nothing prints it: the file that an operator writes.
    Kind { name: CONFIG, commands: &[], id: config::SCHEMA, schema: config::schema },
];

const CONFIG: &str = "config";

/// Prints the schema that is asked for, or a list of all.
///
/// # Errors
/// A sentence with the names, if there is none of this name.
pub fn print(args: &SchemaArgs) -> Result<(), String> {
    let text = args.text(KINDS.iter().copied())?;
    std::io::stdout().write_all(text.as_bytes()).map_err(program::text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = report::json_commands(&Cli::command());
        assert!(commands.len() >= 15, "{commands:?}");
        for command in &commands {
            let found = KINDS.iter().any(|kind| kind.commands.contains(&&**command));
            assert!(found, "`pvnet {command} --json` has no schema");
        }
        let asked = KINDS.iter().filter(|kind| kind.name != "guest");
        for command in asked.flat_map(|kind| kind.commands) {
            assert!(commands.contains(&(*command).to_owned()), "`pvnet {command}` has no --json");
        }
    }

    #[test]
    fn schemas_name_themselves_and_know_all_fields() {
        for kind in KINDS.iter().filter(|kind| kind.name != CONFIG) {
            assert!(kind.id.starts_with(&format!("pvnet-{}/", kind.name)), "{}", kind.id);
            assert_eq!(document::faults(kind), [""; 0], "{}", kind.id);
        }
    }
}
