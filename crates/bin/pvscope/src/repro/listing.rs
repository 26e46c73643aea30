//! The code that ran, function by function, with its references and misses, as in Chadha's Figure 4.

use std::ops::Range;

use report::Table;
use schemars::JsonSchema;
use scope_result::Block;
use serde::Serialize;

use crate::packet::flow::Flow;
use crate::summary::{function_name, plain};

/// The code that ran, line by line.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Listing {
    /// Its title.
    pub title: String,
    /// Its lines.
    pub lines: Vec<ListingLine>,
}

/// A line of a listing: a function, until another one runs.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct ListingLine {
    /// Instructions since the event of the listing; negative before it.
    pub since: i64,
    /// The address.
    pub address: u64,
    /// The domain, or the hypervisor.
    pub who: String,
    /// The module of the code.
    pub module: String,
    /// The function.
    pub function: String,
    /// Its instructions.
    pub instructions: u64,
    /// Lines of code that are looked up in L1I, and lines of data read and written in L1D: means of the block's executions.
    pub references: [f64; 3],
    /// Lines that L1 misses, of code and data: lookups in L2.
    pub l1_misses: u64,
    /// Those that L2 misses.
    pub l2_misses: u64,
    /// Translations that the ITLB misses.
    pub itlb_misses: u64,
    /// Translations that the DTLB misses.
    pub dtlb_misses: u64,
}

/// The lines of these visits; the event is at an instruction of the flow.
pub fn of(title: impl Into<String>, flow: &Flow<'_>, visits: Range<usize>, event: u64) -> Listing {
    let mut lines = Vec::<ListingLine>::new();
    let visits = flow.visits.get(visits).unwrap_or_default();
    for (n, visit) in visits.iter().enumerate() {
        // A function's work before the event is not in its line after it.
        if n == 0 || visit.changed || visit.at == event {
            let function = flow.function(visit.block).cloned().unwrap_or_default();
            let (module, function) = function_name(&function);
            lines.push(ListingLine {
                since: visit.at.cast_signed() - event.cast_signed(),
                address: visit.block.address,
                who: flow.who(visit).to_string(),
                module,
                function: plain(&function).to_owned(),
                ..ListingLine::default()
            });
        }
        let Some(line) = lines.last_mut() else { continue };
        let tally = visit.tally();
        line.instructions += tally.instructions;
        line.references
            .iter_mut()
            .zip(references(visit.block))
            .for_each(|(sum, more)| *sum += more);
        line.l1_misses += tally.l1;
        line.l2_misses += tally.l2;
        line.itlb_misses += tally.itlb;
        line.dtlb_misses += tally.dtlb;
    }
    Listing { title: title.into(), lines }
}

/// Lines of code, reads and writes of an execution.
fn references(block: &Block) -> [f64; 3] {
    let total = block.total();
    let executions = total.executions.max(1) as f64;
    [total.l1i, total.reads, total.writes].map(|count| count as f64 / executions)
}

impl Listing {
    pub fn table(&self) -> Table {
        let columns = Table::new().right("since").left("address").left("who").left("module");
        let columns = columns.left("function").right("instructions").right("L1 code");
        let columns = columns.right("reads").right("writes").right("L1 miss").right("L2 hit");
        let table = columns.right("L2 miss").right("DTLB miss").right("ITLB miss");
        self.lines.iter().fold(table, |mut table, line| {
            let [code, reads, writes] = line.references.map(|count| format!("{count:.0}"));
            table.row([
                line.since.to_string(),
                format!("{:x}", line.address),
                line.who.clone(),
                line.module.clone(),
                line.function.clone(),
                line.instructions.to_string(),
                code,
                reads,
                writes,
                line.l1_misses.to_string(),
                line.l1_misses.saturating_sub(line.l2_misses).to_string(),
                line.l2_misses.to_string(),
                line.dtlb_misses.to_string(),
                line.itlb_misses.to_string(),
            ]);
            table
        })
    }
}

#[cfg(test)]
mod tests {
    use scope_model::Counters;
    use scope_result::{Function, Recording, Step};

    use super::*;

    #[test]
    fn a_line_is_a_function_with_the_references_of_its_blocks() {
        let total = Counters { executions: 2, l1i: 4, reads: 6, writes: 2, ..Counters::default() };
        let block = |function| Block {
            instructions: 5,
            function,
            counters: vec![(0, total)],
            ..Block::at(0xffff_ffff_8100_0000 + u64::from(function) * 4096)
        };
        let step = |block| Step { block, l1: 3, l2: 1, dtlb: 2, ..Step::default() };
        let recording = Recording {
            functions: ["one", "two"].map(|name| Function::new("m", name)).into(),
            blocks: vec![block(0), block(1)],
            flow: vec![step(0), step(0), step(1), step(1)],
            ..Recording::default()
        };
        let flow = Flow::new(&recording);
        let listing = of("A title", &flow, 0..4, 15);
        let lines: Vec<_> =
            listing.lines.iter().map(|line| (line.since, line.instructions)).collect();
        assert_eq!(lines, [(-15, 10), (-5, 5), (0, 5)]);
        assert_eq!(listing.lines[0].references, [4.0, 6.0, 2.0]);
        assert_eq!(listing.table().rows()[0][9..], ["6", "4", "2", "4", "0"]);
    }
}
