//! Counts the words of the documents, and limits them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::links;

/// The limit for all documents together: more would not be read.
const WORDS_MAX: usize = 55_500;

/// A line per document below `root` with its number of words, the longest first, and a line with their sum. Words stand between blanks, in code too;
/// bars and rules of tables, and marks of lists, do not count.
///
/// # Errors
/// A folder or document cannot be read.
pub fn report(root: &Path) -> io::Result<String> {
    let mut counts = counts(root)?;
    counts.sort_by(|one, other| other.cmp(one));
    let mut lines: Vec<_> = counts
        .iter()
        .map(|(words, document)| format!("{words:6} {}", document.display()))
        .collect();
    lines.push(format!("{:6} in all, of {WORDS_MAX}", sum(&counts)));
    Ok(lines.join("\n"))
}

/// A finding if the documents below `root` have more words than [`WORDS_MAX`].
///
/// # Errors
/// As [`report`].
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    Ok(excess(sum(&counts(root)?)).into_iter().collect())
}

fn excess(words: usize) -> Option<String> {
    (words > WORDS_MAX).then(|| {
        format!("the documents have {words} words, {WORDS_MAX} at most (xtask words lists them)")
    })
}

fn counts(root: &Path) -> io::Result<Vec<(usize, PathBuf)>> {
    let documents = links::documents(root)?.into_iter();
    documents.map(|document| Ok((count(&fs::read_to_string(&document)?), document))).collect()
}

fn sum(counts: &[(usize, PathBuf)]) -> usize {
    counts.iter().map(|(words, _)| words).sum()
}

fn count(text: &str) -> usize {
    let is_bar = |word: &str| word.chars().all(|c| matches!(c, '|' | ':' | '-'));
    text.split_whitespace().filter(|word| !is_bar(word)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_rules_and_marks_of_lists_are_no_words() {
        let text =
            "Two words.\n\n| a row | 1.5 | µs |\n| --- | ---: | :--- |\n- one\n```sh\nls -l\n```\n";
        // Two; four; one; two, with both fences.
        assert_eq!(count(text), 2 + 4 + 1 + 4);
    }

    #[test]
    fn words_beyond_the_limit_are_a_finding() {
        assert_eq!(excess(WORDS_MAX), None);
        let finding = excess(WORDS_MAX + 1).unwrap();
        assert!(finding.contains("55501 words, 55500 at most"), "{finding}");
    }
}
