//! Samples in which no process lost its CPU.

use std::time::{Duration, Instant};

use crate::error::Result;

/// A sample counts only if no polling process waited for its CPU for a larger share of it than this.
const LOST_MAX: f64 = 0.02;
/// How often a sample that does not count is taken again.
const TRIES: u32 = 4;

/// What a sample came to.
pub struct Sample<T> {
    /// What was measured; none if every try was disturbed.
    pub value: Option<T>,
    /// Samples that were thrown away.
    pub discarded: u32,
}

/// A process that polls.
#[derive(Clone, Copy)]
pub struct Polling {
    pub pid: u32,
    /// How the names of the threads that poll begin. Others may wait for the CPU that they have.
    pub threads: &'static str,
}

impl<T> Sample<T> {
    /// Takes a sample until none of the processes was disturbed, or gives up.
    pub fn take(processes: [Polling; 2], mut measure: impl FnMut() -> Result<T>) -> Result<Self> {
        for discarded in 0..TRIES {
            lab::Interrupt::check()?;
            let (began, before) = (Instant::now(), waited(processes)?);
            let value = measure()?;
            let (wall, after) = (began.elapsed(), waited(processes)?);
            let lost =
                before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before));
            if lost.max().unwrap_or_default() <= wall.mul_f64(LOST_MAX) {
                return Ok(Self { value: Some(value), discarded });
            }
        }
        Ok(Self { value: None, discarded: TRIES })
    }
}

/// For how long each process could have run so far, but others did.
fn waited(processes: [Polling; 2]) -> Result<[Duration; 2]> {
    let of = |process: Polling| -> Result<Duration> {
        let threads = lab::thread_times(process.pid)?;
        let polling = threads.iter().filter(|thread| thread.name.starts_with(process.threads));
        Ok(polling.map(|thread| thread.waited).sum())
    };
    Ok([of(processes[0])?, of(processes[1])?])
}
