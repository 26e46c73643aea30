//! `pvnet schema`: what the JSON of each command looks like.

use control_socket::{ChangeReport, GuestReport, Status};
use report::Table;
use serde_json::Value;

use crate::balloon::BalloonDocument;
use crate::doctor::DoctorDocument;
use crate::document::{Document, schema};
use crate::error::text;
use crate::mirrors::MirrorDocument;
use crate::revoke::RevokeDocument;
use crate::top::TopDocument;

/// A document, and the commands that print it.
struct Entry {
    name: &'static str,
    commands: &'static [&'static str],
    id: &'static str,
    schema: fn() -> Value,
}

impl Entry {
    const fn new<T: Document>(name: &'static str, commands: &'static [&'static str]) -> Self {
        Self { name, commands, id: T::SCHEMA, schema: schema::<T> }
    }
}

const ALL: &[Entry] = &[
    Entry::new::<Status>("status", &["status"]),
    Entry::new::<TopDocument>("top", &["top"]),
    Entry::new::<ChangeReport>(
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
    Entry::new::<MirrorDocument>("mirror", &["mirror list"]),
    Entry::new::<RevokeDocument>("revoke", &["revoke"]),
    Entry::new::<BalloonDocument>("balloon", &["balloon"]),
    Entry::new::<DoctorDocument>("doctor", &["doctor"]),
    // At SIGUSR1, not with an option.
    Entry::new::<GuestReport>("guest", &["guest", "frontend"]),
];

/// Prints the schema of the document with this name, or of this command's, or a list of all.
///
/// # Errors
/// A sentence with the names, if there is none of this name.
pub fn print(name: Option<&str>) -> Result<(), String> {
    let Some(name) = name else {
        let mut table = Table::new().left("name").left("schema").left("printed by");
        for Entry { name, id, commands, .. } in ALL {
            table.row([(*name).to_owned(), (*id).to_owned(), commands.join(", ")]);
        }
        return table.print().map_err(text);
    };
    let is_meant = |entry: &&Entry| entry.name == name || entry.commands.contains(&name);
    let entry = ALL.iter().find(is_meant).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|entry| entry.name).collect();
        format!("no document {name:?}; there are {}", names.join(", "))
    })?;
    println!("{:#}", (entry.schema)());
    Ok(())
}

/// The names of all documents, and their schemas.
pub fn all() -> impl Iterator<Item = (&'static str, Value)> {
    ALL.iter().map(|entry| (entry.name, (entry.schema)()))
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, Command, CommandFactory as _};

    use super::*;
    use crate::Cli;

    /// The commands that print JSON if they are asked to by a flag, with the names above them.
    fn printing(command: &Command, name: &str) -> Vec<String> {
        let is_flag = |arg: &clap::Arg| {
            arg.get_long() == Some("json") && matches!(arg.get_action(), ArgAction::SetTrue)
        };
        let below = command.get_subcommands();
        let below = below.flat_map(|one| printing(one, &format!("{name} {}", one.get_name())));
        let this = command.get_arguments().any(is_flag).then(|| name.trim_start().to_owned());
        this.into_iter().chain(below).collect()
    }

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = printing(&Cli::command(), "");
        assert!(commands.len() >= 10, "{commands:?}");
        for command in &commands {
            let found = ALL.iter().any(|entry| entry.commands.contains(&&**command));
            assert!(found, "`pvnet {command} --json` has no schema");
        }
        let asked = ALL.iter().filter(|entry| entry.name != "guest");
        for command in asked.flat_map(|entry| entry.commands) {
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
                assert_eq!(object["additionalProperties"], false, "{name}: {object}");
            }
        }
    }
}
