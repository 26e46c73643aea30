//! The format of callgrind (`docs/callgrind-format` of Valgrind), which KCachegrind shows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scope_model::Counters;

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

/// The counts of every block. A function of two domains is two functions, in objects of different names.
pub fn text(summary: &Summary<'_>, filter: &FilterArgs) -> String {
    let recording = summary.recording;
    let mut positions = BTreeMap::<(String, String), BTreeMap<u64, Counters>>::new();
    for block in &recording.blocks {
        let function =
            recording.functions.get(block.function as usize).cloned().unwrap_or_default();
        for (domain, counters) in &block.counters {
            let who = who(recording.domains.get(usize::from(*domain)), block.mode);
            let part = Part { who, mode: block.mode, function: function.clone() };
            if filter.selects(&part) && counters.executions > 0 {
                let (module, name) = function_name(&part.function);
                let object = format!("{}/{module}", part.who);
                let of_function = positions.entry((object, name)).or_default();
                *of_function.entry(block.address).or_default() += counters;
            }
        }
    }
    let mut text =
        "# callgrind format\nversion: 1\ncreator: pvscope\npositions: instr\n".to_owned();
    let _ = writeln!(text, "cmd: {}", recording.work.what);
    for (name, description, _) in EVENTS {
        let _ = writeln!(text, "event: {name} : {description}");
    }
    let _ = writeln!(text, "event: Cycles : Model cycles");
    let names = EVENTS.map(|(name, ..)| name).join(" ");
    let _ = writeln!(text, "events: {names} Cycles");
    for ((object, function), blocks) in &positions {
        let _ = writeln!(text, "\nob={object}\nfl=??\nfn={function}");
        for (address, counters) in blocks {
            let counts = EVENTS.map(|(_, _, count)| count(counters).to_string()).join(" ");
            let _ = writeln!(text, "{address:#x} {counts} {:.0}", summary.cycles(counters));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use scope_model::Costs;

    use super::*;
    use crate::export::tests::recording;

    #[test]
    fn every_block_has_a_position_and_all_instructions_are_there() {
        let recording = recording();
        let summary = Summary::new(&recording, Costs::default());
        let text = text(&summary, &FilterArgs::default());
        let positions: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("0x"))
            .map(|line| line.split(' ').collect())
            .collect();
        assert_eq!(positions.len(), 3);
        assert!(positions.iter().all(|cells| cells.len() == EVENTS.len() + 2), "{text}");
        let instructions = positions.iter().filter_map(|cells| cells[1].parse::<u64>().ok());
        assert_eq!(instructions.sum::<u64>(), recording.instructions);
        assert!(text.contains("ob=Xen/xen\nfl=??\nfn=do_iret\n0xffff82d040000000 10 "), "{text}");
        assert!(text.contains("ob=domU 1/unknown\nfl=??\nfn=unknown\n"), "{text}");
    }
}
