//! How much there is to read.

use std::path::Path;
use std::{fs, io};

use crate::links;

/// The words of each document below `root`, the longest document first, and their sum: a line each. Fenced code is left out, and so are figures
/// and the bars of tables: a word has a letter.
///
/// # Errors
/// A folder or document cannot be read.
pub fn report(root: &Path) -> io::Result<String> {
    let mut counts = Vec::new();
    for document in links::documents(root)? {
        counts.push((count(&fs::read_to_string(&document)?), document));
    }
    counts.sort_by(|one, other| other.cmp(one));
    let sum: usize = counts.iter().map(|(words, _)| words).sum();
    let mut lines: Vec<_> = counts
        .iter()
        .map(|(words, document)| format!("{words:6} {}", document.display()))
        .collect();
    lines.push(format!("{sum:6} in all"));
    Ok(lines.join("\n"))
}

fn count(text: &str) -> usize {
    let words = links::prose(text).flat_map(str::split_whitespace);
    words.filter(|word| word.contains(char::is_alphabetic)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_figures_and_bars_are_no_words() {
        let text = "Two words.\n\n| a row | 1.5 | µs |\n| --- | ---: | --- |\n```sh\nls -l\n```\n";
        assert_eq!(count(text), 5);
    }
}
