//! The tables of source lines, and of inlined functions.

use std::collections::BTreeMap;

use ::report::Table;
use scope_model::Counters;
use scope_result::{FileLine, Recording};

use super::tables::{cells, with_columns};
use crate::filter::FilterArgs;
use crate::source_lines::{Place, SourceLines};
use crate::summary::{Summary, function_name};

/// The function that a line was written in: the innermost of those that were inlined, or the function itself.
fn written_in(recording: &Recording, place: &Place) -> String {
    let innermost = place.inlined.last();
    let name = innermost.and_then(|inlined| recording.inlined.get(inlined.name as usize));
    name.cloned().unwrap_or_else(|| function_name(&place.part.function).1)
}

/// A line for tables: the file without most of its folders.
fn short(recording: &Recording, line: FileLine) -> String {
    let file = recording.files.get(line.file as usize).map_or("", String::as_str);
    let start = file.rmatch_indices('/').nth(2).map_or(0, |(place, _)| place + 1);
    format!("{}:{}", &file[start..], line.line)
}

/// The lines with the most.
pub fn lines(summary: &Summary<'_>, filter: &FilterArgs, top: usize) -> Table {
    let recording = summary.recording;
    let table = Table::new().left("who").left("module").left("function").left("line");
    rows(summary, filter, top, with_columns(summary, table), |place| {
        let (module, _) = function_name(&place.part.function);
        let who = place.part.who.to_string();
        vec![who, module, written_in(recording, place), short(recording, place.line)]
    })
}

/// The functions as they were written, with the most first: what each takes itself, and into which function it was inlined.
pub fn inlines(summary: &Summary<'_>, filter: &FilterArgs, top: usize) -> Table {
    let recording = summary.recording;
    let table = Table::new().left("who").left("module").left("function").left("inlined into");
    rows(summary, filter, top, with_columns(summary, table), |place| {
        let (module, outer) = function_name(&place.part.function);
        let into = if place.inlined.is_empty() { String::new() } else { outer };
        vec![place.part.who.to_string(), module, written_in(recording, place), into]
    })
}

/// Adds the rows with the most weight; places with the same names are one.
fn rows(
    summary: &Summary<'_>,
    filter: &FilterArgs,
    top: usize,
    table: Table,
    names: impl Fn(&Place) -> Vec<String>,
) -> Table {
    let mut sums = BTreeMap::<Vec<String>, Counters>::new();
    for (place, counters) in SourceLines::new(summary.recording).places(filter) {
        *sums.entry(names(&place)).or_default() += &counters;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(_, one), (_, other)| summary.weight(other).total_cmp(&summary.weight(one)));
    sums.into_iter().take(top).fold(table, |mut table, (names, counters)| {
        table.row(names.into_iter().chain(cells(summary, &counters)));
        table
    })
}

#[cfg(test)]
mod tests {
    use scope_model::Costs;

    use super::*;
    use crate::source_lines::tests::recording;

    #[test]
    fn lines_are_those_where_code_was_written() {
        let recording = recording();
        let costs = Costs { instruction: 1.0, ..Costs::default() };
        let summary = Summary::new(&recording, costs);
        let names = |table: &Table| -> Vec<String> {
            table.rows().iter().map(|row| row[1..4].join(" ")).collect()
        };
        let filter = FilterArgs::default();
        let expected =
            ["m copy_byte include/put.h:9", "m write src/main.c:20", "m main src/main.c:7"];
        assert_eq!(names(&lines(&summary, &filter, 9)), expected);
        let expected = ["m copy_byte write", "m write ", "m main "];
        assert_eq!(names(&inlines(&summary, &filter, 9)), expected);
        assert_eq!(lines(&summary, &filter, 1).rows().len(), 1);
    }
}
