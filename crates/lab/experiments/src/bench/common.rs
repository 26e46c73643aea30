//! The parts that all benchmarks share.

use std::path::PathBuf;

use clap::Args;

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
