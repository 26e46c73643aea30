//! The parts that all benchmarks share.

use std::path::PathBuf;

use clap::Args;

use crate::testbed::Setup;

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

/// A pair in alternating order: reversed in odd rounds.
pub fn in_turn<T>(round: u32, pair: [T; 2]) -> [T; 2] {
    let [first, second] = pair;
    if round.is_multiple_of(2) { [first, second] } else { [second, first] }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_order_alternates() {
        let orders = [0, 1, 2].map(|round| super::in_turn(round, ["a", "b"]).concat());
        assert_eq!(orders, ["ab", "ba", "ab"]);
    }
}
