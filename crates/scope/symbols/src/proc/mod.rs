//! What a running Linux says in `/proc`.

mod kallsyms;
mod maps;
mod modules;

pub use kallsyms::kallsyms_text;
pub use maps::{Mapping, Maps, Process};
pub use modules::{Module, modules};

use crate::Error;

/// The most of a wrong line that an error shows, in characters.
const SHOWN: usize = 80;

/// The error for a line (counted from 0) of `file` that is not of the form `expected`.
fn line_error(file: &'static str, line: usize, text: &str, expected: &'static str) -> Error {
    Error::Line { file, line: line + 1, text: text.chars().take(SHOWN).collect(), expected }
}

/// A hexadecimal number, with or without `0x`.
fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
}
