//! The daemon is killed in the middle of a file, and started again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::{Interrupt, RunningTransfer, Transfer};

use crate::error::Result;
use crate::testbed::{Ending, Subject as _, Testbed};

/// How often the bytes that have arrived are read.
const SAMPLE: Duration = Duration::from_millis(10);

/// The result.
pub struct Kill {
    /// The transfer of the file, which arrived unchanged.
    pub transfer: Transfer,
    /// Seconds since the start, and bytes that had arrived by then.
    pub arrived: Vec<(f64, f64)>,
    /// When the daemon was killed, in seconds since the start.
    pub at: f64,
}

/// Sends a file from one guest to the other, and kills the daemon once half of it has arrived.
pub fn kill(testbed: &mut Testbed, bytes: u64, step: impl Fn(&str)) -> Result<Kill> {
    step("send a file");
    let transfer = {
        let (from, to) = (testbed.left(), testbed.right());
        RunningTransfer::start(&from.namespace, &to.namespace, to.ipv4, bytes, 1)?
    };
    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    let done = AtomicBool::new(false);
    let (at, arrived) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut arrived = Vec::new();
            while !done.load(Ordering::Relaxed) {
                arrived.push((seconds(), transfer.bytes() as f64));
                std::thread::sleep(SAMPLE);
            }
            arrived
        });
        let killed = in_the_middle(testbed, &transfer, bytes, seconds, &step);
        done.store(true, Ordering::Relaxed);
        let arrived = sampler.join().unwrap_or_default();
        killed.map(|at| (at, arrived))
    })?;
    Ok(Kill { transfer: transfer.finish()?, arrived, at })
}

/// Waits for half of the file, kills and restarts the daemon, and waits for the file's end. Returns when the daemon was killed, in seconds.
fn in_the_middle(
    testbed: &mut Testbed,
    transfer: &RunningTransfer,
    bytes: u64,
    seconds: impl Fn() -> f64,
    step: impl Fn(&str),
) -> Result<f64> {
    while transfer.bytes() < bytes / 2 && !transfer.is_over() {
        Interrupt::sleep(SAMPLE)?;
    }
    let at = seconds();
    step("kill -9, and start pvnet again");
    testbed.restart_daemon(Ending::Killed)?;
    step("the rest of the file");
    while !transfer.is_over() {
        Interrupt::sleep(SAMPLE)?;
    }
    Ok(at)
}
