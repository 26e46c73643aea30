//! Texts in `/proc` of a running Linux.

mod kallsyms;
mod maps;
mod modules;

pub use kallsyms::kallsyms_text;
pub use maps::{Mapping, Maps, Process};
pub use modules::{Module, modules};

use crate::Error;

/// The most characters of a wrong line in an error.
const SHOWN: usize = 80;

/// The error for a line of `file` (counted from 0) that does not have the form `expected`.
fn line_error(file: &'static str, line: usize, text: &str, expected: &'static str) -> Error {
    Error::Line { file, line: line + 1, text: text.chars().take(SHOWN).collect(), expected }
}

/// A hexadecimal number, with or without `0x`.
fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
}
