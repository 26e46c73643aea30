//! Errors of pvscope.

use std::io;
use std::path::PathBuf;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the lab.
    #[error(transparent)]
    Lab(#[from] xenlab::Error),
    /// An error of a tool or a process.
    #[error(transparent)]
    Tool(#[from] lab::Error),
    /// An error of a recording's file.
    #[error(transparent)]
    Result(#[from] scope_result::Error),
    /// A result that could not be written.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// The symbols of an image could not be read.
    #[error("{}: {cause}", path.display())]
    Symbols {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: scope_symbols::Error,
    },
    /// A file could not be used.
    #[error("{}: {cause}", path.display())]
    Path {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// QEMU ended or exceeded a time limit.
    #[error("{what}{said}")]
    Machine {
        /// What failed.
        what: String,
        /// The last output of QEMU and the machine.
        said: String,
    },
    /// A program of this project is not built.
    #[error("{0} is not built: run `cargo build --release --workspace`")]
    NotBuilt(String),
    /// Wrong arguments.
    #[error("{0}")]
    Usage(String),
}

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Converts an I/O error of a file.
    pub fn path(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Path { path, cause }
    }

    /// Whether Ctrl-C caused it.
    pub fn is_interrupt(&self) -> bool {
        match self {
            Self::Lab(error) => error.is_interrupt(),
            Self::Tool(error) => matches!(error, lab::Error::Interrupted),
            _ => false,
        }
    }
}
