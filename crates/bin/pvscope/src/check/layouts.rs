//! The sections of pvnet that layouts put elsewhere, by its file.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use scope_model::Section;
use scope_recorder::{EntryKind, LayoutPlan, PlacedSection, disjoint};
use scope_symbols::{Program, Symbols};
use sha2::{Digest as _, Sha256};

use crate::entries::entered;
use crate::error::{Error, Result};
use crate::guest_report::GuestReport;
use crate::image_symbols::ImageSymbols;

/// The program's place in the machine.
pub const PROGRAM: &str = "/usr/local/bin/pvnet-lab";
/// Where Linux loads a position-independent program without address space randomisation.
const BASE: u64 = 0x5555_5555_4000;
/// The end of the stack of a process, and the most that it grows to.
const STACK_END: u64 = 0x7fff_ffff_f000;
const STACK: u64 = 8 << 20;
/// The most that the heap grows to.
const HEAP: u64 = 256 << 20;
/// The alignment of functions, of allocations and of what functions keep on the stack.
const ALIGN: u64 = 16;
/// The alignment of segments of data: what lies in them keeps its place in a line.
const SEGMENT_ALIGN: u64 = 64;
const PAGE: u64 = 4096;

/// The plan for the program's file on a machine with these images.
pub fn plan(path: &Path, symbols: &ImageSymbols) -> Result<LayoutPlan> {
    let file = std::fs::read(path).map_err(Error::path(path))?;
    let program = Program::parse("pvnet-lab", file);
    let program = program.map_err(|cause| Error::Symbols { path: path.to_owned(), cause })?;
    let entries = |kind| symbols.kernel.iter().flat_map(|of| entered(of, kind)).collect();
    Ok(LayoutPlan {
        code: functions(program.symbols()),
        data: segments(&program.data()),
        interrupts: entries(EntryKind::Interrupt),
        exceptions: entries(EntryKind::Exception),
    })
}

/// Checks that the program was where the plan has it.
pub fn check(report: &GuestReport) -> Result<()> {
    let maps = report.domains.values().flat_map(|domain| &domain.processes);
    let own = maps.flat_map(|process| process.maps.lines()).filter(|line| line.ends_with(PROGRAM));
    let starts: Vec<u64> =
        own.filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok()).collect();
    match starts.iter().min() {
        Some(start) if (BASE..BASE + (1 << 30)).contains(start) => Ok(()),
        found => Err(Error::Machine {
            what: "pvnet-lab was not loaded where its layouts have it".to_owned(),
            said: format!(": {found:x?}"),
        }),
    }
}

/// Each function, up to the next one.
fn functions(symbols: &Symbols) -> Vec<PlacedSection> {
    let mut starts: Vec<(u64, &str)> =
        symbols.iter().map(|symbol| (symbol.start, symbol.name)).collect();
    starts.dedup_by_key(|(start, _)| *start);
    let ends = starts.iter().skip(1).map(|(start, _)| *start);
    let ends = ends.chain(symbols.ranges().last().map(|range| range.end));
    let mut known = HashMap::<&str, u64>::new();
    let placed = starts.iter().zip(ends).map(|((start, name), end)| {
        // Instances of one generic function have the same name.
        let number = known.entry(name).or_default();
        *number += 1;
        let section =
            Section { seed: seed(name, *number), bytes: end.saturating_sub(*start), align: ALIGN };
        PlacedSection { start: BASE + start, section }
    });
    disjoint(placed.collect())
}

/// Each segment of data in whole pages, the heap behind them and the stack.
fn segments(segments: &[Range<u64>]) -> Vec<PlacedSection> {
    let mut placed = Vec::new();
    let mut last = 0;
    let mut add = |name: &str, range: Range<u64>, align| {
        let section = Section { seed: seed(name, 0), bytes: range.end - range.start, align };
        placed.push(PlacedSection { start: range.start, section });
    };
    for (number, segment) in segments.iter().enumerate() {
        let start = (BASE + segment.start) / PAGE * PAGE;
        last = (BASE + segment.end).next_multiple_of(PAGE);
        add(&format!("segment {number}"), start..last, SEGMENT_ALIGN);
    }
    let heap = last.max(BASE + PAGE);
    add("heap", heap..heap + HEAP, ALIGN);
    add("stack", STACK_END - STACK..STACK_END, ALIGN);
    placed
}

/// What places are drawn from: the same for a name in every version.
fn seed(name: &str, number: u64) -> u64 {
    let digest = Sha256::new().chain_update(name).chain_update(number.to_le_bytes()).finalize();
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(maps: &str) -> GuestReport {
        GuestReport::parse(&format!("@domain 0\n@process 7 pvnet\n{maps}\n"))
    }

    #[test]
    fn sections_lie_apart_and_have_the_same_seeds_in_each_version() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let program = Program::parse("pvnet", own).expect("ELF");
        let code = functions(program.symbols());
        assert!(code.len() > 1000, "{}", code.len());
        let data = segments(&program.data());
        assert!(data.len() >= 4, "{data:x?}");
        for sections in [&code, &data] {
            let ends = sections.iter().map(|placed| placed.start + placed.section.bytes);
            let starts = sections.iter().skip(1).map(|placed| placed.start);
            assert!(ends.zip(starts).all(|(end, next)| end <= next));
        }
        assert!(data.iter().all(|placed| placed.start.is_multiple_of(PAGE)));
        assert_eq!(seed("drop_in_place", 2), seed("drop_in_place", 2));
        assert_ne!(seed("drop_in_place", 2), seed("drop_in_place", 1));
    }

    #[test]
    fn a_program_that_lies_elsewhere_is_refused() {
        let line =
            |start: u64| format!("{start:x}-{:x} r-xp 00001000 00:02 37 {PROGRAM}", start + 0x1000);
        assert!(check(&report(&line(BASE + 0x1000))).is_ok());
        let message = check(&report(&line(0x5600_0000_0000))).unwrap_err().to_string();
        assert!(message.contains("560000000000"), "{message}");
        assert!(check(&report("")).is_err());
    }
}
