//! Waiting for the backend.

use std::error::Error;
use std::time::{Duration, Instant};

/// What a step returns: a value, or what went wrong.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// How long the backend may take for anything.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until something is so, or fails saying that it is not.
pub fn wait_until(what: &str, mut so: impl FnMut() -> Outcome<bool>) -> Outcome {
    match so_within(TIMEOUT, &mut so)? {
        true => Ok(()),
        false => Err(format!("{what}: not within {} s", TIMEOUT.as_secs()).into()),
    }
}

/// Waits until something is so, for a while.
pub fn so_within(limit: Duration, mut so: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if so()? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
