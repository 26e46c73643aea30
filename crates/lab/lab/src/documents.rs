//! The fenced blocks of the project's documents and the commands in them, for tests that try them.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its document and line, as compilers write it: `docs/ports.md:7`.
    pub place: String,
    /// The word behind the fence: `sh`, `toml`, …
    pub language: String,
    /// The text of an HTML comment on the line above: `<!-- NOTE -->`.
    pub note: Option<String>,
    /// Its lines.
    pub text: String,
}

impl Block {
    /// Its document.
    #[must_use]
    pub fn document(&self) -> &str {
        self.place.split(':').next().unwrap_or_default()
    }
}

/// The history has commands that are gone.
const HISTORY: &str = "CHANGELOG.md";
/// Folders that hold no documents of the project: what is built, measured or lent.
const OTHERS: [&str; 3] = ["target", "out", "shared"];

/// The blocks of all documents below the root of the repository, in order.
///
/// # Errors
/// A document cannot be read.
pub fn blocks(root: &Path) -> io::Result<Vec<Block>> {
    let (mut documents, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let is_other = OTHERS.iter().any(|other| name == *other)
                || name.as_encoded_bytes().starts_with(b".");
            let path = folder.join(name);
            if kind.is_dir() && !is_other {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") && !path.ends_with(HISTORY) {
                documents.push(path);
            }
        }
    }
    documents.sort();
    let mut blocks = Vec::new();
    for document in documents {
        let text = fs::read_to_string(root.join(&document))?;
        blocks.extend(of_document(&document.display().to_string(), &text));
    }
    Ok(blocks)
}

/// The block of shell commands in a document's text that has these words, for a lab that pastes it.
///
/// # Panics
/// There is no such block, or another one too.
#[must_use]
pub fn shell_block(document: &str, words: &str) -> String {
    let blocks = of_document("", document).into_iter();
    let mut texts = blocks
        .filter(|block| block.language == "sh")
        .map(|block| block.text)
        .filter(|text| text.contains(words));
    match (texts.next(), texts.next()) {
        (Some(text), None) => text,
        (found, _) => {
            panic!("{} with {words:?}", if found.is_some() { "two blocks" } else { "no block" })
        }
    }
}

fn of_document(name: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_inside, mut before) = (false, "");
    // A block in a list is indented, as its fence is.
    let mut indent = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let inner = line.trim_start();
        if !is_inside && inner.starts_with("```") {
            indent = line.len() - inner.len();
        }
        let spaces = (line.len() - inner.len()).min(indent);
        let line = &line[spaces..];
        match (line.strip_prefix("```"), is_inside) {
            (Some(language), false) => {
                let note = before.strip_prefix("<!-- ").and_then(|note| note.strip_suffix(" -->"));
                blocks.push(Block {
                    place: format!("{name}:{number}"),
                    language: language.to_owned(),
                    note: note.map(ToOwned::to_owned),
                    text: String::new(),
                });
                is_inside = true;
            }
            (Some(_), true) => is_inside = false,
            (None, true) => {
                if let Some(block) = blocks.last_mut() {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            }
            (None, false) => {}
        }
        before = line;
    }
    blocks
}

/// The simple commands of a shell script, each as its words without quotes. Lists and pipelines are split into their parts;
/// redirections, comments and here-documents (`<<'END'`) are left out. It is enough of a shell for documents, without expansion.
#[must_use]
pub fn commands(script: &str) -> Vec<Vec<String>> {
    let script = without_here_documents(script);
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut is_target = false;
    let mut characters = script.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('\n') | None => {}
                Some(other) => word.get_or_insert_default().push(other),
            },
            '\'' => {
                word.get_or_insert_default().extend(characters.by_ref().take_while(|c| *c != '\''));
            }
            '"' => {
                word.get_or_insert_default().extend(characters.by_ref().take_while(|c| *c != '"'));
            }
            '#' if word.is_none() => while characters.next_if(|c| *c != '\n').is_some() {},
            '>' | '<' => {
                // The number of a descriptor is part of the redirection.
                if word.as_ref().is_some_and(|word| word.chars().all(|c| c.is_ascii_digit())) {
                    word = None;
                }
                end(&mut word, &mut is_target, &mut commands);
                while characters.next_if(|c| "><&".contains(*c)).is_some() {}
                is_target = true;
            }
            '|' | ';' | '&' | '\n' | '(' | ')' => {
                end(&mut word, &mut is_target, &mut commands);
                commands.push(Vec::new());
            }
            ' ' | '\t' => end(&mut word, &mut is_target, &mut commands),
            other => word.get_or_insert_default().push(other),
        }
    }
    end(&mut word, &mut is_target, &mut commands);
    commands.retain(|command| !command.is_empty());
    commands
}

/// Ends a word; the target of a redirection is dropped.
fn end(word: &mut Option<String>, is_target: &mut bool, commands: &mut [Vec<String>]) {
    let Some(word) = word.take() else { return };
    if !std::mem::take(is_target)
        && let Some(command) = commands.last_mut()
    {
        command.push(word);
    }
}

fn without_here_documents(script: &str) -> String {
    let mut text = String::new();
    let mut until: Option<&str> = None;
    for line in script.lines() {
        if let Some(mark) = until {
            until = (line != mark).then_some(mark);
            continue;
        }
        until = line.split_once("<<'").and_then(|(_, rest)| rest.split('\'').next());
        text.push_str(line.split("<<'").next().unwrap_or_default());
        text.push('\n');
    }
    text
}

/// The commands of all documents that call a program, by its name or its path, each with its block's place.
///
/// # Errors
/// A document cannot be read.
fn calls(root: &Path, program: &str) -> io::Result<Vec<(String, Vec<String>)>> {
    let blocks = blocks(root)?.into_iter().filter(|block| block.language == "sh");
    let all = blocks.flat_map(|block| {
        commands(&block.text).into_iter().map(move |command| (block.place.clone(), command))
    });
    let is_its = |command: &[String]| {
        command
            .first()
            .is_some_and(|first| Path::new(first).file_name().is_some_and(|name| name == program))
    };
    Ok(all.filter(|(_, command)| is_its(command)).collect())
}

/// Checks that a program accepts all commands in the documents that call it, and that there are at least `least` of them.
/// `error_of` returns the fault of one command.
///
/// # Panics
/// A command is not accepted, there are too few, or a document cannot be read.
pub fn check_calls<E: Display>(
    program: &str,
    least: usize,
    error_of: impl Fn(&[String]) -> Option<E>,
) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let calls = calls(&root, program).expect("the documents are read");
    let wrong = calls.iter().filter_map(|(place, words)| {
        let error = error_of(words)?;
        Some(format!("{place}: {}: {error}", words.join(" ")))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
    assert!(calls.len() >= least, "{}", calls.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_place_their_language_and_their_note() {
        let text = "# A\n\n```sh\nls\n```\n\n<!-- keys of [[port]] -->\n```toml\nmtu = 9\n```\n";
        let text = format!("{text}- a list:\n  ```sh\n  if\n    b\n  ```\n");
        let [first, second, third] = &of_document("docs/xen.md", &text)[..] else { panic!() };
        assert_eq!((&*third.language, &*third.text), ("sh", "if\n  b\n"));
        assert_eq!(
            (&*first.place, &*first.language, &*first.text),
            ("docs/xen.md:3", "sh", "ls\n")
        );
        assert_eq!((first.document(), &first.note), ("docs/xen.md", &None));
        assert_eq!(second.place, "docs/xen.md:8");
        assert_eq!(shell_block(&text, "ls"), "ls\n");
        assert_eq!(second.note.as_deref(), Some("keys of [[port]]"));
    }

    #[test]
    fn a_script_is_taken_apart_into_commands() {
        let script = "a  b 'c d'>out # e\nf \"g h\" | i; j && k 2>&1 &\n\
                      l \\\n  m\ncat >file <<'END'\nn o\nEND\n(p; echo q#r)\n";
        let commands = commands(script);
        let joined: Vec<_> = commands.iter().map(|command| command.join("/")).collect();
        let expected = ["a/b/c d", "f/g h", "i", "j", "k", "l/m", "cat", "p", "echo/q#r"];
        assert_eq!(joined, expected);
    }

    #[test]
    fn the_documents_have_blocks() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let blocks = blocks(&root).unwrap();
        assert!(blocks.len() > 40, "{}", blocks.len());
        assert!(blocks.iter().any(|block| block.place.starts_with("README.md:")));
        assert!(calls(&root, "pvscope").unwrap().len() > 20);
    }
}
