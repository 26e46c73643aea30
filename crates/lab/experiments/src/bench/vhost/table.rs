//! The rows of the comparison: samples in which no process lost its CPU, by case and subject, and the ratios within each round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use report::{Benchmark, Row, Samples, Table};

use crate::error::Result;

/// Samples of all rounds, in the order of their first values.
#[derive(Default)]
pub struct Rounds {
    /// The present round.
    pub round: u32,
    /// Case, unit, subject, and the value of each round that has one.
    rows: Vec<(String, &'static str, &'static str, BTreeMap<u32, f64>)>,
}

impl Rounds {
    /// Adds a value of the present round.
    pub fn push(&mut self, case: &str, unit: &'static str, subject: &'static str, value: f64) {
        let known = self.rows.iter().position(|row| row.0 == case && row.2 == subject);
        let index = known.unwrap_or_else(|| {
            self.rows.push((case.to_owned(), unit, subject, BTreeMap::new()));
            self.rows.len() - 1
        });
        self.rows[index].3.insert(self.round, value);
    }

    /// The document: a row `case/subject` for each, and `case ÷ rival/subject` with the ratios of the rounds in which
    /// both have a value.
    pub fn finish(&self, bench: &str, ratios: &[(&str, &str)]) -> Benchmark {
        let mut benchmark = Benchmark::new(bench);
        let mut add = |name: String, unit: &str, values: &mut dyn Iterator<Item = f64>| {
            if let Some(stats) = values.collect::<Samples>().stats() {
                benchmark.rows.push(Row::new(name, unit, stats));
            }
        };
        for (case, unit, subject, values) in &self.rows {
            add(format!("{case}/{subject}"), unit, &mut values.values().copied());
            for (_, rival) in ratios.iter().filter(|(ours, _)| ours == subject) {
                let theirs = self.rows.iter().find(|row| row.0 == *case && row.2 == *rival);
                let Some((_, _, _, theirs)) = theirs else { continue };
                let mut both = values.iter().filter_map(|(round, value)| {
                    theirs.get(round).filter(|other| **other > 0.0).map(|other| value / other)
                });
                add(format!("{case} ÷ {rival}/{subject}"), "×", &mut both);
            }
        }
        benchmark
    }
}

/// A line for each case and a column for each subject: median (minimum–maximum).
pub fn table(benchmark: &Benchmark) -> Table {
    let (mut cases, mut subjects) = (Vec::new(), Vec::new());
    for row in &benchmark.rows {
        let Some((case, subject)) = row.name.split_once('/') else { continue };
        if !cases.contains(&(case, &row.unit)) {
            cases.push((case, &row.unit));
        }
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    let mut table = Table::new().left("case").left("unit");
    for subject in &subjects {
        table = table.right(*subject);
    }
    for (case, unit) in cases {
        let cell = |subject: &&str| {
            let row = benchmark.row(&format!("{case}/{subject}"));
            row.map_or(String::new(), |row| row.stats.spread())
        };
        let cells = [case.to_owned(), unit.clone()];
        table.row(cells.into_iter().chain(subjects.iter().map(cell)));
    }
    table
}

/// A sample counts only if each polling process waited for its CPU for at most this share of the time.
const LOST_MAX: f64 = 0.02;
/// How often a sample that does not count is taken again.
const TRIES: u32 = 4;

/// The result of a sample.
pub struct Sample<T> {
    /// The measured value; `None` if every try was disturbed.
    pub value: Option<T>,
    /// How many tries were thrown away.
    pub discarded: u32,
}

/// A process that polls.
#[derive(Clone, Copy)]
pub struct Polling {
    pub pid: u32,
    /// The prefix of the polling threads' names. Other threads may wait for their CPU.
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

/// How long each process has waited for a CPU so far, while it could have run.
fn waited(processes: [Polling; 2]) -> Result<[Duration; 2]> {
    let of = |process: Polling| -> Result<Duration> {
        let threads = lab::thread_times(process.pid)?;
        let polling = threads.iter().filter(|thread| thread.name.starts_with(process.threads));
        Ok(polling.map(|thread| thread.waited).sum())
    };
    Ok([of(processes[0])?, of(processes[1])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut rounds = Rounds::default();
        for (round, ours, theirs) in [(0, 2.0, 1.0), (1, 9.0, 3.0), (2, 8.0, 2.0)] {
            rounds.round = round;
            rounds.push("64 B", "Mpps", "ours", ours);
            if round > 0 {
                rounds.push("64 B", "Mpps", "theirs", theirs);
            }
        }
        let benchmark = rounds.finish("vhost", &[("ours", "theirs"), ("ours", "absent")]);
        let names: Vec<_> = benchmark.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["64 B/ours", "64 B ÷ theirs/ours", "64 B/theirs"]);
        let ratio = benchmark.rows[1].stats;
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.n), (3.5, 3.0, 4.0, 2));
        assert!(table(&benchmark).render(false).contains("3.5"));
    }
}
