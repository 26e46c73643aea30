//! What the demo and the benchmarks stand on: two endpoints, joined by pvnet or by the kernel,
//! and what is measured between them.
//!
//! ```text
//!            Endpoint ── Testbed:    guest, daemon, guest ── Endpoint
//!   Subject <
//!            Endpoint ── VethBridge: veth, bridge, veth   ── Endpoint
//! ```
//!
//! A [`Case`] is a transfer, [`measure()`] runs one over a [`Subject`] and says what it cost.

mod case;
mod daemon;
mod measure;
mod pvnet;
mod subject;

pub use case::{CASES, Case, find_pace};
pub use daemon::{Daemon, ports, program};
pub use measure::{Measured, measure, split};
pub use pvnet::{Setup, Testbed};
pub use subject::{Counts, Subject};

/// Why a demo or a benchmark ended early.
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
        /// Which.
        who: String,
        /// How.
        status: std::process::ExitStatus,
        /// Its last words.
        said: String,
    },
    /// The testbed did not get to where it should.
    #[error("{what} took more than {} s: {said}", limit.as_secs())]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        limit: std::time::Duration,
        /// The last words of its processes.
        said: String,
    },
    /// A file or folder could not be made.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The daemon did not say how it is.
    #[error("{0}")]
    Status(String),
    /// What was to be shown is not so.
    #[error("{0}")]
    Refuted(String),
    /// The result could not be printed.
    #[error("standard output: {0}")]
    Print(std::io::Error),
}

impl Error {
    /// Whether somebody asked for the end.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Lab(lab::Error::Interrupted))
    }
}

/// The folder's result.
pub type Result<T> = std::result::Result<T, Error>;
