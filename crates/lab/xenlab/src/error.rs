//! What can go wrong, each with the cause and, where there is one, the next step.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::Suite;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the Xen host or of what it is made of.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool of this machine is missing or failed, something took too long, or Ctrl-C.
    #[error(transparent)]
    Lab(#[from] lab::Error),
    /// A result could not be written.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// A file or folder of this machine could not be used.
    #[error("{}: {cause}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// Packages could not be had.
    #[error(
        "{what}: {cause}\nThe images are made of packages of Debian {suite}, from the mirrors of this machine's \
         apt: check that `apt-get update` works here, then run this again"
    )]
    Packages {
        /// What was attempted.
        what: String,
        /// Whose packages.
        suite: Suite,
        /// What apt said.
        cause: String,
    },
    /// A QEMU that plugins can not be loaded into.
    #[error(
        "{} says that it is {found:?}, and QEMU {needed} is needed, whose plugin interface is number 4: give the name alone, \
         qemu-system-x86_64, and Debian's is fetched where the system has another, or a path to a QEMU {needed} \
         (Debian trixie has it, and bookworm-backports)",
        program.display()
    )]
    Emulator {
        /// Which.
        program: PathBuf,
        /// What it says of itself.
        found: String,
        /// The version that is needed.
        needed: u32,
    },
    /// A package does not hold what it should, or a file is not what it should be.
    #[error("{what}: {cause}")]
    Content {
        /// The file or package.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The host did not boot.
    #[error("{what} did not come up: {cause}\nThe end of its console:\n{console}")]
    Boot {
        /// The host or a domain.
        what: String,
        /// Why that is believed.
        cause: String,
        /// The last lines of its console.
        console: String,
    },
    /// A command inside failed.
    #[error("{domain}: `{command}` failed with status {status}:\n{text}")]
    Failed {
        /// The domain.
        domain: String,
        /// The command.
        command: String,
        /// Its exit status.
        status: i32,
        /// All that it printed.
        text: String,
    },
    /// A command inside did not end, or its domain did.
    #[error(
        "{domain}: `{command}` {cause}; it printed:\n{text}\nThe end of the console:\n{console}"
    )]
    Lost {
        /// The domain.
        domain: String,
        /// The command.
        command: String,
        /// What happened to it.
        cause: String,
        /// What it had printed.
        text: String,
        /// The last lines of the domain's console.
        console: String,
    },
    /// Something inside did not get to where it should in time.
    #[error("{domain}: {what} took more than {} s:\n{text}", limit.as_secs())]
    Late {
        /// The domain.
        domain: String,
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What was seen last.
        text: String,
    },
    /// What a command inside printed is not what it should be.
    #[error("{what}: {cause}; it was: {text}")]
    Parse {
        /// Whose output.
        what: String,
        /// What is wrong with it.
        cause: String,
        /// The output.
        text: String,
    },
    /// A program of this workspace is missing.
    #[error("{0} is not built: run `make build`, or say where it is")]
    NotBuilt(&'static str),
    /// One of the others, with what a daemon inside had printed.
    #[error("{cause}\nThe backend printed:\n{log}")]
    Explained {
        /// The other.
        #[source]
        cause: Box<Error>,
        /// The daemon's output.
        log: String,
    },
    /// All places for domains that can be talked to are taken.
    #[error("at most {0} domains at once; destroy one first")]
    TooManyDomains(usize),
}

impl Error {
    /// Whether somebody asked for the end.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Lab(lab::Error::Interrupted))
    }

    /// Whether a tool of this machine is missing.
    #[must_use]
    pub fn is_missing_tool(&self) -> bool {
        matches!(self, Self::Lab(lab::Error::MissingTool { .. }))
    }

    /// Wraps a system error with the path that it is about; for `map_err`.
    pub(crate) fn path<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |cause| Self::Path { path, cause: cause.into() }
    }

    pub(crate) fn content(what: impl Into<String>, cause: &(impl ToString + ?Sized)) -> Self {
        Self::Content { what: what.into(), cause: cause.to_string() }
    }
}
