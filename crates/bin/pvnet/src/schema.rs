//! `pvnet schema`: what the JSON of each command looks like.

use std::io::Write as _;

use control_socket::{ChangeReport, GuestReport, Status};
use document::Kind;
use report::SchemaArgs;
use serde_json::Value;

use crate::attach::AttachDocument;
use crate::balloon::BalloonDocument;
use crate::config_check::CheckDocument;
use crate::doctor::DoctorDocument;
use crate::error;
use crate::mirrors::MirrorDocument;
use crate::revoke::RevokeDocument;
use crate::top::TopDocument;

/// Those that this program prints itself.
const OWN: &[Kind] = &[
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
    Kind::of::<RevokeDocument>("revoke", &["revoke"]),
    Kind::of::<BalloonDocument>("balloon", &["balloon"]),
    Kind::of::<AttachDocument>("attach", &["attach", "detach"]),
    Kind::of::<CheckDocument>("check", &["run"]),
    Kind::of::<DoctorDocument>("doctor", &["doctor"]),
    // At SIGUSR1, not with an option.
    Kind::of::<GuestReport>("guest", &["guest", "frontend"]),
];

/// All kinds of documents.
fn kinds() -> impl Iterator<Item = Kind> + Clone {
    OWN.iter().chain(experiments::DOCUMENTS).copied()
}

/// Prints the schema that is asked for, or a list of all.
///
/// # Errors
/// A sentence with the names, if there is none of this name.
pub fn print(args: &SchemaArgs) -> Result<(), String> {
    let text = args.text(kinds())?;
    std::io::stdout().write_all(text.as_bytes()).map_err(error::text)
}

/// The names of all documents, and their schemas.
pub fn all() -> impl Iterator<Item = (&'static str, Value)> {
    kinds().map(|kind| (kind.name, (kind.schema)()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = report::json_commands(&Cli::command());
        assert!(commands.len() >= 20, "{commands:?}");
        for command in &commands {
            let found = kinds().any(|kind| kind.commands.contains(&&**command));
            assert!(found, "`pvnet {command} --json` has no schema");
        }
        let asked = kinds().filter(|kind| kind.name != "guest");
        for command in asked.flat_map(|kind| kind.commands) {
            assert!(commands.contains(&(*command).to_owned()), "`pvnet {command}` has no --json");
        }
    }

    #[test]
    fn every_document_is_in_the_table_of_the_operations_page() {
        let page = include_str!("../../../../docs/operations.md");
        for Kind { id, .. } in kinds() {
            assert!(page.contains(&format!("`{id}`")), "{id} is not in docs/operations.md");
        }
    }

    /// Every object with named fields, and all that is below it.
    fn objects<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
        if schema.get("properties").is_some() {
            found.push(schema);
        }
        match schema {
            Value::Object(parts) => parts.values().for_each(|part| objects(part, found)),
            Value::Array(parts) => parts.iter().for_each(|part| objects(part, found)),
            _ => {}
        }
    }

    #[test]
    fn schemas_name_themselves_describe_their_fields_and_know_no_others() {
        for (name, schema) in all() {
            let id = schema["properties"]["schema"]["const"].as_str().unwrap();
            assert!(id.starts_with(&format!("pvnet-{name}/")), "{id}");
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
            assert_eq!(schema["required"][0], "schema", "{name}");
            let mut found = Vec::new();
            objects(&schema, &mut found);
            for object in found {
                // The rows of benches have fields of their own.
                let others = name == "bench" && object["properties"]["median"].is_object();
                assert_eq!(object["additionalProperties"], others, "{name}: {object}");
            }
        }
    }
}
