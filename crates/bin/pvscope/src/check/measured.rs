//! What a window took, per frame.

use std::collections::BTreeMap;

use scope_model::{Costs, Counters};
use scope_result::{Function, Mode, Recording};

/// Functions below this share of a window's instructions are left out.
const SHARE: f64 = 0.005;

/// Counts of one window, as medians over its repetitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes of a frame.
    pub bytes: u64,
    /// Instructions per frame, by module: `pvnet`, `kernel`, `rest`.
    pub instructions: BTreeMap<String, f64>,
    /// Misses of caches and TLBs and model cycles, per frame.
    pub misses: BTreeMap<String, f64>,
    /// Hypercalls, notifications and what else the bench counts, for all frames.
    pub counts: BTreeMap<String, u64>,
    /// Instructions per frame of the functions with the most, by `MODULE FUNCTION`.
    pub functions: BTreeMap<String, f64>,
}

/// The module of code for the gate.
fn module(mode: Mode, function: &Function) -> &'static str {
    match mode {
        Mode::User if function.module == "pvnet" => "pvnet",
        Mode::User => "rest",
        Mode::Kernel | Mode::Hypervisor => "kernel",
    }
}

impl Measured {
    /// The counts of one recording, of so many frames.
    pub fn new(
        recording: &Recording,
        frames: u64,
        bytes: u64,
        counts: BTreeMap<String, u64>,
    ) -> Self {
        let per_frame = |count: u64| count as f64 / frames.max(1) as f64;
        let unknown = Function::default();
        let mut total = Counters::default();
        let mut instructions: BTreeMap<String, f64> =
            ["pvnet", "kernel", "rest"].map(|name| (name.to_owned(), 0.0)).into();
        let mut functions = BTreeMap::<String, f64>::new();
        for block in &recording.blocks {
            let counters = block.total();
            let function = recording.functions.get(block.function as usize).unwrap_or(&unknown);
            let part = module(block.mode, function);
            let executed = per_frame(counters.instructions);
            *instructions.entry(part.to_owned()).or_default() += executed;
            let name = if function.name.is_empty() { "unknown" } else { &function.name };
            let name = format!("{} {name}", if part == "rest" { &*function.module } else { part });
            *functions.entry(name).or_default() += executed;
            total += &counters;
        }
        let least = per_frame(total.instructions) * SHARE;
        functions.retain(|_, executed| *executed >= least);
        let misses = [
            ("l1", per_frame(total.l1i_misses + total.read_misses + total.write_misses)),
            ("dtlb", per_frame(total.dtlb_misses)),
            ("cycles", Costs::default().cycles(&total) / frames.max(1) as f64),
        ];
        let misses = misses.map(|(name, count)| (name.to_owned(), count)).into();
        Self { bytes: bytes / frames.max(1), instructions, misses, counts, functions }
    }

    /// The medians of repetitions. The counts are those of the first: they are the same in all.
    pub fn median(all: &[Self]) -> Self {
        let of = |field: fn(&Self) -> &BTreeMap<String, f64>| {
            let names = all.iter().flat_map(|one| field(one).keys().cloned());
            let names: std::collections::BTreeSet<String> = names.collect();
            let median = |name: String| {
                let values = all.iter().map(|one| field(one).get(&name).copied().unwrap_or(0.0));
                let mut values: Vec<f64> = values.collect();
                values.sort_by(f64::total_cmp);
                (name, values[values.len() / 2])
            };
            names.into_iter().map(median).collect()
        };
        let first = all.first().cloned().unwrap_or_default();
        Self {
            instructions: of(|one| &one.instructions),
            misses: of(|one| &one.misses),
            functions: of(|one| &one.functions),
            ..first
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one() {
        let one = |value: f64| Measured {
            instructions: [("pvnet".to_owned(), value)].into(),
            ..Measured::default()
        };
        let median = Measured::median(&[one(3.0), one(100.0), one(2.0)]);
        assert_eq!(median.instructions["pvnet"].to_bits(), 3f64.to_bits());
    }
}
