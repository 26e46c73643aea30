//! Why an experiment ended early.

/// Why an experiment ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool, a namespace, a measurement, or Ctrl-C.
    #[error(transparent)]
    Lab(#[from] lab::Error),
    /// A result could not be written.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// A process of the testbed ended when it should not have.
    #[error("{who} ended ({status}): {said}")]
    Ended {
        /// The process.
        who: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its last output.
        said: String,
    },
    /// Something took too long.
    #[error("{what} took more than {} s: {said}", limit.as_secs())]
    Late {
        /// What took too long.
        what: String,
        /// The limit.
        limit: std::time::Duration,
        /// The last output of its processes.
        said: String,
    },
    /// A file or folder could not be made.
    #[error("{path}: {source}")]
    Path {
        /// The file or folder.
        path: std::path::PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The daemon does not answer, or a port is down.
    #[error("{0}")]
    Status(String),
    /// The experiment failed: something that it requires does not hold.
    #[error("{0}")]
    Failed(String),
    /// The result could not be printed.
    #[error("standard output: {0}")]
    Print(std::io::Error),
}

impl Error {
    /// Whether the user interrupted the experiment.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Lab(lab::Error::Interrupted))
    }
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;
