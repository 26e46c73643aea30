//! The format of callgrind (`docs/callgrind-format` of Valgrind), which KCachegrind shows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scope_model::{Costs, Counters};
use scope_result::SourceLine;

use crate::call_graph::CallGraph;
use crate::filter::FilterArgs;
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

/// The costs of a function: by the address and the source line of its blocks, and of its calls.
#[derive(Default)]
struct Costed {
    file: Option<String>,
    positions: BTreeMap<Position, Counters>,
    calls: Vec<Call>,
}

/// An address, and the line of its function's file; 0 if it is not known.
type Position = (u64, u32);

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
    let lines: BTreeMap<u32, &SourceLine> =
        recording.lines.iter().map(|line| (line.block, line)).collect();
    let file = |line: &SourceLine| recording.files.get(line.file as usize).cloned();
    let position = |block: u32| -> Position {
        let address = recording.blocks.get(block as usize).map_or(0, |block| block.address);
        (address, lines.get(&block).map_or(0, |line| line.line))
    };
    let mut functions = BTreeMap::<Name, Costed>::new();
    for (number, block) in (0..).zip(&recording.blocks) {
        let function =
            recording.functions.get(block.function as usize).cloned().unwrap_or_default();
        for (domain, counters) in &block.counters {
            let who = who(recording.domains.get(usize::from(*domain)), block.mode);
            let part = Part { who, mode: block.mode, function: function.clone() };
            if filter.selects(&part) && counters.executions > 0 {
                let costed = functions.entry(name(&part)).or_default();
                let own = lines.get(&number).and_then(|line| file(line));
                costed.file = costed.file.take().or(own);
                *costed.positions.entry(position(number)).or_default() += counters;
            }
        }
    }
    if let Some(graph) = graph {
        for ((caller, callee), cost) in graph.calls() {
            if filter.selects(caller) && filter.selects(callee) {
                let entry = graph.entry_of(callee).map_or((0, 0), position);
                let site = cost.site.map_or((0, 0), position);
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
    let file =
        |name: &Name| functions.get(name).and_then(|costed| costed.file.as_deref()).unwrap_or("??");
    for (function, costed) in functions {
        let _ = writeln!(text, "\nob={}\nfl={}\nfn={}", function.0, file(function), function.1);
        for (position, counters) in &costed.positions {
            let _ = writeln!(text, "{}", counts(*position, counters, summary.costs()));
        }
        for call in &costed.calls {
            let (object, name) = &call.callee;
            let _ = writeln!(text, "cob={object}\ncfl={}\ncfn={name}", file(&call.callee));
            let (address, line) = call.entry;
            let _ = writeln!(text, "calls={} {address:#x} {line}", call.times);
            let _ = writeln!(text, "{}", counts(call.site, &call.inclusive, summary.costs()));
        }
    }
    text
}

/// A line of costs.
fn counts((address, line): Position, counters: &Counters, costs: &Costs) -> String {
    let counts = EVENTS.map(|(_, _, count)| count(counters).to_string()).join(" ");
    format!("{address:#x} {line} {counts} {:.0}", costs.cycles(counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_graph::tests::recording as with_calls;
    use crate::export::tests::recording;
    use crate::filter::EventFilter;

    /// What a reader of the format finds: the own instructions of each function, and the calls with their inclusive instructions.
    #[derive(Debug, Default, PartialEq)]
    struct Read {
        own: BTreeMap<Name, u64>,
        calls: BTreeMap<(Name, Name), (u64, u64)>,
    }

    /// Reads the format as its description says: the costs after a line `calls=` are those of the call.
    fn read(text: &str) -> Read {
        let (mut read, mut object, mut function) =
            (Read::default(), String::new(), Name::default());
        let (mut called_object, mut callee, mut calls) = (None, Name::default(), None);
        let mut events = 0;
        for line in text.lines() {
            match line.split_once('=') {
                _ if line.starts_with("events: ") => events = line.split(' ').count() - 1,
                Some(("ob", name)) => object = name.to_owned(),
                Some(("fl" | "cfl", _)) => {}
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
                        None => *read.own.entry(function.clone()).or_default() += instructions,
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
        let mut recording = with_calls();
        recording.files = vec!["src/main.c".to_owned()];
        recording.lines = vec![SourceLine { block: 1, file: 0, line: 7, inlined: Vec::new() }];
        let summary = Summary::new(&recording, Costs::default());
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let text = text(&summary, Some(&graph), &FilterArgs::default());
        assert!(text.contains("fl=src/main.c\nfn=main\n0x400010 7 1 "), "{text}");
        let read = read(&text);
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
