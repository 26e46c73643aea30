//! Ctrl-C and `kill` as a flag that waits check, so that the stack unwinds and resources are removed.

use crate::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How often a wait checks the flag.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn flag() -> &'static Arc<AtomicBool> {
    REQUESTED.get_or_init(Arc::default)
}

/// The process-wide stop request.
#[derive(Debug)]
pub struct Interrupt;

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP do not kill this process but make [`requested`](Self::requested) true.
    /// Ignored signals (`nohup`, a background job) stay ignored. Installing twice is harmless.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses a handler.
    pub fn install() -> Result<()> {
        for signal in Self::signals() {
            signal_hook::flag::register(signal, Arc::clone(flag()))
                .map_err(Error::io("cannot handle signals"))?;
        }
        Ok(())
    }

    /// SIGINT, SIGTERM and SIGHUP, without those that this process ignores.
    #[must_use]
    pub fn signals() -> Vec<i32> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
        signals.filter(|signal| !ignored(&status, *signal)).collect()
    }

    /// Requests a stop without a signal.
    pub fn request() {
        flag().store(true, Ordering::SeqCst);
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn requested() -> bool {
        flag().load(Ordering::SeqCst)
    }

    /// [`requested`](Self::requested) as an error, for `?`.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a stop was requested.
    pub fn check() -> Result<()> {
        if Self::requested() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps for `duration`, or until a stop is requested.
    ///
    /// # Errors
    /// [`Error::Interrupted`] in the second case.
    pub fn sleep(duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        loop {
            Self::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(SLICE));
        }
    }
}

/// Whether bit `signal - 1` of the mask `SigIgn` is set in a `/proc/PID/status`.
fn ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits_of_a_mask() {
        let nohup =
            "SigBlk:\t0000000000000003\nSigIgn:\t0000000000000001\nSigCgt:\t0000000043817efb\n";
        assert_eq!(
            [SIGHUP, SIGINT, SIGTERM].map(|signal| ignored(nohup, signal)),
            [true, false, false]
        );
        assert!(!ignored("", SIGHUP));
    }
}
