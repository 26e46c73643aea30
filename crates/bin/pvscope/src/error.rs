//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why a command did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lab.
    #[error(transparent)]
    Lab(#[from] xenlab::Error),
    /// A tool or a process.
    #[error(transparent)]
    Tool(#[from] lab::Error),
    /// A result's file.
    #[error(transparent)]
    Result(#[from] scope_result::Error),
    /// Symbols of an image.
    #[error("{}: {cause}", path.display())]
    Symbols {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: scope_symbols::Error,
    },
    /// A file.
    #[error("{}: {cause}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// QEMU ended, or did not get there in time.
    #[error("{what}{said}")]
    Machine {
        /// What did not happen.
        what: String,
        /// What QEMU and the machine said last.
        said: String,
    },
    /// A program of this project that was not built.
    #[error("{0} is not there: `cargo build --release --workspace` makes it")]
    NotBuilt(String),
    /// Something that was asked for.
    #[error("{0}")]
    Usage(String),
}

/// What most functions here answer.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes one of a file's error.
    pub fn path(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Path { path, cause }
    }

    /// Whether it is Ctrl-C.
    pub fn is_interrupt(&self) -> bool {
        match self {
            Self::Lab(error) => error.is_interrupt(),
            Self::Tool(error) => matches!(error, lab::Error::Interrupted),
            _ => false,
        }
    }
}
