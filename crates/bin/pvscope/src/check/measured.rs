//! What a window took, per frame.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use scope_model::{Costs, Counters, LAYOUT_TLBS, LAYOUTS};
use scope_result::{Block, BlockMisses, Function, Mode, Recording};

/// Functions below this share of a window's instructions or misses are left out.
const SHARE: f64 = 0.005;

/// Counts of one window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes of a frame.
    pub bytes: u64,
    /// Instructions per frame, by module: `pvnet`, `kernel`, `rest`.
    pub instructions: BTreeMap<String, f64>,
    /// L1 misses per frame, by module.
    pub l1_misses: BTreeMap<String, f64>,
    /// Misses of the DTLB and model cycles, per frame.
    pub misses: BTreeMap<String, f64>,
    /// Hypercalls, notifications and what else the bench counts, for all frames.
    pub counts: BTreeMap<String, u64>,
    /// Instructions per frame of the functions with the most, by `MODULE FUNCTION`.
    pub functions: BTreeMap<String, f64>,
    /// L1 misses per frame of the functions with the most.
    pub missed: BTreeMap<String, f64>,
}

/// The program in which pvnet's paths run.
const LAB: &str = "pvnet-lab";
/// The modules of code for the gate.
const MODULES: [&str; 3] = ["pvnet", "kernel", "rest"];

fn module(mode: Mode, function: &Function) -> &'static str {
    match mode {
        Mode::User if function.module == LAB => "pvnet",
        Mode::User => "rest",
        Mode::Kernel | Mode::Hypervisor => "kernel",
    }
}

/// What a function or a module took, per frame.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    instructions: f64,
    lines: f64,
}

impl AddAssign for Taken {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.lines += other.lines;
    }
}

impl Measured {
    /// The counts of one recording, by its number of frames. Misses are means over layouts.
    pub fn new(
        recording: &Recording,
        frames: u64,
        bytes: u64,
        counts: BTreeMap<String, u64>,
    ) -> Self {
        let frames = frames.max(1);
        let per_frame = |count: u64| count as f64 / frames as f64;
        let mean = |count: u64| per_frame(count) / LAYOUTS as f64;
        let missed = misses_of_blocks(recording);
        let mut total = Counters::default();
        let mut pages = 0;
        let mut modules = BTreeMap::from(MODULES.map(|name| (name, Taken::default())));
        let mut functions = BTreeMap::<String, Taken>::new();
        for (block, missed) in recording.blocks.iter().zip(missed) {
            let counters = block.total();
            let (part, name) = name(recording, block);
            let taken =
                Taken { instructions: per_frame(counters.instructions), lines: mean(missed.lines) };
            *modules.entry(part).or_default() += taken;
            *functions.entry(name).or_default() += taken;
            total += &counters;
            pages += missed.pages;
        }
        let misses = [
            ("dtlb", mean(pages) / LAYOUT_TLBS as f64),
            ("cycles", Costs::default().cycles(&total) / frames as f64),
        ];
        Self {
            bytes: bytes / frames,
            instructions: by_module(&modules, |of| of.instructions),
            l1_misses: by_module(&modules, |of| of.lines),
            misses: misses.map(|(name, count)| (name.to_owned(), count)).into(),
            counts,
            functions: largest(&functions, |of| of.instructions),
            missed: largest(&functions, |of| of.lines),
        }
    }
}

/// The misses of each block under all layouts together.
fn misses_of_blocks(recording: &Recording) -> impl Iterator<Item = BlockMisses> {
    let blocks = recording.layouts.iter().flat_map(|layouts| &layouts.blocks).copied();
    blocks.chain(std::iter::repeat(BlockMisses::default()))
}

/// The part of the gate that a block belongs to, and its function with its module.
fn name(recording: &Recording, block: &Block) -> (&'static str, String) {
    let unknown = Function::default();
    let function = recording.functions.get(block.function as usize).unwrap_or(&unknown);
    let part = module(block.mode, function);
    let name = if function.name.is_empty() { "unknown" } else { &function.name };
    (part, format!("{} {name}", if part == "rest" { &*function.module } else { part }))
}

fn by_module(modules: &BTreeMap<&str, Taken>, of: impl Fn(&Taken) -> f64) -> BTreeMap<String, f64> {
    modules.iter().map(|(name, taken)| ((*name).to_owned(), of(taken))).collect()
}

/// The functions with more than a share of the whole.
fn largest(
    functions: &BTreeMap<String, Taken>,
    of: impl Fn(&Taken) -> f64,
) -> BTreeMap<String, f64> {
    let whole: f64 = functions.values().map(&of).sum();
    let counts = functions.iter().map(|(name, taken)| (name.clone(), of(taken)));
    counts.filter(|(_, count)| *count > 0.0 && *count >= whole * SHARE).collect()
}

#[cfg(test)]
mod tests {
    use scope_model::LayoutMisses;
    use scope_result::LayoutCounts;

    use super::*;

    #[test]
    fn misses_are_means_over_layouts() {
        let counters = Counters { executions: 4, instructions: 8, ..Counters::default() };
        let block = Block { function: 1, counters: vec![(0, counters)], ..Block::at(0x40_0000) };
        let layouts = LayoutCounts {
            layouts: vec![LayoutMisses::default(); LAYOUTS],
            blocks: vec![BlockMisses {
                lines: 6 * LAYOUTS as u64,
                pages: LAYOUTS as u64 * LAYOUT_TLBS,
            }],
        };
        let function = Function::new(LAB, "f");
        let recording = Recording {
            blocks: vec![block],
            layouts: Some(layouts),
            functions: vec![Function::default(), function],
            ..Recording::default()
        };
        let measured = Measured::new(&recording, 2, 128, BTreeMap::new());
        assert_eq!(measured.bytes, 64);
        let close = |map: &BTreeMap<String, f64>, name: &str, value: f64| {
            assert!((map[name] - value).abs() < 1e-9, "{name}: {map:?}");
        };
        close(&measured.instructions, "pvnet", 4.0);
        close(&measured.l1_misses, "pvnet", 3.0);
        close(&measured.l1_misses, "kernel", 0.0);
        close(&measured.misses, "dtlb", 0.5);
        close(&measured.missed, "pvnet f", 3.0);
    }
}
