//! The flow of executed blocks, and its form as readable lines.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use scope_model::{Costs, Counters, EventCounts};
use scope_result::{Block, CallKind, CallNode, Domain, Function, Mode, Recording, Step};
use serde::Serialize;

use crate::summary::{Who, who};

/// Counts of a part of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Tally {
    /// Instructions.
    pub instructions: u64,
    /// Lines that L1 missed.
    pub l1: u64,
    /// Lines that L2 missed.
    pub l2: u64,
    /// Translations that the ITLB missed.
    pub itlb: u64,
    /// Translations that the DTLB missed.
    pub dtlb: u64,
    /// Those misses of L1 that followed a neighbouring line.
    pub l1_sequential: u64,
    /// Those misses of L2 that followed a neighbouring line.
    pub l2_sequential: u64,
    /// Lines that came from memory.
    pub l3: u64,
    /// Those of them that followed a neighbouring line.
    pub l3_sequential: u64,
    /// Walks of the page tables.
    pub page_walks: u64,
    /// Other events, by number.
    #[serde(skip)]
    pub events: EventCounts,
}

impl Tally {
    /// The cycles of these counts. The flow does not separate code from data; both cost the same.
    pub fn cycles(&self, costs: &Costs) -> f64 {
        costs.cycles(&Counters {
            instructions: self.instructions,
            l1i_misses: self.l1,
            l2i_misses: self.l2,
            itlb_misses: self.itlb,
            dtlb_misses: self.dtlb,
            l1_sequential: self.l1_sequential,
            l2_sequential: self.l2_sequential,
            l3_misses: self.l3,
            l3_sequential: self.l3_sequential,
            page_walks: self.page_walks,
            events: self.events,
            ..Counters::default()
        })
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.l1 += other.l1;
        self.l2 += other.l2;
        self.itlb += other.itlb;
        self.dtlb += other.dtlb;
        self.l1_sequential += other.l1_sequential;
        self.l2_sequential += other.l2_sequential;
        self.l3 += other.l3;
        self.l3_sequential += other.l3_sequential;
        self.page_walks += other.page_walks;
        self.events.iter_mut().zip(other.events).for_each(|(sum, more)| *sum += more);
    }
}

/// The execution of a block.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    pub block: &'a Block,
    /// Instructions since the flow's start.
    pub at: u64,
    /// Whether it enters its function from another one: a call.
    pub entered: bool,
    /// Whether the function or the domain differs from the visit before.
    pub changed: bool,
    step: &'a Step,
}

impl Visit<'_> {
    /// The domain: an index into [`Recording::domains`].
    pub fn domain(&self) -> u8 {
        self.step.domain
    }

    /// The node of the call graph: an index into [`Recording::calls`].
    pub fn node(&self) -> u32 {
        self.step.node
    }

    /// The kind of code.
    pub fn mode(&self) -> Mode {
        self.block.mode
    }

    /// The counts.
    pub fn tally(&self) -> Tally {
        Tally {
            instructions: u64::from(self.block.instructions),
            l1: u64::from(self.step.l1),
            l2: u64::from(self.step.l2),
            itlb: u64::from(self.step.itlb),
            dtlb: u64::from(self.step.dtlb),
            l1_sequential: u64::from(self.step.l1_sequential),
            l2_sequential: u64::from(self.step.l2_sequential),
            l3: u64::from(self.step.l3),
            l3_sequential: u64::from(self.step.l3_sequential),
            page_walks: u64::from(self.step.page_walks),
            events: self.block.events(),
        }
    }

    /// Identifies the activity that continues after a return.
    fn key(&self) -> Key {
        (self.block.function, self.block.space, self.domain(), self.mode(), self.step.node)
    }
}

/// Function, address space, domain, kind of code, and node of the call graph.
type Key = (u32, u64, u8, Mode, u32);

/// The flow of a recording.
pub struct Flow<'a> {
    pub recording: &'a Recording,
    /// The executed blocks in order.
    pub visits: Vec<Visit<'a>>,
}

impl<'a> Flow<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let starts = starts(recording);
        let mut visits = Vec::<Visit<'a>>::with_capacity(recording.flow.len());
        let mut at = 0;
        for step in &recording.flow {
            let Some(block) = recording.blocks.get(step.block as usize) else { continue };
            let start = starts.get(&(block.function, block.space));
            let mut visit = Visit { block, at, entered: false, changed: true, step };
            let last = visits.last();
            visit.changed = last.is_none_or(|last| last.key() != visit.key());
            let from_kernel = last.is_none_or(|last| last.mode() != Mode::User);
            // Code without functions is entered where a program begins to run.
            let unknown_starts = visit.mode() == Mode::User && from_kernel;
            visit.entered = visit.changed
                && if let Some(node) =
                    recording.calls.get(step.node as usize).filter(|_| step.node > 0)
                {
                    is_call(last.map(|last| last.step.node), node, step)
                } else if block.function == 0 {
                    unknown_starts
                } else {
                    start == Some(&block.address)
                };
            at += u64::from(block.instructions);
            visits.push(visit);
        }
        Self { recording, visits }
    }

    pub fn function(&self, block: &Block) -> Option<&'a Function> {
        self.recording.functions.get(block.function as usize)
    }

    pub fn domain(&self, visit: &Visit<'_>) -> Option<&'a Domain> {
        self.recording.domains.get(usize::from(visit.domain()))
    }

    /// Who works in a visit.
    pub fn who(&self, visit: &Visit<'_>) -> Who {
        who(self.domain(visit), visit.mode())
    }
}

/// Whether a node is entered from the node before, and not returned to.
fn is_call(before: Option<u32>, node: &CallNode, step: &Step) -> bool {
    let from_parent = before.is_some_and(|before| before == node.parent && before > 0);
    from_parent || node.kind == CallKind::Interrupt && step.block == node.block
}

/// The starts of functions: the lowest address of each in the recording. That is its first instruction, which every call
/// executes.
fn starts(recording: &Recording) -> HashMap<(u32, u64), u64> {
    let mut starts = HashMap::new();
    for block in &recording.blocks {
        let start = starts.entry((block.function, block.space)).or_insert(block.address);
        *start = block.address.min(*start);
    }
    starts
}

/// Whether a function is a thunk that a compiler puts in place of an indirect jump or a return.
fn is_thunk(name: &str) -> bool {
    name.starts_with("__x86_return_thunk")
        || name.starts_with("__x86_indirect_thunk")
        || name.starts_with("srso_")
        || name.starts_with("retbleed_")
}

/// A line of the annotated flow.
#[derive(Clone, Debug)]
pub struct Line {
    /// Instructions since the span's start.
    pub at: u64,
    /// The address where it begins.
    pub address: u64,
    /// Its function: an index into [`Recording::functions`].
    pub function: u32,
    /// Who works.
    pub who: Who,
    /// Whether it is a call; otherwise the function continues.
    pub entered: bool,
    /// How many of its callers have lines too.
    pub depth: usize,
    /// How often it repeats, together with the neighbouring lines of the same number.
    pub times: u32,
    /// The counts, without those of the functions that it calls.
    pub tally: Tally,
    key: Key,
}

impl Line {
    /// The node of the call graph.
    pub fn node(&self) -> u32 {
        self.key.4
    }
}

/// Visits as lines: one per call or, with `all`, per change of function. Without `all`, work after a return counts for the line
/// of the function's last call, and thunks count for the lines of their callers.
pub fn lines(flow: &Flow<'_>, visits: &[Visit<'_>], all: bool) -> Vec<Line> {
    let start = visits.first().map_or(0, |visit| visit.at);
    let mut lines = Vec::<Line>::new();
    let mut last_call = HashMap::<Key, usize>::new();
    let mut current = None;
    for visit in visits {
        let thunk = || flow.function(visit.block).is_some_and(|function| is_thunk(&function.name));
        let goes_on = match current {
            Some(line) if !visit.changed || (!all && thunk()) => Some(line),
            _ if all || visit.entered => None,
            _ => last_call.get(&visit.key()).copied(),
        };
        let line = goes_on.unwrap_or_else(|| {
            last_call.insert(visit.key(), lines.len());
            lines.push(line(flow, visit, start));
            lines.len() - 1
        });
        lines[line].tally += visit.tally();
        current = Some(line);
    }
    nest(flow.recording, &mut lines);
    lines
}

/// Sets the depths of lines, by the call graph.
fn nest(recording: &Recording, lines: &mut [Line]) {
    let shown = nodes(lines);
    for line in lines {
        line.depth = shown_callers(recording, line, &shown).len();
    }
}

/// The nodes of the call graph that have lines.
fn nodes(lines: &[Line]) -> HashSet<u32> {
    lines.iter().map(Line::node).collect()
}

/// The nodes of a line's callers that have lines too, the nearest first.
fn shown_callers(recording: &Recording, line: &Line, shown: &HashSet<u32>) -> Vec<u32> {
    let mut callers = Vec::new();
    let mut node = line.node();
    while let Some(own) = recording.calls.get(node as usize).filter(|_| node > 0) {
        node = own.parent;
        callers.extend(Some(node).filter(|node| *node > 0 && shown.contains(node)));
    }
    callers
}

/// For each line its callers that have lines too, the outermost first, and its counts.
pub fn stacks<'a>(
    recording: &Recording,
    lines: &'a [Line],
) -> impl Iterator<Item = (Vec<u32>, &'a Line)> {
    let shown = nodes(lines);
    lines.iter().map(move |line| {
        let mut callers = shown_callers(recording, line, &shown);
        callers.reverse();
        (callers, line)
    })
}

fn line(flow: &Flow<'_>, visit: &Visit<'_>, start: u64) -> Line {
    Line {
        at: visit.at - start,
        address: visit.block.address,
        function: visit.block.function,
        who: flow.who(visit),
        entered: visit.entered,
        depth: 0,
        times: 1,
        tally: Tally::default(),
        key: visit.key(),
    }
}

/// The longest loop to fold, in lines.
const LONGEST: usize = 12;

/// Folds loops: their lines appear once, with the number of rounds and the sums over all rounds.
pub fn fold(lines: &[Line]) -> Vec<Line> {
    let mut folded = Vec::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let (period, times) = repeats(rest);
        let (loops, after) = rest.split_at(period * times);
        for (n, first) in loops[..period].iter().enumerate() {
            let mut line = first.clone();
            line.times = u32::try_from(times).unwrap_or(u32::MAX);
            loops.iter().skip(n + period).step_by(period).for_each(|same| line.tally += same.tally);
            folded.push(line);
        }
        rest = after;
    }
    folded
}

/// The length of the loop at the beginning and its number of rounds: of all lengths the one that covers most lines.
fn repeats(lines: &[Line]) -> (usize, usize) {
    let alike = |a: &Line, b: &Line| (a.key, a.entered) == (b.key, b.entered);
    let times = |period: usize| {
        let (first, rest) = lines.split_at(period);
        let rounds = rest.chunks_exact(period);
        1 + rounds.take_while(|round| first.iter().zip(*round).all(|(a, b)| alike(a, b))).count()
    };
    let loops = (1..=LONGEST.min(lines.len() / 2)).map(|period| (period, times(period)));
    let loops = loops.filter(|(_, times)| *times > 1);
    // The shortest of those that cover as much: A A A A is not a loop of A A.
    loops.rev().max_by_key(|(period, times)| period * times).unwrap_or((1, 1))
}

/// A row of the flow in brief.
#[derive(Clone, Debug)]
pub enum Row<'a> {
    /// The first line of its function for who works.
    First(&'a Line),
    /// Work in functions that were shown before.
    Known(KnownFunctions),
}

/// Consecutive lines of functions that were shown before.
#[derive(Clone, Debug)]
pub struct KnownFunctions {
    /// Instructions since the span's start.
    pub at: u64,
    /// Who works.
    pub who: Who,
    pub lines: usize,
    /// Their counts.
    pub tally: Tally,
}

/// The flow with every function shown once per domain that executes it, and sums for the rest: a packet of tens of thousands of
/// lines has some hundred functions.
pub fn brief(lines: &[Line]) -> Vec<Row<'_>> {
    let mut seen = HashSet::new();
    let mut rows = Vec::new();
    for line in lines {
        if seen.insert((line.function, &line.who)) {
            rows.push(Row::First(line));
            continue;
        }
        match rows.last_mut() {
            Some(Row::Known(known)) if known.who == line.who => {
                known.lines += 1;
                known.tally += line.tally;
            }
            _ => {
                let (who, tally) = (line.who.clone(), line.tally);
                rows.push(Row::Known(KnownFunctions { at: line.at, who, lines: 1, tally }));
            }
        }
    }
    rows
}

/// The functions of every domain, with calls and total counts.
pub fn by_function(lines: &[Line]) -> Vec<(&Who, u32, u64, Tally)> {
    let mut sums = HashMap::<(&Who, u32), (u64, Tally)>::new();
    for line in lines {
        let (calls, tally) = sums.entry((&line.who, line.function)).or_default();
        *calls += if line.entered { u64::from(line.times) } else { 0 };
        *tally += line.tally;
    }
    sums.into_iter()
        .map(|((who, function), (calls, tally))| (who, function, calls, tally))
        .collect()
}
