//! The programs that tests need: `scripts/deps` installs each, so that no test is left out, or fails, on a fresh machine.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

/// Programs beside those that `scripts/deps` names: of coreutils and util-linux, which each Debian has, and of iproute2.
const OTHERS: [&str; 7] = ["bridge", "cat", "nstat", "stty", "tc", "timeout", "unshare"];

/// The programs in a `requires!` of the crates below `root` that `scripts/deps` does not install.
///
/// # Errors
/// A folder or file cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    let script = fs::read_to_string(root.join("scripts/deps"))?;
    let mut needed = BTreeSet::new();
    find(&root.join("crates"), &mut needed)?;
    Ok(missing(&script, needed))
}

fn missing(script: &str, needed: BTreeSet<String>) -> Vec<String> {
    let installs = |program: &str| script.contains(&format!("\n    '{program}|"));
    let missing = needed
        .into_iter()
        .filter(|program| !installs(program) && !OTHERS.contains(&program.as_str()));
    missing
        .map(|program| format!("scripts/deps does not install {program}, which a test requires"))
        .collect()
}

/// Adds the programs that the files in a folder require.
fn find(folder: &Path, needed: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, needed)?;
        } else if path.extension() == Some(OsStr::new("rs")) {
            needed.extend(required(&fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The programs in all calls of the macro in a text. What is no program's name is of a comment or a text about such calls.
fn required(text: &str) -> Vec<String> {
    let calls = text.split("requires!(").skip(1).filter_map(|rest| rest.split_once(')'));
    let names = calls.flat_map(|(names, _)| names.split('"').skip(1).step_by(2));
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    names.filter(is_name).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_nobody_installs_is_found() {
        let text = r#"requires!(); requires!("ip", "tmux"); requires!( "cat" ); requires!("…");"#;
        let needed = required(text);
        assert_eq!(needed, ["ip", "tmux", "cat"]);
        let script = "tools=(\n    'ip|iproute2|demo|links'\n)\n";
        let found = missing(script, needed.into_iter().collect());
        assert_eq!(found, ["scripts/deps does not install tmux, which a test requires"]);
    }
}
