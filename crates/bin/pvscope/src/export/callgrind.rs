//! The format of callgrind (`docs/callgrind-format` of Valgrind), which KCachegrind shows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scope_model::{Costs, Counters};
use scope_result::{FileLine, SourceLine};

use crate::call_graph::CallGraph;
use crate::filter::FilterArgs;
use crate::source_lines::SourceLines;
use crate::summary::{Part, Summary, function_name, who};

/// What an event counts.
type Count = fn(&Counters) -> u64;

/// The events of a position, with their descriptions. Names that callgrind has too mean the same.
const EVENTS: [(&str, &str, Count); 9] = [
    ("Ir", "Instructions", |counters| counters.instructions),
    ("I1mr", "L1I misses", |counters| counters.l1i_misses),
    ("D1mr", "L1D read misses", |counters| counters.read_misses),
    ("D1mw", "L1D write misses", |counters| counters.write_misses),
    ("L2m", "L2 misses", |counters| counters.l2i_misses + counters.l2d_misses),
    ("Mem", "Lines from memory", |counters| counters.l3_misses),
    ("ITLB", "ITLB misses", |counters| counters.itlb_misses),
    ("DTLB", "DTLB misses", |counters| counters.dtlb_misses),
    ("Walk", "Page walks", |counters| counters.page_walks),
];

/// The object and the name of a function. A function of two domains is two functions, in objects of different names.
type Name = (String, String);

/// The costs of a function: by the address and the source line of its code, and of its calls.
#[derive(Default)]
struct Costed {
    /// The file of the function; inlined code may have others.
    file: Option<u32>,
    positions: BTreeMap<Position, Counters>,
    calls: Vec<Call>,
}

/// A place in a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    address: u64,
    /// The file, if it is known.
    file: Option<u32>,
    /// The line of the file; 0 if it is not known.
    line: u32,
}

impl Position {
    fn new(address: u64, line: Option<FileLine>) -> Self {
        Self { address, file: line.map(|line| line.file), line: line.map_or(0, |line| line.line) }
    }
}

struct Call {
    callee: Name,
    entry: Position,
    times: u64,
    site: Position,
    inclusive: Counters,
}

/// The counts of every block, and with a call graph the inclusive counts of calls.
pub fn text(summary: &Summary<'_>, graph: Option<&CallGraph<'_>>, filter: &FilterArgs) -> String {
    let recording = summary.recording;
    let lines = SourceLines::new(recording);
    let address =
        |block: u32| recording.blocks.get(block as usize).map_or(0, |block| block.address);
    let mut functions = BTreeMap::<Name, Costed>::new();
    for (number, block) in (0..).zip(&recording.blocks) {
        let function =
            recording.functions.get(block.function as usize).cloned().unwrap_or_default();
        for (domain, counters) in &block.counters {
            let who = who(recording.domains.get(usize::from(*domain)), block.mode);
            let part = Part { who, mode: block.mode, function: function.clone() };
            if !filter.selects(&part) || counters.executions == 0 {
                continue;
            }
            let costed = functions.entry(name(&part)).or_default();
            for (line, counters) in lines.parts(number, counters) {
                costed.file = costed.file.or(line.map(|line| line.outermost().file));
                let offset = line.map_or(0, |line| u64::from(line.offset));
                let position = Position::new(block.address + offset, line.map(|line| line.line));
                *costed.positions.entry(position).or_default() += &counters;
            }
        }
    }
    // A function is entered at its own first line, and calls from the line of its last instruction.
    let entry = |block: u32| {
        let line = lines.of(block).first();
        Position::new(address(block), line.map(SourceLine::outermost))
    };
    let site = |block: u32| {
        let last = lines.of(block).last();
        let offset = last.map_or(0, |line| u64::from(line.offset));
        Position::new(address(block) + offset, last.map(|line| line.line))
    };
    if let Some(graph) = graph {
        for ((caller, callee), cost) in graph.calls() {
            if filter.selects(caller) && filter.selects(callee) {
                let entry = graph.entry_of(callee).map(entry).unwrap_or_default();
                let site = cost.site.map(site).unwrap_or_default();
                let inclusive = cost.inclusive;
                let call = Call { callee: name(callee), entry, times: cost.calls, site, inclusive };
                functions.entry(name(caller)).or_default().calls.push(call);
            }
        }
    }
    write(summary, &functions)
}

fn name(part: &Part) -> Name {
    let (module, name) = function_name(&part.function);
    (format!("{}/{module}", part.who), name)
}

fn write(summary: &Summary<'_>, functions: &BTreeMap<Name, Costed>) -> String {
    let mut text =
        "# callgrind format\nversion: 1\ncreator: pvscope\npositions: instr line\n".to_owned();
    let _ = writeln!(text, "cmd: {}", summary.recording.work.what);
    for (name, description, _) in EVENTS {
        let _ = writeln!(text, "event: {name} : {description}");
    }
    let _ = writeln!(text, "event: Cycles : Model cycles");
    let names = EVENTS.map(|(name, ..)| name).join(" ");
    let _ = writeln!(text, "events: {names} Cycles");
    let known = |file: Option<u32>| {
        let name = file.and_then(|file| summary.recording.files.get(file as usize));
        name.map_or("??", String::as_str)
    };
    let file_of = |name: &Name| functions.get(name).and_then(|costed| costed.file);
    for (function, costed) in functions {
        let own = costed.file;
        let _ = writeln!(text, "\nob={}\nfl={}\nfn={}", function.0, known(own), function.1);
        // The file that the positions are of: inlined code may come from another.
        let mut present = own;
        let mut change = |text: &mut String, position: Position| {
            let file = position.file.or(own);
            if file != present {
                let key = if file == own { "fe" } else { "fi" };
                let _ = writeln!(text, "{key}={}", known(file));
                present = file;
            }
        };
        for (position, counters) in &costed.positions {
            change(&mut text, *position);
            let _ = writeln!(text, "{}", counts(*position, counters, summary.costs()));
        }
        for call in &costed.calls {
            change(&mut text, call.site);
            let (object, name) = &call.callee;
            let _ =
                writeln!(text, "cob={object}\ncfl={}\ncfn={name}", known(file_of(&call.callee)));
            let Position { address, line, .. } = call.entry;
            let _ = writeln!(text, "calls={} {address:#x} {line}", call.times);
            let _ = writeln!(text, "{}", counts(call.site, &call.inclusive, summary.costs()));
        }
    }
    text
}

/// A line of costs.
fn counts(position: Position, counters: &Counters, costs: &Costs) -> String {
    let counts = EVENTS.map(|(_, _, count)| count(counters).to_string()).join(" ");
    let Position { address, line, .. } = position;
    format!("{address:#x} {line} {counts} {:.0}", costs.cycles(counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::recording;
    use crate::filter::EventFilter;
    use crate::source_lines::tests::recording as with_lines;

    /// What a reader of the format finds: the own instructions of each function, and the calls with their inclusive instructions.
    #[derive(Debug, Default, PartialEq)]
    struct Read {
        own: BTreeMap<Name, u64>,
        calls: BTreeMap<(Name, Name), (u64, u64)>,
        /// The own instructions by file and line.
        lines: BTreeMap<(String, u32), u64>,
    }

    /// Reads the format as its description says: the costs after a line `calls=` are those of the call.
    fn read(text: &str) -> Read {
        let (mut read, mut object, mut function) =
            (Read::default(), String::new(), Name::default());
        let (mut called_object, mut callee, mut calls) = (None, Name::default(), None);
        let (mut events, mut file) = (0, String::new());
        for line in text.lines() {
            match line.split_once('=') {
                _ if line.starts_with("events: ") => events = line.split(' ').count() - 1,
                Some(("ob", name)) => object = name.to_owned(),
                Some(("fl" | "fi" | "fe", name)) => file = name.to_owned(),
                Some(("cfl", _)) => {}
                Some(("fn", name)) => function = (object.clone(), name.to_owned()),
                Some(("cob", name)) => called_object = Some(name.to_owned()),
                Some(("cfn", name)) => {
                    let object = called_object.take().unwrap_or(object.clone());
                    callee = (object, name.to_owned());
                }
                Some(("calls", counts)) => {
                    let mut words = counts.split(' ');
                    calls = words.next().map(|times| times.parse::<u64>().expect("a count"));
                    assert_eq!(words.count(), 2, "an address and a line: {line}");
                }
                _ if line.starts_with("0x") => {
                    let cells: Vec<&str> = line.split(' ').collect();
                    assert_eq!(cells.len(), 2 + events, "{line}");
                    let instructions: u64 = cells[2].parse().expect("a count");
                    match calls.take() {
                        None => {
                            *read.own.entry(function.clone()).or_default() += instructions;
                            let line = (file.clone(), cells[1].parse().expect("a line"));
                            *read.lines.entry(line).or_default() += instructions;
                        }
                        Some(times) => {
                            let pair = (function.clone(), callee.clone());
                            assert_eq!(read.calls.insert(pair, (times, instructions)), None);
                        }
                    }
                }
                _ => {}
            }
        }
        assert_eq!(calls, None, "a call has costs");
        read
    }

    #[test]
    fn every_block_has_a_position_and_all_instructions_are_there() {
        let recording = recording();
        let summary = Summary::new(&recording, Costs::default());
        let text = text(&summary, None, &FilterArgs::default());
        let read = read(&text);
        assert_eq!((read.own.len(), read.calls.len()), (3, 0));
        assert_eq!(read.own.values().sum::<u64>(), recording.instructions);
        assert!(text.contains("ob=Xen/xen\nfl=??\nfn=do_iret\n0xffff82d040000000 0 10 "), "{text}");
        assert!(text.contains("ob=domU 1/unknown\nfl=??\nfn=unknown\n"), "{text}");
    }

    #[test]
    fn calls_have_inclusive_costs_and_source_lines() {
        let recording = with_lines();
        let summary = Summary::new(&recording, Costs::default());
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let text = text(&summary, Some(&graph), &FilterArgs::default());
        assert!(text.contains("fl=src/main.c\nfn=main\n0x400010 0 1 "), "{text}");
        // Inlined code of another file, and the way back for the call.
        assert!(text.contains("fi=include/put.h\n0x400024 9 5 "), "{text}");
        let read = read(&text);
        let of = |file: &str, line| read.lines.get(&(file.to_owned(), line)).copied();
        assert_eq!((of("src/main.c", 20), of("include/put.h", 9)), (Some(5), Some(5)));
        assert_eq!(read.own.values().sum::<u64>(), recording.instructions);
        let name = |name: &str| ("machine/m".to_owned(), name.to_owned());
        let expected = [
            ("main", "write", (2, 3130)),
            ("sys_write", "copy", (5, 3000)),
            ("sys_write", "sys_write", (1, 3020)),
            ("timer", "copy", (1, 500)),
            ("write", "sys_write", (2, 3120)),
        ];
        let expected = expected.map(|(caller, callee, cost)| ((name(caller), name(callee)), cost));
        assert_eq!(read.calls, expected.into());
    }
}
