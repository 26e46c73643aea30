//! `pvscope manual`: man pages, completions and schemas, for packages.

use std::path::Path;

use clap::Command;
use clap_complete::{Shell, generate_to};
use document::Kind;

use crate::error::{Error, Result};
use crate::schema::KINDS;

/// Writes a page for the program and each of its commands, completions and schemas into a folder.
pub fn write(command: Command, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command.clone(), "pvscope", folder).map_err(Error::path(folder))?;
    }
    for Kind { name, schema, .. } in KINDS {
        let file = folder.join(format!("{name}.schema.json"));
        std::fs::write(&file, format!("{:#}\n", schema())).map_err(Error::path(&file))?;
    }
    clap_mangen::generate_to(command, folder).map_err(Error::path(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_commands_have_pages_and_completions() {
        let folder = lab::TempDir::new().unwrap();
        write(Cli::command(), folder.path()).unwrap();
        for (file, words) in [
            ("pvscope.1", ".SH SYNOPSIS"),
            ("pvscope-run.1", ".SH OPTIONS"),
            ("pvscope-packet.1", ".SH DESCRIPTION"),
            ("pvscope.bash", "calibrate"),
            ("_pvscope", "calibrate"),
            ("pvscope.fish", "calibrate"),
            ("report.schema.json", "pvscope-report/1"),
        ] {
            let text = std::fs::read_to_string(folder.path().join(file)).expect(file);
            assert!(text.contains(words), "{file} has no {words}");
        }
        Cli::command().debug_assert();
    }
}
