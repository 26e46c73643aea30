//! Errors of images and texts.

use thiserror::Error;

/// What is wrong with an image or a text, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The image is compressed, or holds a compressed one.
    #[error("{what} is compressed ({form}); give it uncompressed: {remedy}")]
    Compressed {
        /// What was expected, in words.
        what: &'static str,
        /// How it is compressed.
        form: &'static str,
        /// The command that unpacks it.
        remedy: &'static str,
    },
    /// The headers are not valid.
    #[error("{what} cannot be read ({cause}); check that it is the file itself, and whole")]
    NotExecutable {
        /// What was expected, in words.
        what: &'static str,
        /// What the reader of ELF and PE headers said.
        cause: String,
    },
    /// The image has no consistent symbol table.
    #[error("{what} has no symbol table of a known form, or it is cut off; {remedy}")]
    NoSymbols {
        /// What was expected, in words.
        what: &'static str,
        /// Where names can be had instead.
        remedy: &'static str,
    },
    /// The names would take far more memory than the file, which no linker's tables do.
    #[error(
        "the names in {module} expand to more than {limit} bytes; the file is damaged or hostile"
    )]
    Overgrown {
        /// The module that the names are of.
        module: String,
        /// The most that was allowed, in bytes.
        limit: usize,
    },
    /// The kernel hid its addresses from the reader.
    #[error(
        "the kernel hides its addresses (all are 0 in /proc/kallsyms and /proc/modules): read them as root after `sysctl kernel.kptr_restrict=0`"
    )]
    Restricted,
    /// A line that no kernel writes.
    #[error(
        "{file}, line {line}: {text:?} is not `{expected}`; give the file as the kernel writes it"
    )]
    Line {
        /// Which file the text was said to be.
        file: &'static str,
        /// The line, from 1.
        line: usize,
        /// How the line begins.
        text: String,
        /// The form of a line.
        expected: &'static str,
    },
    /// A text without a single line.
    #[error("{file} is empty; read it on the running system, as root")]
    Empty {
        /// Which file the text was said to be.
        file: &'static str,
    },
}
