//! What all benchmarks share.

use std::path::PathBuf;

use clap::Args;

/// Options of all benchmarks.
#[derive(Args)]
pub struct Common {
    /// How often everything is measured; rows are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Where to write the rows for programs.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to write the rows as a page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// A pair in alternating order: as it is in even rounds, reversed in odd ones.
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
