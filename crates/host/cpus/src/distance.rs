//! How far CPUs are from each other.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{CpuList, bind, bound};

/// Round trips of a batch.
const TRIPS: u32 = 250;
/// Batches of a measurement. The first one warms up.
const BATCHES: u32 = 16;
/// Longest measurement of two CPUs: others may use them.
const LIMIT: Duration = Duration::from_millis(50);
/// How often a line is polled before the clock is read again.
const SPINS: u32 = 4096;
/// Two CPUs with a shorter way than this, in nanoseconds, are neighbours: threads of one core, whose caches they share.
const NEIGHBOURS: f64 = 40.0;
/// Most CPUs whose distance from the first one is measured.
const OTHERS: usize = 15;

/// Nanoseconds that a cache line takes from the first CPU of a process to its others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distances {
    /// To the nearest one.
    pub shortest: f64,
    /// To the farthest one.
    pub longest: f64,
}

impl fmt::Display for Distances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shortest, longest } = self;
        match longest - shortest < 1.0 {
            true => write!(f, "{shortest:.0} ns"),
            false => write!(f, "{shortest:.0} to {longest:.0} ns"),
        }
    }
}

/// Nanoseconds that a cache line takes from one CPU to the other: the median of some batches of round trips. None if other threads
/// kept these CPUs for too long.
///
/// # Errors
/// The process may not use one of them, or there are no more threads.
pub fn distance(one: usize, other: usize) -> io::Result<Option<f64>> {
    let (line, end) = (PaddedNumber(AtomicU32::new(0)), Instant::now() + LIMIT);
    let on = |cpu| bind(&CpuList::from_iter([cpu]));
    let there = || -> io::Result<()> {
        on(one)?;
        let mut turns = 0..2 * TRIPS * BATCHES;
        turns.all(|turn| turn % 2 == 0 || line.pass(turn, end));
        Ok(())
    };
    let here = || -> io::Result<Vec<f64>> {
        on(other)?;
        let mut times = Vec::new();
        for batch in 0..BATCHES {
            let began = Instant::now();
            let mut trips = (batch * TRIPS..(batch + 1) * TRIPS).map(|trip| 2 * trip);
            if !trips.all(|turn| line.pass(turn, end)) {
                break;
            }
            times.push(began.elapsed().as_nanos() as f64 / f64::from(2 * TRIPS));
        }
        Ok(times)
    };
    let panicked = |_| io::Error::other("a thread panicked");
    let times = std::thread::scope(|scope| {
        let there = std::thread::Builder::new().spawn_scoped(scope, there)?;
        let here = std::thread::Builder::new().spawn_scoped(scope, here)?;
        there.join().map_err(panicked)??;
        here.join().map_err(panicked)?
    });
    let mut times = times?;
    if times.len() > 1 {
        times.remove(0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied())
}

/// The distances between the calling thread's CPUs; none if it has only one, or they are busy.
#[must_use]
pub fn distances() -> Option<Distances> {
    let cpus = bound().ok()?;
    let first = cpus.iter().next()?;
    let others = cpus.iter().skip(1).take(OTHERS);
    let all: Vec<_> = others.filter_map(|cpu| distance(first, cpu).ok().flatten()).collect();
    let shortest = all.iter().copied().min_by(f64::total_cmp)?;
    let longest = all.iter().copied().max_by(f64::total_cmp)?;
    Some(Distances { shortest, longest })
}

/// Whether CPUs at this distance are neighbours.
#[must_use]
pub fn are_neighbours(nanoseconds: f64) -> bool {
    nanoseconds < NEIGHBOURS
}

/// A number on its own cache lines.
#[repr(align(128))]
struct PaddedNumber(AtomicU32);

impl PaddedNumber {
    /// Waits for `turn`, and sets the next one. Returns false if it has not come by `end`.
    fn pass(&self, turn: u32, end: Instant) -> bool {
        let mut spins = 0;
        while self.0.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
            spins += 1;
            if spins % SPINS == 0 && Instant::now() >= end {
                return false;
            }
        }
        self.0.store(turn + 1, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_some_time_from_one_cpu_to_another() {
        let cpus: Vec<_> = bound().unwrap().iter().collect();
        let [one, .., other] = cpus[..] else { return };
        // Whoever keeps these CPUs busy may prevent it, but not for longer than the limit.
        if let Some(nanoseconds) = distance(one, other).unwrap() {
            assert!(nanoseconds > 1.0, "{nanoseconds}");
        }
    }

    #[test]
    fn distances_that_are_equal_are_one() {
        let text = |shortest, longest| Distances { shortest, longest }.to_string();
        assert_eq!([text(59.2, 59.2), text(30.0, 121.4)], ["59 ns", "30 to 121 ns"]);
    }

    #[test]
    fn one_cpu_has_no_distance_and_a_missing_one_is_an_error() {
        let alone = std::thread::spawn(|| {
            bind(&bound().unwrap().iter().take(1).collect()).unwrap();
            distances()
        });
        assert_eq!(alone.join().unwrap(), None);
        assert!(distance(0, 1023).is_err());
    }
}
