//! Exit codes.

use std::fmt::Display;
use std::process::ExitCode;

/// The exit code after Ctrl-C, as in a shell.
const INTERRUPTED: u8 = 130;

/// The exit code of `program`: its own, or that of an error, which is printed to standard error.
///
/// After Ctrl-C it is 130. Nothing is left running: all values were dropped, and their resources with them.
pub fn exit_code<E: Display>(
    program: &str,
    outcome: Result<ExitCode, E>,
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
