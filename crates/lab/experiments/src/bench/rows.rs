//! Collects samples, round by round, into rows.

use std::path::PathBuf;

use clap::Args;
use report::{Benchmark, CpuSplit, Row, Samples};

use crate::testbed::Setup;

/// Rows under measurement, in the order of their first values.
#[derive(Debug, Default)]
pub struct Rows(Vec<Measurement>);

#[derive(Debug)]
struct Measurement {
    name: String,
    unit: &'static str,
    samples: Samples,
    cpu: Vec<CpuSplit>,
}

impl Rows {
    /// Adds a value to the row `name`.
    pub fn push(&mut self, name: &str, unit: &'static str, value: f64) {
        self.row(name, unit).samples.push(value);
    }

    /// Adds a value and the split of processor time while it was measured.
    pub fn push_with_cpu(&mut self, name: &str, unit: &'static str, value: f64, cpu: CpuSplit) {
        let row = self.row(name, unit);
        row.samples.push(value);
        row.cpu.push(cpu);
    }

    fn row(&mut self, name: &str, unit: &'static str) -> &mut Measurement {
        let known = self.0.iter().position(|row| row.name == name);
        let index = known.unwrap_or_else(|| {
            let (name, samples, cpu) = (name.to_owned(), Samples::new(), Vec::new());
            self.0.push(Measurement { name, unit, samples, cpu });
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    /// The document: medians and ratios. A row `case/pvnet` is compared with the kernel's, and a
    /// row `case+addition` with `case`, if there is one.
    pub fn finish(self, bench: &str) -> Benchmark {
        let mut benchmark = Benchmark::new(bench);
        for Measurement { name, unit, samples, cpu } in self.0 {
            let Some(stats) = samples.stats() else { continue };
            let row = Row::new(name, unit, stats);
            benchmark.rows.push(match CpuSplit::mean(cpu) {
                Some(cpu) => row.with_cpu(cpu),
                None => row,
            });
        }
        let names: Vec<String> = benchmark.rows.iter().map(|row| row.name.clone()).collect();
        for name in names {
            if let Some(case) = name.strip_suffix("/pvnet") {
                benchmark.compare(&name, &format!("{case}/veth-bridge"));
            } else if let Some((case, _)) = name.split_once('+') {
                benchmark.compare(&name, case);
            }
        }
        benchmark
    }
}

/// Options of all benchmarks.
#[derive(Args)]
pub struct Common {
    /// The number of rounds; rows are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the rows to FILE as a page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How pvnet is set up, where a benchmark compares settings.
#[derive(Args)]
pub struct Settings {
    /// The most microseconds that the daemon and the guests poll [default: theirs].
    #[arg(long, value_name = "N")]
    pub poll_us: Option<u64>,
    /// The daemon's workers [default: the daemon's].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Queues of each guest, at most [default: the daemon's].
    #[arg(long, value_name = "N")]
    pub queues: Option<u32>,
    /// Lines for the daemon's configuration, after those of [daemon]: `low_latency = true`.
    #[arg(long, value_name = "TOML")]
    pub daemon: Vec<String>,
}

impl Settings {
    /// The setup of a testbed.
    pub fn setup(&self) -> Setup {
        let Self { poll_us, workers, queues, .. } = *self;
        let daemon = self.daemon.iter().map(|line| format!("{line}\n")).collect();
        Setup { poll_us, workers, queues, daemon, ..Setup::default() }
    }
}

/// The order in which a round measures: reversed in odd rounds.
pub fn in_turn<T>(round: u32, all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    if !round.is_multiple_of(2) {
        all.reverse();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_medians_and_ratios() {
        let mut rows = Rows::default();
        let cpu = |guest| CpuSplit { guest, driver: 1.0, hypervisor: 0.0, idle: 0.5 };
        for value in [3.0, 1.0, 2.0] {
            rows.push_with_cpu("tcp-1/pvnet", "Mb/s", value, cpu(value));
            rows.push("tcp-1/veth-bridge", "Mb/s", value * 2.0);
            rows.push("idle-cpu", "%", value);
            rows.push("idle-cpu+guard", "%", value * 3.0);
        }
        let benchmark = rows.finish("stream");
        let names: Vec<_> = benchmark.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["tcp-1/pvnet", "tcp-1/veth-bridge", "idle-cpu", "idle-cpu+guard"]);
        let row = benchmark.row("tcp-1/pvnet").unwrap();
        assert_eq!(
            (row.stats.median, row.stats.min, row.stats.max, row.stats.n),
            (2.0, 1.0, 3.0, 3)
        );
        assert_eq!(row.ratio.as_ref().map(|ratio| ratio.value), Some(0.5));
        assert_eq!(row.cpu, Some(cpu(2.0)));
        let ratios = benchmark.rows[1..].iter().map(|row| row.ratio.as_ref().map(|r| r.value));
        assert_eq!(ratios.collect::<Vec<_>>(), [None, None, Some(3.0)]);
        assert!(benchmark.rows[1..].iter().all(|row| row.cpu.is_none()));
    }

    #[test]
    fn the_order_alternates() {
        let orders = [0, 1, 2].map(|round| super::in_turn(round, ["a", "b"]).concat());
        assert_eq!(orders, ["ab", "ba", "ab"]);
    }
}
