//! How far two CPUs are from each other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::bench::pps::Cpus;
use crate::error::Result;

/// Round trips of a cache line per measurement, after as many that warm up.
const TRIPS: u32 = 2000;
/// Two CPUs with a shorter way than this are neighbours: threads of one core, whose caches they share.
const NEIGHBOURS: f64 = 40.0;

/// Nanoseconds that a cache line takes from one CPU to the other. The calling thread is on the second CPU.
pub fn between(cpus: &Cpus) -> Result<f64> {
    let line = Line(AtomicU32::new(0));
    let count = 2 * TRIPS;
    let nanoseconds = std::thread::scope(|scope| {
        let there = scope.spawn(|| -> Result<()> {
            cpus.enter(0)?;
            (0..count).for_each(|n| line.pass(2 * n + 1));
            Ok(())
        });
        cpus.enter(1)?;
        let mut began = Instant::now();
        for n in 0..count {
            if n == TRIPS {
                began = Instant::now();
            }
            line.pass(2 * n);
        }
        let took = began.elapsed();
        there.join().unwrap_or(Ok(()))?;
        Ok(took.as_nanos() as f64)
    });
    nanoseconds.map(|nanoseconds: f64| nanoseconds / f64::from(2 * TRIPS))
}

/// Whether CPUs at this distance are neighbours.
pub fn are_neighbours(nanoseconds: f64) -> bool {
    nanoseconds < NEIGHBOURS
}

/// A number on its own cache lines.
#[repr(align(128))]
struct Line(AtomicU32);

impl Line {
    /// Waits for `turn`, and sets the next one.
    fn pass(&self, turn: u32) {
        while self.0.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
        }
        self.0.store(turn + 1, Ordering::Release);
    }
}
