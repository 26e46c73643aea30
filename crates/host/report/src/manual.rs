//! Man pages, completions and schemas of a program, for packages.

use std::io;
use std::path::Path;

use clap::{Args, Command};
use clap_complete::{Shell, generate_to};
use document::Kind;

use crate::{Table, wants_bold};

/// Writes a page for a program and each of its commands, completions and schemas into a folder, which is created if missing.
///
/// # Errors
/// A file could not be written.
pub fn write_manual(
    command: Command,
    folder: &Path,
    kinds: impl Iterator<Item = Kind>,
) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command.clone(), &name, folder)?;
    }
    for Kind { name, schema, .. } in kinds {
        std::fs::write(folder.join(format!("{name}.schema.json")), format!("{:#}\n", schema()))?;
    }
    clap_mangen::generate_to(command, folder)
}

/// Arguments of the command `schema`.
#[derive(Args)]
pub struct SchemaArgs {
    /// A document's name, or a command that writes it.
    name: Option<String>,
}

impl SchemaArgs {
    /// The schema of the document with this name, or of this command's, as text; without a name, a table of all.
    ///
    /// # Errors
    /// A sentence with the names, if there is none of this name.
    pub fn text(&self, kinds: impl Iterator<Item = Kind> + Clone) -> Result<String, String> {
        let Some(name) = &self.name else {
            let mut table = Table::new().left("name").left("schema").left("printed by");
            for Kind { name, id, commands, .. } in kinds {
                table.row([name.to_owned(), id.to_owned(), commands.join(", ")]);
            }
            return Ok(table.render(wants_bold()));
        };
        let is_meant = |kind: &Kind| kind.name == name || kind.commands.contains(&&**name);
        let kind = kinds.clone().find(is_meant).ok_or_else(|| {
            let names: Vec<_> = kinds.map(|kind| kind.name).collect();
            format!("no document {name:?}; there are {}", names.join(", "))
        })?;
        Ok(format!("{:#}\n", (kind.schema)()))
    }
}

/// The commands below this one that have the option `--json`, with the names above them: for tests, which hold each to a schema.
#[must_use]
pub fn json_commands(command: &Command) -> Vec<String> {
    fn below(command: &Command, name: &str) -> Vec<String> {
        let is_option = |arg: &clap::Arg| arg.get_long() == Some("json");
        let this = command.get_arguments().any(is_option).then(|| name.trim_start().to_owned());
        let more = command.get_subcommands();
        let more = more.flat_map(|one| below(one, &format!("{name} {}", one.get_name())));
        this.into_iter().chain(more).collect()
    }
    below(command, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Benchmark;

    #[test]
    fn each_command_that_is_shown_has_a_page() {
        let command = Command::new("tool")
            .about("A tool.")
            .subcommand(Command::new("run").subcommand(Command::new("fast").about("Fast.")))
            .subcommand(Command::new("secret").hide(true));
        let folder = host::TempDir::new().unwrap();
        let kinds = [Kind::of::<crate::Benchmark>("bench", &["run"])];
        write_manual(command, folder.path(), kinds.into_iter()).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let expected = ["_tool", "bench.schema.json", "tool-run-fast.1", "tool-run.1", "tool.1"];
        assert_eq!(files, [&expected[..], &["tool.bash", "tool.fish"]].concat());
        let page = std::fs::read_to_string(folder.path().join("tool-run-fast.1")).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
    }

    const KINDS: [Kind; 1] = [Kind::of::<Benchmark>("bench", &["bench pps", "demo"])];

    fn text(name: Option<&str>) -> Result<String, String> {
        SchemaArgs { name: name.map(str::to_owned) }.text(KINDS.into_iter())
    }

    #[test]
    fn a_schema_is_found_by_its_name_and_by_its_commands() {
        let list = text(None).unwrap();
        assert!(list.contains("pvnet-bench/1") && list.contains("bench pps, demo"), "{list}");
        let schema = text(Some("bench")).unwrap();
        assert_eq!(text(Some("bench pps")).unwrap(), schema);
        let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
        assert_eq!(schema["properties"]["schema"]["const"], "pvnet-bench/1");
        assert!(text(Some("colour")).unwrap_err().contains("there are bench"));
    }

    #[test]
    fn commands_with_the_option_are_found_at_every_depth() {
        let with = |name: &'static str| Command::new(name).arg(clap::Arg::new("json").long("json"));
        let bench = Command::new("bench").subcommand(with("pps")).subcommand(Command::new("x"));
        let program = Command::new("program").subcommand(bench).subcommand(with("status"));
        assert_eq!(json_commands(&program), ["bench pps", "status"]);
    }
}
