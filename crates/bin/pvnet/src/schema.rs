//! `pvnet schema`: what the JSON of each command looks like.

use control_socket::{ChangeReport, GuestReport, Status};
use document::Kind;
use report::Table;
use serde_json::Value;

use crate::balloon::BalloonDocument;
use crate::doctor::DoctorDocument;
use crate::error::text;
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
    Kind::of::<DoctorDocument>("doctor", &["doctor"]),
    // At SIGUSR1, not with an option.
    Kind::of::<GuestReport>("guest", &["guest", "frontend"]),
];

/// All kinds of documents.
fn kinds() -> impl Iterator<Item = Kind> {
    OWN.iter().chain(experiments::DOCUMENTS).copied()
}

/// Prints the schema of the document with this name, or of this command's, or a list of all.
///
/// # Errors
/// A sentence with the names, if there is none of this name.
pub fn print(name: Option<&str>) -> Result<(), String> {
    let Some(name) = name else {
        let mut table = Table::new().left("name").left("schema").left("printed by");
        for Kind { name, id, commands, .. } in kinds() {
            table.row([name.to_owned(), id.to_owned(), commands.join(", ")]);
        }
        return table.print().map_err(text);
    };
    let is_meant = |kind: &Kind| kind.name == name || kind.commands.contains(&name);
    let kind = kinds().find(is_meant).ok_or_else(|| {
        let names: Vec<_> = kinds().map(|kind| kind.name).collect();
        format!("no document {name:?}; there are {}", names.join(", "))
    })?;
    println!("{:#}", (kind.schema)());
    Ok(())
}

/// The names of all documents, and their schemas.
pub fn all() -> impl Iterator<Item = (&'static str, Value)> {
    kinds().map(|kind| (kind.name, (kind.schema)()))
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use super::*;
    use crate::Cli;

    /// The commands that print JSON, or write it to a file, if they are asked to, with the names above them.
    fn printing(command: &Command, name: &str) -> Vec<String> {
        let is_option = |arg: &clap::Arg| arg.get_long() == Some("json");
        let below = command.get_subcommands();
        let below = below.flat_map(|one| printing(one, &format!("{name} {}", one.get_name())));
        let this = command.get_arguments().any(is_option).then(|| name.trim_start().to_owned());
        this.into_iter().chain(below).collect()
    }

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = printing(&Cli::command(), "");
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
