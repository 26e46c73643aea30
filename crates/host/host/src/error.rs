//! Errors, each with its cause and, where there is one, the next step.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of an experiment's tools or environment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller may not make namespaces.
    #[error(
        "not root: network namespaces need CAP_NET_ADMIN and CAP_SYS_ADMIN; run this with sudo"
    )]
    NotRoot,
    /// A program that is needed is not installed.
    #[error(
        "{tool} not found: `make deps-demo` installs what the demo needs, `make deps` all that tests and labs need"
    )]
    MissingTool {
        /// The program.
        tool: String,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}): {message}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// Its error output.
        message: String,
    },
    /// A time limit passed.
    #[error("{what} did not finish within {} s", limit.as_secs_f64())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// SIGINT, SIGTERM or SIGHUP arrived.
    #[error("interrupted")]
    Interrupted,
    /// A program's output or a kernel file was not what was expected.
    #[error("cannot understand {what}: {cause}")]
    Parse {
        /// The program or file.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A traffic tool reports that its run failed.
    #[error("iperf3 to {to}: {message}")]
    Iperf {
        /// The server's address.
        to: String,
        /// The tool's message.
        message: String,
    },
    /// Other bytes arrived than were sent.
    #[error(
        "transfer corrupted: sent {sent_bytes} bytes with SHA-256 {sent}, received {received_bytes} with {received}"
    )]
    Corrupted {
        /// How many bytes were sent.
        sent_bytes: u64,
        /// Their digest, in hexadecimal.
        sent: String,
        /// How many bytes arrived.
        received_bytes: u64,
        /// Their digest, in hexadecimal.
        received: String,
    },
    /// A measured process has ended.
    #[error("process {pid} has ended; its log may say why")]
    Gone {
        /// Its process id.
        pid: u32,
    },
    /// A system call failed.
    #[error("{what}: {cause}")]
    Io {
        /// What was attempted.
        what: String,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

impl Error {
    /// Adds what was attempted to a system error; for `map_err`.
    pub fn io<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |cause| Self::Io { what, cause: cause.into() }
    }

    /// The output of a program, or a file, is not what was expected.
    pub fn parse(what: impl Into<String>, cause: &(impl ToString + ?Sized)) -> Self {
        Self::Parse { what: what.into(), cause: cause.to_string() }
    }
}

/// The exit code after Ctrl-C, as in a shell.
const INTERRUPTED: u8 = 130;

/// The exit code of `program`: its own, or that of an error, which is printed to standard error.
///
/// After Ctrl-C it is 130. Nothing is left running: all values were dropped, and their resources with them.
pub fn exit_code<E: Display>(
    program: &str,
    outcome: std::result::Result<ExitCode, E>,
    is_interrupt: impl FnOnce(&E) -> bool,
) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(error) if is_interrupt(&error) => {
            eprintln!("{program}: interrupted; nothing is left running");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn an_interrupt_has_its_own_code() {
        let code = |outcome| {
            exit_code("test", outcome, |error: &Error| matches!(error, Error::Interrupted))
        };
        assert_eq!(code(Ok(ExitCode::from(7))), ExitCode::from(7));
        assert_eq!(code(Err(Error::Interrupted)), ExitCode::from(INTERRUPTED));
        let other = Error::MissingTool { tool: "tool".to_owned() };
        assert_eq!(code(Err(other)), ExitCode::FAILURE);
    }
}
