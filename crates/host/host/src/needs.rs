//! What a test needs of its machine, and what happens without it.

use std::env;
use std::fmt::Display;

use crate::tools::preflight;

/// With the value `all`, as in CI, a test that lacks something fails instead of being skipped.
const VARIABLE: &str = "PVNET_TESTS";

/// Whether a test that makes namespaces and uses these programs can run. If not, it returns at once: it is skipped.
///
/// # Panics
/// As [`needed`].
#[must_use]
#[track_caller]
pub fn able(programs: &[&str]) -> bool {
    needed(preflight(programs)).is_some()
}

/// Returns from a test that makes namespaces and uses these programs, where it cannot run.
///
/// # Panics
/// As [`needed`](crate::needed).
#[macro_export]
macro_rules! requires {
    ($($program:expr),*) => {
        if !$crate::able(&[$($program),*]) {
            return;
        }
    };
}

/// What a test needs, or none if it is missing. The test then returns at once: it is skipped, and standard error says
/// why.
///
/// # Panics
/// It is missing, and the environment has `PVNET_TESTS=all`: no test may be skipped.
#[must_use]
#[track_caller]
pub fn needed<T, E: Display>(found: Result<T, E>) -> Option<T> {
    found_or_skipped(found, env::var_os(VARIABLE).is_some_and(|value| value == "all"))
}

#[track_caller]
fn found_or_skipped<T, E: Display>(found: Result<T, E>, all: bool) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(why) if all => panic!("{why} ({VARIABLE}=all: no test may be skipped)"),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::command;

    #[test]
    fn a_test_without_its_program_is_skipped() {
        assert!(found_or_skipped(command("no-such-program"), false).is_none());
        assert!(found_or_skipped(command("echo"), true).is_some());
    }

    #[test]
    #[should_panic(expected = "no-such-program not found")]
    fn a_test_without_its_program_fails_where_all_must_run() {
        found_or_skipped(command("no-such-program"), true);
    }
}
