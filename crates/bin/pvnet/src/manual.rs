//! `pvnet manual`: man pages and completions, for packages.

use std::path::Path;

use clap::Command;
use clap_complete::{Shell, generate_to};

use crate::error::text;
use crate::schema;

/// The shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes a page for the program and each of its commands, completions and schemas into a folder.
pub fn write(command: Command, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for shell in SHELLS {
        generate_to(shell, &mut command.clone(), "pvnet", folder).map_err(text)?;
    }
    for (name, schema) in schema::all() {
        let file = folder.join(format!("{name}.schema.json"));
        std::fs::write(&file, format!("{schema:#}\n"))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    clap_mangen::generate_to(command, folder).map_err(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// The names of the pages of a command and all commands below it.
    fn pages(command: &Command, name: &str) -> Vec<String> {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let below = shown.flat_map(|below| pages(below, &format!("{name}-{}", below.get_name())));
        std::iter::once(format!("{name}.1")).chain(below).collect()
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = lab::TempDir::new().unwrap();
        write(Cli::command(), folder.path()).unwrap();
        let pages = pages(&Cli::command(), "pvnet");
        assert!(
            pages.len() > 30 && pages.contains(&"pvnet-bench-stream.1".to_owned()),
            "{pages:?}"
        );
        for page in &pages {
            let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
            for heading in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
                assert!(text.contains(heading), "{page} has no {heading}");
            }
        }
        for completions in ["pvnet.bash", "_pvnet", "pvnet.fish"] {
            let text = std::fs::read_to_string(folder.path().join(completions)).unwrap();
            assert!(text.contains("doctor") && text.contains("capture"), "{completions}");
        }
        assert!(folder.path().join("status.schema.json").exists());
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
