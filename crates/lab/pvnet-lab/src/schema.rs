//! `pvnet-lab schema`: what the JSON of each command looks like.

use document::Kind;

/// All kinds of documents.
pub fn kinds() -> impl Iterator<Item = Kind> + Clone {
    #[cfg(feature = "hosts")]
    let of_hosts = xenlab::command::DOCUMENTS;
    #[cfg(not(feature = "hosts"))]
    let of_hosts: &[Kind] = &[];
    experiments::DOCUMENTS.iter().chain(of_hosts).copied()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let commands = report::json_commands(&Cli::command());
        assert!(commands.len() >= 25, "{commands:?}");
        let with_a_schema: Vec<_> = kinds().flat_map(|kind| kind.commands).collect();
        for command in &commands {
            // `ovn cost` writes rows, as a bench does.
            let found = command == "ovn cost" || with_a_schema.contains(&&&**command);
            assert!(found, "`pvnet-lab {command} --json` has no schema");
        }
        for command in with_a_schema {
            assert!(
                commands.contains(&(*command).to_owned()),
                "`pvnet-lab {command}` has no --json"
            );
        }
    }

    #[test]
    fn schemas_know_all_fields() {
        for kind in kinds() {
            assert_eq!(document::faults(&kind), [""; 0], "{}", kind.id);
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
