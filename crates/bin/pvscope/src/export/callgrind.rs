//! The format of callgrind (`docs/callgrind-format` of Valgrind), which KCachegrind shows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions};
use scope_model::Counters;
use scope_result::{Block, FileLine, SourceLine};

use super::objects::Objects;
use crate::call_graph::CallGraph;
use crate::error::Result;
use crate::filter::FilterArgs;
use crate::source_lines::SourceLines;
use crate::summary::{Part, Summary, function_name};

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

/// The files of the objects' code, beside the file `out`.
pub fn objects(summary: &Summary<'_>, filter: &FilterArgs, out: &Path) -> Result<Objects> {
    let executed: Vec<(&Block, Name)> =
        executed(summary, filter).map(|(_, block, part, _)| (block, name(&part))).collect();
    let blocks = executed.iter().map(|(block, (object, name))| (*block, &object[..], &name[..]));
    Objects::new(out, blocks)
}

/// The blocks that were executed, with their numbers: once for each domain, with its counts.
fn executed<'a>(
    summary: &Summary<'a>,
    filter: &FilterArgs,
) -> impl Iterator<Item = (u32, &'a Block, Part, &'a Counters)> {
    let recording = summary.recording;
    let blocks = (0..).zip(&recording.blocks);
    let executed = blocks.flat_map(move |(number, block)| {
        let part = |domain| Part::of(recording, block, domain);
        block.counters.iter().map(move |(domain, counts)| (number, block, part(*domain), counts))
    });
    executed.filter(|(_, _, part, counters)| filter.selects(part) && counters.executions > 0)
}

/// The counts of every instruction, and with a call graph the inclusive counts of calls. Objects with files have their paths as names.
pub fn text(
    summary: &Summary<'_>,
    graph: Option<&CallGraph<'_>>,
    filter: &FilterArgs,
    objects: Option<&Objects>,
) -> String {
    let recording = summary.recording;
    let lines = SourceLines::new(recording);
    let mut functions = BTreeMap::<Name, Costed>::new();
    for (number, block, part, counters) in executed(summary, filter) {
        let costed = functions.entry(name(&part)).or_default();
        for (offset, line, counters) in places(&lines, number, block, counters) {
            costed.file = costed.file.or(line.map(|line| line.outermost().file));
            let position =
                Position::new(block.address.wrapping_add(offset), line.map(|line| line.line));
            *costed.positions.entry(position).or_default() += &counters;
        }
    }
    // A function is entered at its own first line, and calls with the last instruction of a block.
    let entry = |block: u32| {
        let address = recording.blocks.get(block as usize).map_or(0, |block| block.address);
        Position::new(address, lines.of(block).first().map(SourceLine::outermost))
    };
    let site = |block: u32| {
        let code = recording.blocks.get(block as usize);
        let last = lines.of(block).last();
        let in_block = code.and_then(|block| offsets(block)?.last().copied());
        let offset = in_block.or(last.map(|line| line.offset.into())).unwrap_or(0);
        let address = code.map_or(0, |block| block.address);
        Position::new(address.wrapping_add(offset), last.map(|line| line.line))
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
    write(summary, &functions, objects)
}

/// The counts of a block, shared out over its instructions: the offset of each, its line, and its counts.
fn places<'a>(
    lines: &SourceLines<'a>,
    number: u32,
    block: &Block,
    counters: &Counters,
) -> Vec<(u64, Option<&'a SourceLine>, Counters)> {
    let Some(offsets) = offsets(block) else {
        let parts = lines.parts(number, counters).into_iter();
        let offset = |line: Option<&SourceLine>| line.map_or(0, |line| line.offset.into());
        return parts.map(|(line, counters)| (offset(line), line, counters)).collect();
    };
    let of_line = |line: &'a SourceLine| (0..line.instructions).map(move |_| Some(line));
    let line_of = lines.of(number).iter().flat_map(of_line).chain(std::iter::repeat(None));
    let all = offsets.len() as u64;
    let shares = (0..).map(|place| counters.share(place..place + 1, all));
    let places = offsets.into_iter().zip(line_of).zip(shares);
    places.map(|((offset, line), counters)| (offset, line, counters)).collect()
}

/// The offsets of a block's instructions; none if they are not those that the processor executed, as for 32-bit code.
fn offsets(block: &Block) -> Option<Vec<u64>> {
    let mut decoder = Decoder::with_ip(64, &block.code, block.address, DecoderOptions::NONE);
    let mut offsets = Vec::new();
    while decoder.can_decode() {
        offsets.push(decoder.position() as u64);
        if decoder.decode().is_invalid() {
            return None;
        }
    }
    (offsets.len() == usize::from(block.instructions)).then_some(offsets)
}

fn name(part: &Part) -> Name {
    let (module, name) = function_name(&part.function);
    (format!("{}/{module}", part.who), name)
}

/// Whole numbers for cycles, whose sum is the sum of the cycles rounded once: an instruction may cost less than a cycle.
#[derive(Default)]
struct Rounding {
    cycles: f64,
    written: f64,
}

impl Rounding {
    fn next(&mut self, cycles: f64) -> f64 {
        self.cycles += cycles;
        let next = self.cycles.round() - self.written;
        self.written += next;
        next
    }
}

fn write(
    summary: &Summary<'_>,
    functions: &BTreeMap<Name, Costed>,
    objects: Option<&Objects>,
) -> String {
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
    let object = |name: &str| {
        let path = objects.and_then(|objects| objects.path(name));
        path.map_or(name.to_owned(), |path| path.display().to_string())
    };
    let mut cycles = Rounding::default();
    for (function, costed) in functions {
        let own = costed.file;
        let (in_object, name) = (object(&function.0), &function.1);
        let _ = writeln!(text, "\nob={in_object}\nfl={}\nfn={name}", known(own));
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
            let cycles = cycles.next(summary.costs().cycles(counters));
            let _ = writeln!(text, "{}", counts(*position, counters, cycles));
        }
        for call in &costed.calls {
            change(&mut text, call.site);
            let (callee, name) = (object(&call.callee.0), &call.callee.1);
            let _ =
                writeln!(text, "cob={callee}\ncfl={}\ncfn={name}", known(file_of(&call.callee)));
            let Position { address, line, .. } = call.entry;
            let _ = writeln!(text, "calls={} {address:#x} {line}", call.times);
            let cycles = summary.costs().cycles(&call.inclusive);
            let _ = writeln!(text, "{}", counts(call.site, &call.inclusive, cycles));
        }
    }
    text
}

/// A line of costs.
fn counts(position: Position, counters: &Counters, cycles: f64) -> String {
    let counts = EVENTS.map(|(_, _, count)| count(counters).to_string()).join(" ");
    let Position { address, line, .. } = position;
    format!("{address:#x} {line} {counts} {cycles:.0}")
}

#[cfg(test)]
mod tests {
    use scope_model::Costs;
    use scope_result::Recording;

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
        let text = text(&summary, None, &FilterArgs::default(), None);
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
        let text = text(&summary, Some(&graph), &FilterArgs::default(), None);
        assert!(text.contains("fl=src/main.c\nfn=main\n0x400010 7 0 "), "{text}");
        assert!(text.contains("\n0x400014 0 1 "), "an instruction without a line: {text}");
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

    /// What `objdump` shows of a file: the instructions by address, and the functions.
    fn disassembled(path: &str) -> (BTreeMap<u64, String>, Vec<String>) {
        let arguments = ["-C", "-d", "--no-show-raw-insn", path];
        let output = std::process::Command::new("objdump").args(arguments).output();
        let output = output.expect("objdump, of binutils");
        assert!(output.status.success(), "{output:?}");
        let (mut instructions, mut functions) = (BTreeMap::new(), Vec::new());
        for line in String::from_utf8(output.stdout).expect("text").lines() {
            if let Some((address, instruction)) = line.split_once(":\t") {
                let address = u64::from_str_radix(address.trim(), 16).expect("an address");
                instructions.insert(address, instruction.trim().to_owned());
            } else if let Some((_, name)) = line.split_once(" <") {
                functions.push(name.trim_end_matches(">:").to_owned());
            }
        }
        (instructions, functions)
    }

    #[test]
    fn objdump_finds_the_instructions_in_the_files_of_objects() {
        let folder = lab::TempDir::new().unwrap();
        let recording = with_lines();
        let summary = Summary::new(&recording, Costs::default());
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let out = folder.path().join("calls.callgrind");
        let filter = FilterArgs::default();
        let objects = objects(&summary, &filter, &out).unwrap();
        objects.write().unwrap();
        let text = text(&summary, Some(&graph), &filter, Some(&objects));
        let (mut instructions, mut names) = (BTreeMap::new(), Vec::new());
        let mut positions = Vec::new();
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("ob=") {
                (instructions, names) = disassembled(path);
            } else if let Some(name) = line.strip_prefix("fn=") {
                assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
            } else if let Some(position) = line.strip_prefix("0x") {
                let address = position.split(' ').next().expect("an address");
                let address = u64::from_str_radix(address, 16).expect("hexadecimal");
                assert_eq!(
                    instructions.get(&address).map(String::as_str),
                    Some("nopl   0x0(%rax)")
                );
                positions.push(address);
            }
        }
        // Both instructions of each block.
        for block in &recording.blocks {
            assert!([0, 4].iter().all(|offset| positions.contains(&(block.address + offset))));
        }
        assert!(
            text.contains(&format!(
                "cob={}/machine-m\n",
                out.with_extension("callgrind.objects").display()
            )),
            "{text}"
        );
    }

    #[test]
    fn code_that_is_decoded_otherwise_is_counted_by_line() {
        let mut recording = with_lines();
        let whole = recording.blocks[2].total();
        let offsets_of = |recording: &Recording| -> Vec<u64> {
            let lines = SourceLines::new(recording);
            let places = places(&lines, 2, &recording.blocks[2], &whole);
            assert_eq!(places.iter().map(|(.., counters)| counters.instructions).sum::<u64>(), 10);
            places.iter().map(|(offset, ..)| *offset).collect()
        };
        // Two instructions with a line each, and a third one.
        recording.blocks[2].code = vec![0x90; 3];
        recording.blocks[2].instructions = 3;
        assert_eq!(offsets_of(&recording), [0, 1, 2]);
        recording.blocks[2].code = vec![0x90; 9];
        assert_eq!(offsets_of(&recording), [0, 4, 0]);
    }

    #[test]
    fn cycles_are_rounded_once() {
        let mut rounding = Rounding::default();
        let written: Vec<f64> = [0.4; 10].map(|cycles| rounding.next(cycles)).into();
        assert_eq!(written.iter().sum::<f64>(), 4.0);
        assert!(written.iter().all(|cycles| [0.0, 1.0].contains(cycles)), "{written:?}");
    }
}
