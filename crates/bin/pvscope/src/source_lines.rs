//! Shares out what blocks count over their source lines.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use scope_model::Counters;
use scope_result::{FileLine, Inlined, Recording, SourceLine};

use crate::error::Error;
use crate::filter::FilterArgs;
use crate::summary::Part;

/// The source lines of a recording, by block.
pub struct SourceLines<'a> {
    recording: &'a Recording,
    by_block: HashMap<u32, Range<usize>>,
}

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The function as it is in the program, and who executes it.
    pub part: Part,
    /// The functions that were inlined there, the outermost first.
    pub inlined: Vec<Inlined>,
    pub line: FileLine,
}

/// A recording without source lines.
pub fn without_lines() -> Error {
    Error::Usage(
        "this recording has no source lines: it has no program with debug information. The workloads with pvnet have one, and \
         --program PATH=FILE gives one of your own machine"
            .to_owned(),
    )
}

impl<'a> SourceLines<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let mut by_block = HashMap::<u32, Range<usize>>::new();
        for (place, line) in recording.lines.iter().enumerate() {
            by_block.entry(line.block).or_insert(place..place).end = place + 1;
        }
        Self { recording, by_block }
    }

    /// The lines of a block, in the order of its code.
    pub fn of(&self, block: u32) -> &'a [SourceLine] {
        let range = self.by_block.get(&block).cloned().unwrap_or_default();
        self.recording.lines.get(range).unwrap_or_default()
    }

    /// The counts of a block, shared out over its parts with a line each, and over the rest. The instructions of a part are its own; misses
    /// and events are shared out by instructions.
    pub fn parts(
        &self,
        block: u32,
        counters: &Counters,
    ) -> Vec<(Option<&'a SourceLine>, Counters)> {
        let all = self.recording.blocks.get(block as usize).map_or(0, |block| block.instructions);
        let (lines, all) = (self.of(block), u64::from(all));
        let mut done = 0;
        let mut parts = Vec::new();
        for line in lines {
            let end = (done + u64::from(line.instructions)).min(all);
            parts.push((Some(line), counters.share(done..end, all)));
            done = end;
        }
        if parts.is_empty() {
            parts.push((None, *counters));
        } else if done < all {
            parts.push((None, counters.share(done..all, all)));
        }
        parts
    }

    /// The counts of every place that the filter selects.
    pub fn places(&self, filter: &FilterArgs) -> BTreeMap<Place, Counters> {
        let mut places = BTreeMap::<Place, Counters>::new();
        for number in self.by_block.keys() {
            let Some(block) = self.recording.blocks.get(*number as usize) else { continue };
            for (domain, counters) in &block.counters {
                let part = Part::of(self.recording, block, *domain);
                if !filter.selects(&part) {
                    continue;
                }
                for (line, counters) in self.parts(*number, counters) {
                    let Some(line) = line else { continue };
                    let (part, inlined) = (part.clone(), line.inlined.clone());
                    let place = Place { part, inlined, line: line.line };
                    *places.entry(place).or_default() += &counters;
                }
            }
        }
        places
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::call_graph::tests::recording as with_calls;

    /// `main` is one line; `write` has an inlined function `put`, of which another file's `copy_byte` is inlined.
    pub fn recording() -> Recording {
        let mut recording = with_calls();
        recording.files = vec!["src/main.c".to_owned(), "include/put.h".to_owned()];
        recording.inlined = vec!["put".to_owned(), "copy_byte".to_owned()];
        let at = |file, line| FileLine { file, line };
        let line = |block, offset, line, inlined: &[Inlined]| SourceLine {
            block,
            offset,
            instructions: 1,
            line,
            inlined: inlined.to_vec(),
        };
        let put = Inlined { name: 0, call: at(0, 21) };
        let copy = Inlined { name: 1, call: at(1, 5) };
        recording.lines = vec![
            line(1, 0, at(0, 7), &[]),
            line(2, 0, at(0, 20), &[]),
            line(2, 4, at(1, 9), &[put, copy]),
        ];
        recording
    }

    #[test]
    fn the_parts_of_a_block_sum_up_to_it() {
        let recording = recording();
        let lines = SourceLines::new(&recording);
        for (number, block) in (0..).zip(&recording.blocks) {
            let whole = block.total();
            let parts = lines.parts(number, &whole);
            let sum: u64 = parts.iter().map(|(_, counters)| counters.instructions).sum();
            assert_eq!(sum, whole.instructions, "{number}");
            let known = parts.iter().filter(|(line, _)| line.is_some()).count();
            assert_eq!(known, [0, 1, 2, 0, 0, 0][number as usize]);
        }
        // The second instruction of `main` has no line.
        assert_eq!(lines.parts(1, &recording.blocks[1].total()).len(), 2);
        let places = lines.places(&FilterArgs::default());
        assert_eq!(places.len(), 3);
        let of = |line: u32| places.iter().find(|(place, _)| place.line.line == line).unwrap();
        assert_eq!((of(20).1.instructions, of(9).1.instructions), (5, 5));
        assert_eq!(of(9).0.part.function.name, "write");
    }
}
