//! Man pages, completions and schemas of a program, for packages.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::{Shell, generate_to};
use document::Kind;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_that_is_shown_has_a_page() {
        let command = Command::new("tool")
            .about("A tool.")
            .subcommand(Command::new("run").subcommand(Command::new("fast").about("Fast.")))
            .subcommand(Command::new("secret").hide(true));
        let folder = std::env::temp_dir().join(format!("report-manual-{}", std::process::id()));
        let kinds = [Kind::of::<crate::Benchmark>("bench", &["run"])];
        write_manual(command, &folder, kinds.into_iter()).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let expected = ["_tool", "bench.schema.json", "tool-run-fast.1", "tool-run.1", "tool.1"];
        assert_eq!(files, [&expected[..], &["tool.bash", "tool.fish"]].concat());
        let page = std::fs::read_to_string(folder.join("tool-run-fast.1")).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
