//! Errors, each with its cause and, where there is one, the next step.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the Xen host, or of the files and tools it needs.
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
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// Packages could not be fetched.
    #[error(
        "{what}: {cause}\nThe images are made from packages of Debian {suite}, from the mirrors of this machine's \
         apt: check that `apt-get update` works here, then run this again"
    )]
    Packages {
        /// What was attempted.
        what: String,
        /// The release of the packages.
        suite: &'static str,
        /// What apt said.
        cause: String,
    },
    /// A QEMU that cannot load the plugin.
    #[error(
        "{} is {found:?}, but pvscope needs QEMU {needed}, which has its plugin interface. If you give qemu-system-x86_64 \
         without a folder, Debian's QEMU {needed} is fetched unless it is installed. Or give the path of a QEMU {needed} (Debian \
         trixie and bookworm-backports have it)",
        program.display()
    )]
    Emulator {
        /// The program.
        program: PathBuf,
        /// The version that it prints.
        found: String,
        /// The version that is needed.
        needed: u32,
    },
    /// A package or a file has unexpected content.
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
        /// How the failure was noticed.
        cause: String,
        /// The last lines of its console.
        console: String,
    },
    /// A command in a domain failed.
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
    /// A command in a domain did not end, or the domain ended.
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
    /// A condition in a domain was not met in time.
    #[error("{domain}: {what} took more than {} s:\n{text}", limit.as_secs())]
    Late {
        /// The domain.
        domain: String,
        /// What was waited for.
        what: String,
        /// The time limit.
        limit: Duration,
        /// The last output.
        text: String,
    },
    /// A command in a domain printed something unexpected.
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
    #[error("{0} is not built: run `make build`, or give its path")]
    NotBuilt(&'static str),
    /// Another error, with what the daemon in the domain had printed.
    #[error("{cause}\nThe backend printed:\n{log}")]
    Explained {
        /// The other error.
        #[source]
        cause: Box<Error>,
        /// The daemon's output.
        log: String,
    },
    /// All ports for guests' agents are in use.
    #[error("at most {0} domains at once; destroy one first")]
    TooManyDomains(usize),
}

impl Error {
    /// Whether the cause is Ctrl-C or a signal.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Lab(lab::Error::Interrupted))
    }

    /// Whether a tool of this machine is missing.
    #[must_use]
    pub fn is_missing_tool(&self) -> bool {
        matches!(self, Self::Lab(lab::Error::MissingTool { .. }))
    }

    /// Adds the path to a system error; for `map_err`.
    pub(crate) fn path<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |cause| Self::Path { path, cause: cause.into() }
    }

    /// The output of a command cannot be parsed.
    pub fn parse(what: &str, cause: &(impl ToString + ?Sized), text: impl Into<String>) -> Self {
        Self::Parse { what: what.to_owned(), cause: cause.to_string(), text: text.into() }
    }

    /// Parses JSON that a command printed.
    ///
    /// # Errors
    /// The text is something else; the error has it.
    pub fn json<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
        serde_json::from_str(text).map_err(|cause| Self::parse(what, &cause, text))
    }

    pub(crate) fn content(what: impl Into<String>, cause: &(impl ToString + ?Sized)) -> Self {
        Self::Content { what: what.into(), cause: cause.to_string() }
    }
}

/// An unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} {name}: choose one of {known}")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: String,
}

impl UnknownName {
    /// `name` is none of the `known` names of this kind of thing.
    pub(crate) fn new<T: ToString>(kind: &'static str, name: &str, known: &[T]) -> Self {
        let known: Vec<_> = known.iter().map(ToString::to_string).collect();
        Self { kind, name: name.to_owned(), known: known.join(", ") }
    }
}
