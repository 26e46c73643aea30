//! Waiting for the backend.

use std::error::Error;
use std::time::{Duration, Instant};

/// What a step returns: a value, or what went wrong.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// How long the backend may take for a step.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until a condition holds, or fails with `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    match holds_within(TIMEOUT, &mut condition)? {
        true => Ok(()),
        false => Err(format!("{what}: not within {} s", TIMEOUT.as_secs()).into()),
    }
}

/// Waits until a condition holds, for `limit` at most. Returns whether it does.
pub fn holds_within(
    limit: Duration,
    mut condition: impl FnMut() -> Outcome<bool>,
) -> Outcome<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if condition()? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
