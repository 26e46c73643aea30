//! `pvscope diff`: the costs of a frame in two recordings.

mod doubts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::report::{Table, human};
use clap::Args;
use document::Document;
use schemars::JsonSchema;
use scope_model::{Counters, L2_BYTES, Policy, TLB_ENTRIES};
use scope_result::{Recording, Work};
use serde::Serialize;

use crate::error::Result;
use crate::model_args::CostArgs;
use crate::report::{json, show};
use crate::summary::{Part, Summary, function_name, mode_name};
use doubts::doubts;

/// Arguments of `pvscope diff`.
#[derive(Args)]
pub struct DiffArgs {
    /// A recording of `pvscope run`.
    a: PathBuf,
    /// The recording to compare it with.
    b: PathBuf,
    /// The number of functions to show, those whose cycles differ most.
    #[arg(long, value_name = "N", default_value_t = 30)]
    top: usize,
    /// Print a JSON document instead.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    costs: CostArgs,
}

/// Runs the command.
pub fn run(args: &DiffArgs) -> Result<()> {
    let (a, b) = (scope_result::read(&args.a)?, scope_result::read(&args.b)?);
    let costs = args.costs.read(&a.config)?;
    let diff = Diff::new(&Summary::new(&a, costs), &Summary::new(&b, costs), args.top);
    if args.json {
        return show(&json(&diff)?);
    }
    let mut text = String::new();
    for (letter, path, side) in [("a", &args.a, &diff.a), ("b", &args.b, &diff.b)] {
        text += &format!("{}\n", side.line(letter, path));
    }
    for warning in &diff.warnings {
        text += &format!("warning: {warning}\n");
    }
    for (caption, table) in diff.tables() {
        text += &format!("\n{caption}\n{}", table.render(::report::wants_bold()));
    }
    show(&text)
}

/// One of the recordings.
#[derive(Debug, JsonSchema, Serialize)]
struct Side {
    what: String,
    frames: u64,
    bytes: u64,
    data_frames: u64,
    acks: u64,
    payload: u64,
    interface: String,
}

impl Side {
    fn new(recording: &Recording) -> Self {
        let work = &recording.work;
        let Work { what, frames, bytes, data_frames, acks, payload, interface } = work.clone();
        Self { what, frames, bytes, data_frames, acks, payload, interface }
    }

    fn line(&self, letter: &str, path: &Path) -> String {
        let frames = match self.frames {
            0 => "no frames were counted, so all counts are totals".to_owned(),
            frames => {
                let mean = human(self.bytes as f64 / frames as f64);
                format!("{frames} frames of {mean} bytes on average")
            }
        };
        format!("{letter}: {}: {}; {frames}", path.display(), self.what)
    }
}

/// A count of both recordings, per frame.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
struct Change {
    names: Vec<String>,
    a: f64,
    b: f64,
    /// b less a.
    difference: f64,
    /// b divided by a; none if a is 0.
    ratio: Option<f64>,
}

impl Change {
    fn new(names: Vec<String>, a: f64, b: f64) -> Self {
        Self { names, a, b, difference: b - a, ratio: (a > 0.0).then(|| b / a) }
    }

    fn cells(&self) -> impl Iterator<Item = String> {
        let sign = if self.difference > 0.0 { "+" } else { "" };
        let numbers = [
            human(self.a),
            human(self.b),
            format!("{sign}{}", human(self.difference)),
            self.ratio.map_or_else(|| "new".to_owned(), |ratio| format!("{ratio:.2}")),
        ];
        self.names.clone().into_iter().chain(numbers)
    }
}

/// Two recordings, compared per frame.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Diff {
    a: Side,
    b: Side,
    /// What makes the comparison doubtful.
    warnings: Vec<String>,
    totals: Vec<Change>,
    cycles_by_who: Vec<Change>,
    cycles_by_function: Vec<Change>,
    l2_misses_by_kib: Vec<Change>,
    tlb_misses_by_entries: Vec<Change>,
}

impl Document for Diff {
    const SCHEMA: &str = "pvscope-diff/1";
}

impl Diff {
    fn new(a: &Summary<'_>, b: &Summary<'_>, top: usize) -> Self {
        let by_who = |part: &Part| vec![part.who.to_string(), mode_name(part.mode).to_owned()];
        let by_function = |part: &Part| {
            let (module, name) = function_name(&part.function);
            vec![part.who.to_string(), module, name]
        };
        let mut cycles_by_function = cycles(a, b, by_function);
        cycles_by_function.truncate(top);
        Self {
            a: Side::new(a.recording),
            b: Side::new(b.recording),
            warnings: doubts(a.recording, b.recording),
            totals: totals(a, b),
            cycles_by_who: cycles(a, b, by_who),
            cycles_by_function,
            l2_misses_by_kib: l2(a, b),
            tlb_misses_by_entries: tlb(a, b),
        }
    }

    fn tables(&self) -> [(&'static str, Table); 5] {
        [
            ("A frame takes:", table(&["what"], &self.totals)),
            ("Model cycles per frame, by who works:", table(&["who", "code"], &self.cycles_by_who)),
            (
                "Model cycles per frame, by function, largest difference first:",
                table(&["who", "module", "function"], &self.cycles_by_function),
            ),
            ("L2 misses per frame, by size of L2 in KiB:", table(&["KiB"], &self.l2_misses_by_kib)),
            (
                "TLB misses per frame, code and data, by policy and entries:",
                table(&["policy", "entries"], &self.tlb_misses_by_entries),
            ),
        ]
    }
}

fn table(names: &[&str], changes: &[Change]) -> Table {
    let table = names.iter().fold(Table::new(), |table, name| table.left(*name));
    let table = ["a", "b", "difference", "ratio"].into_iter().fold(table, Table::right);
    changes.iter().fold(table, |mut table, change| {
        table.row(change.cells());
        table
    })
}

fn totals(a: &Summary<'_>, b: &Summary<'_>) -> Vec<Change> {
    type Count = fn(&Counters) -> u64;
    let counts: [(&str, Count); 6] = [
        ("instructions", |total| total.instructions),
        ("L1I misses", |total| total.l1i_misses),
        ("L1D misses", |total| total.read_misses + total.write_misses),
        ("L2 misses", |total| total.l2i_misses + total.l2d_misses),
        ("ITLB misses", |total| total.itlb_misses),
        ("DTLB misses", |total| total.dtlb_misses),
    ];
    let cycles = |side: &Summary<'_>| side.per_frame(side.cycles(&side.total));
    let bytes = |side: &Summary<'_>| side.per_frame(side.recording.work.bytes as f64);
    let counted = counts.into_iter().map(|(name, count)| {
        let of = |side: &Summary<'_>| side.per_frame(count(&side.total) as f64);
        Change::new(vec![name.to_owned()], of(a), of(b))
    });
    // The lengths of frames may differ, and the share of acknowledgements.
    let per_byte = |side: &Summary<'_>| side.per_gigabyte(side.cycles(&side.total)) / 1e9;
    let known = [
        ("bytes", bytes(a), bytes(b)),
        ("model cycles per byte", per_byte(a), per_byte(b)),
        ("model cycles", cycles(a), cycles(b)),
    ]
    .map(|(name, a, b)| Change::new(vec![name.to_owned()], a, b));
    let per_payload = per_payload(a)
        .into_iter()
        .zip(per_payload(b))
        .map(|((name, a), (_, b))| Some(Change::new(vec![name.to_owned()], a?, b?)));
    known.into_iter().chain(per_payload.flatten()).chain(counted).collect()
}

/// The payload of a full segment of TCP over Ethernet, with timestamps.
const SEGMENT: u32 = 1448;

/// Model cycles and instructions by what frames carry; none if frames were not told apart.
fn per_payload(side: &Summary<'_>) -> [(&'static str, Option<f64>); 3] {
    let work = &side.recording.work;
    let (cycles, instructions) = (side.cycles(&side.total), side.total.instructions as f64);
    let per = |all: f64, count: u64, unit: f64| (count > 0).then(|| all * unit / count as f64);
    [
        ("model cycles per data frame", per(cycles, work.data_frames, 1.0)),
        ("model cycles per 1448 bytes of payload", per(cycles, work.payload, SEGMENT.into())),
        ("instructions per 1448 bytes of payload", per(instructions, work.payload, SEGMENT.into())),
    ]
}

/// Cycles of parts with the same names, those that differ most first. A part of one side only is compared with 0.
fn cycles(a: &Summary<'_>, b: &Summary<'_>, names: impl Fn(&Part) -> Vec<String>) -> Vec<Change> {
    let mut both = BTreeMap::<Vec<String>, [f64; 2]>::new();
    for (place, side) in [a, b].into_iter().enumerate() {
        for (name, counters) in side.by(&names) {
            both.entry(name).or_default()[place] = side.per_frame(side.cycles(&counters));
        }
    }
    let changes = both.into_iter().map(|(names, [a, b])| Change::new(names, a, b));
    let mut changes: Vec<_> = changes.collect();
    changes.sort_by(|one, other| other.difference.abs().total_cmp(&one.difference.abs()));
    changes
}

fn l2(a: &Summary<'_>, b: &Summary<'_>) -> Vec<Change> {
    let of = |side: &Summary<'_>, size: usize| {
        side.per_frame((side.sweep.l2i[size] + side.sweep.l2d[size]) as f64)
    };
    let sizes = L2_BYTES.iter().enumerate();
    let changes = sizes.map(|(size, bytes)| {
        Change::new(vec![(bytes >> 10).to_string()], of(a, size), of(b, size))
    });
    of_both(changes)
}

fn tlb(a: &Summary<'_>, b: &Summary<'_>) -> Vec<Change> {
    let of = |side: &Summary<'_>, policy: usize, size: usize| {
        side.per_frame((side.sweep.itlb[policy][size] + side.sweep.dtlb[policy][size]) as f64)
    };
    let changes = Policy::ALL.iter().flat_map(|policy| {
        TLB_ENTRIES.iter().enumerate().map(move |(size, entries)| {
            let names = vec![policy.name().to_owned(), entries.to_string()];
            Change::new(names, of(a, *policy as usize, size), of(b, *policy as usize, size))
        })
    });
    of_both(changes)
}

/// The sizes that both sides modelled: a recording with `--single` has zeros for all others.
fn of_both(changes: impl Iterator<Item = Change>) -> Vec<Change> {
    changes.filter(|change| change.a > 0.0 && change.b > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use scope_model::{Costs, Sweep};
    use scope_result::{Block, Domain, Function, Mode, Owner, Work};

    use super::*;

    /// Functions of dom0's kernel, by name and instructions.
    fn recording(frames: u64, functions: &[(&str, u64)], l2: u64) -> Recording {
        let named = functions.iter().map(|(name, _)| Function::new("vmlinux", name));
        let blocks = functions.iter().zip(1..).map(|((_, instructions), function)| {
            let counters = Counters { instructions: *instructions, ..Counters::default() };
            let counters = vec![(0, counters)];
            Block { function, counters, ..Block::at(0xffff_ffff_8100_0000) }
        });
        let mut sweep = Sweep::default();
        sweep.l2d[0] = l2;
        Recording {
            domains: vec![Domain::Xen(0)],
            blocks: blocks.collect(),
            functions: std::iter::once(Function::default()).chain(named).collect(),
            sweeps: vec![(Owner { domain: 0, mode: Mode::Kernel }, sweep)],
            work: Work {
                what: "work".to_owned(),
                frames,
                bytes: 100 * frames,
                data_frames: frames / 2,
                payload: 724 * (frames / 2),
                ..Work::default()
            },
            ..Recording::default()
        }
    }

    fn diff(a: &Recording, b: &Recording) -> Diff {
        let costs = Costs { instruction: 0.5, ..Costs::default() };
        let summary = |recording| Summary::new(recording, costs);
        Diff::new(&summary(a), &summary(b), 3)
    }

    #[test]
    fn the_largest_difference_is_first_in_both_directions() {
        let a = recording(10, &[("same", 1000), ("less", 9000), ("gone", 400)], 0);
        let b = recording(20, &[("same", 2000), ("less", 2000), ("new", 16_000)], 0);
        let diff = diff(&a, &b);
        // Half a cycle per instruction. Cycles per frame: 0 to 400, 450 to 50, 20 to 0 and 50 to 50.
        let by_size: Vec<_> =
            diff.cycles_by_function.iter().map(|row| row.difference.abs()).collect();
        assert_eq!(by_size.len(), 3, "as many as were asked for");
        assert!(by_size.is_sorted_by(|one, other| one >= other));
        let row = |name: &str| {
            diff.cycles_by_function.iter().find(|row| row.names[2] == name).expect("a row").clone()
        };
        let new = row("new");
        assert!((new.difference - 400.0).abs() < 1e-9 && new.ratio.is_none());
        let less = row("less");
        assert!((less.difference + 400.0).abs() < 1e-9);
        assert!(less.ratio.is_some_and(|ratio| (ratio - 1.0 / 9.0).abs() < 1e-9));
        let cells: Vec<_> = less.cells().skip(3).collect();
        assert_eq!(cells, ["450", "50.0", "-400", "0.11"]);
        assert_eq!(new.cells().skip(5).collect::<Vec<_>>(), ["+400", "new"]);
        assert_eq!(row("gone").ratio, Some(0.0));
        assert_eq!(diff.cycles_by_who.len(), 1);
    }

    #[test]
    fn totals_are_for_each_frame() {
        let diff = diff(&recording(10, &[("f", 1000)], 0), &recording(20, &[("f", 1000)], 0));
        let total = |name: &str| diff.totals.iter().find(|row| row.names == [name]).expect("a row");
        let change = total("instructions");
        assert!((change.a - 100.0).abs() < 1e-9 && (change.b - 50.0).abs() < 1e-9);
        assert!((total("bytes").difference).abs() < 1e-9);
        // 5 and 10 frames with half a segment each.
        let data = total("model cycles per data frame");
        assert!((data.a - 100.0).abs() < 1e-9 && (data.b - 50.0).abs() < 1e-9);
        let segment = total("instructions per 1448 bytes of payload");
        assert!((segment.a - 400.0).abs() < 1e-9 && (segment.b - 200.0).abs() < 1e-9);
    }

    #[test]
    fn sizes_that_one_side_did_not_model_are_left_out() {
        let (swept, single) = (recording(1, &[("f", 1)], 7), recording(1, &[("f", 1)], 0));
        assert_eq!(diff(&swept, &swept).l2_misses_by_kib.len(), 1);
        assert_eq!(diff(&swept, &single).l2_misses_by_kib.len(), 0);
    }

    #[test]
    fn a_diff_names_both_recordings_and_says_if_no_frames_were_counted() {
        let side = Side::new(&recording(2, &[], 0)).line("a", Path::new("x.pvs"));
        assert_eq!(side, "a: x.pvs: work; 2 frames of 100 bytes on average");
        let side = Side::new(&recording(0, &[], 0)).line("b", Path::new("x.pvs"));
        assert!(side.ends_with("no frames were counted, so all counts are totals"));
        let (a, b) = (recording(1, &[("f", 1)], 7), recording(1, &[("f", 2)], 7));
        let text = document::line(&diff(&a, &b)).expect("JSON");
        document::checked(&diff(&a, &b));
        assert!(text.contains(r#""what":"work","frames":1"#), "{text}");
        assert!(text.starts_with(r#"{"schema":"pvscope-diff/1","#), "{text}");
        assert!(text.contains(r#""warnings":["Recording a does not say"#), "{text}");
    }
}
