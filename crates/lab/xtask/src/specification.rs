//! Checks SPECIFICATION.md against the code.
//!
//! A row of its tables is `| what | value | constant | test |`. The last two cells name items as
//! `` `crate/path.rs:NAME` ``, or `` `:NAME` `` in the file of the item before; each must exist,
//! and the number of a constant must stand in the row's value.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The rows of `root`'s SPECIFICATION.md that differ from the code, one line each.
///
/// # Errors
/// The document cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(root.join("SPECIFICATION.md"))?;
    let folders = folders(root)?;
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let findings = rows.flat_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let value = cells.get(2).copied().unwrap_or_default();
        items(row).filter_map(|(path, name)| judge(&folders, value, path, name)).collect::<Vec<_>>()
    });
    Ok(findings.map(|finding| format!("SPECIFICATION.md: {finding}")).collect())
}

/// The root and the folders that hold crates.
fn folders(root: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root.join("crates"))?.map(|entry| entry.map(|entry| entry.path()));
    std::iter::once(Ok(root.to_owned())).chain(entries).collect()
}

/// The `path.rs:NAME` and `:NAME` in backticks, with their files.
fn items(row: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = row.split('`').skip(1).step_by(2);
    let items = quoted.filter_map(|item| item.split_once(':'));
    let in_files = items.scan("", |file, (path, name)| {
        if !path.is_empty() {
            *file = path;
        }
        Some((*file, name))
    });
    in_files.filter(|(path, _)| path.ends_with(".rs"))
}

/// What is wrong with an item of a row. Its path is relative to one of the folders.
fn judge(folders: &[PathBuf], value: &str, path: &str, name: &str) -> Option<String> {
    let mut files = folders.iter().map(|folder| folder.join(path));
    let Some(source) = files.find_map(|file| fs::read_to_string(file).ok()) else {
        return Some(format!("{path} does not exist"));
    };
    if !has_word(&source, name) {
        return Some(format!("{path} has no {name}"));
    }
    let stated = number(&source, name)?;
    let given: String = value.chars().filter(|c| !matches!(c, ',' | '_')).collect();
    let is_given = given.split(|c: char| !c.is_ascii_digit()).any(|digits| digits == stated);
    (!is_given).then(|| format!("{path}:{name} is {stated}, the value says {value}"))
}

fn has_word(source: &str, word: &str) -> bool {
    source.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// The first number in the definition of the constant `name`; none if the definition has no number.
fn number(source: &str, name: &str) -> Option<String> {
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    let (_, definition) = rest.split_once(" = ")?;
    let (definition, _) = definition.split_once(';')?;
    let plain = definition.replace('_', "");
    plain
        .split(|c: char| !c.is_alphanumeric())
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .map(|word| word.trim_end_matches(char::is_alphabetic).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "const STALL: Duration = Duration::from_millis(200);\n\
        pub const LEN: usize = 65_535;\nconst PACE: u32 = Rx::COUNT;\nfn it_holds() {}\n";

    #[test]
    fn the_number_of_a_constant_is_found() {
        assert_eq!(number(SOURCE, "STALL").as_deref(), Some("200"));
        assert_eq!(number(SOURCE, "LEN").as_deref(), Some("65535"));
        assert_eq!(number(SOURCE, "PACE"), None);
        assert_eq!(number(SOURCE, "it_holds"), None);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word(SOURCE, "it_holds") && has_word(SOURCE, "PACE"));
        assert!(!has_word(SOURCE, "holds"));
    }

    #[test]
    fn items_are_paths_with_a_name() {
        let row = "| frames | 64 `x` | `a/b.rs:WINDOW` | `:zero`, `a/c.rs:one`, `:two` |";
        let found: Vec<_> = items(row).collect();
        let [b, c] = ["a/b.rs", "a/c.rs"];
        assert_eq!(found, [(b, "WINDOW"), (b, "zero"), (c, "one"), (c, "two")]);
    }

    #[test]
    fn rows_that_do_not_hold_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = [root.to_owned()];
        let judge = |value, name| judge(&folders, value, "src/specification.rs", name);
        assert_eq!(judge("anything", "has_word"), None);
        assert!(judge("anything", &["has", "no", "such", "word"].join("_")).is_some());
        assert!(super::judge(&folders, "1", "src/nothing.rs", "X").is_some());
    }
}
