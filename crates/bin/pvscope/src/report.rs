//! `pvscope report`: a recording as tables, and as a page with plots.

mod page;
mod tables;
mod words;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use document::Document;
use page::page;
use report::Table;
use scope_model::Counters;
use scope_result::{FileLine, Recording};
use tables::{cells, tables, with_columns};
use words::{caveats, lead, provenance};

use crate::error::{Error, Result};
use crate::filter::FilterArgs;
use crate::model_args::CostArgs;
use crate::report_data::ReportData;
use crate::source_lines::{Place, SourceLines, without_lines};
use crate::summary::{Event, Summary, function_name};

pub use words::{model, sentence};

/// Arguments of `pvscope report`.
#[derive(Args)]
pub struct ReportArgs {
    /// A recording of `pvscope run`.
    file: PathBuf,
    /// Write a page with plots to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The number of functions to show, the most expensive first.
    #[arg(long, value_name = "N", default_value_t = 30)]
    top: usize,
    /// Print a JSON document with the counts of every function instead; its field `schema` names its form.
    #[arg(long, conflicts_with_all = ["csv", "html"])]
    json: bool,
    /// Print a line of comma-separated values for every function instead.
    #[arg(long, conflicts_with = "html")]
    csv: bool,
    /// Show the source lines of programs with debug information instead; misses are shared out over the lines of a block by their
    /// instructions.
    #[arg(long, conflicts_with_all = ["json", "csv", "html"])]
    lines: bool,
    /// Show the functions of programs with debug information as they were written instead, and where each was inlined.
    #[arg(long, conflicts_with_all = ["json", "csv", "html", "lines"])]
    inlines: bool,
    /// Order code by this, and show shares of it.
    #[arg(long, value_enum, default_value_t)]
    event: Event,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    costs: CostArgs,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let summary = Summary::new(&recording, args.costs.read(&recording.config)?);
    let summary = summary
        .only(|part| args.filter.selects(part))
        .of_owners(|who, mode| args.filter.selects_owner(who, mode))
        .weighed_by(args.event);
    if args.json {
        return show(&json(&ReportData::new(&summary, &args.filter))?);
    }
    if args.csv {
        return show(&ReportData::new(&summary, &args.filter).csv());
    }
    let bold = ::report::wants_bold();
    if args.lines || args.inlines {
        if recording.lines.is_empty() {
            return Err(without_lines());
        }
        let table = if args.lines { lines } else { inlines };
        let table = table(&summary, &args.filter, args.top);
        return show(&format!("{}\n\n{}", lead(&summary), table.render(bold)));
    }
    let mut text = format!("{}\n{}\n\n", lead(&summary), model(&summary));
    for (caption, table) in tables(&summary, args.top) {
        text += &format!("{caption}\n{}\n", table.render(bold));
    }
    text += &format!("{}\n{}\n", caveats(&summary), provenance(&recording.provenance));
    if let Some(path) = &args.html {
        let page = page(&summary, args.top);
        page.write(path)?;
        text += &format!("Report with plots: {}\n", path.display());
    }
    show(&text)
}

/// A document on several lines.
pub fn json(document: &impl Document) -> Result<String> {
    document::pretty(document).map_err(|error| Error::Usage(error.to_string()))
}

/// Prints a text. A reader that stops early, such as `head`, is no error.
pub fn show(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::path("standard output")),
    }
}

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
    use scope_model::{Costs, Counters};
    use scope_result::{Block, Recording, Work};

    use super::*;
    use crate::source_lines::tests::recording;

    #[test]
    fn without_frames_counts_are_totals_and_the_report_says_so() {
        let counters = Counters { instructions: 200, ..Counters::default() };
        let block = Block { counters: vec![(0, counters)], ..Block::at(0x40_0000) };
        let work = |frames| Work {
            what: "work".to_owned(),
            frames,
            bytes: 100 * frames,
            ..Work::default()
        };
        let text = |frames| {
            let recording = Recording {
                work: work(frames),
                blocks: vec![block.clone()],
                ..Recording::default()
            };
            let summary = Summary::new(&recording, Costs::default());
            let captions = tables(&summary, 1).into_iter().map(|(caption, _)| caption);
            format!("{}\n{}", lead(&summary), captions.collect::<Vec<_>>().join("\n"))
        };
        let none = text(0);
        assert!(none.contains("no frames were counted, so all counts are totals: 200"), "{none}");
        assert!(none.contains("In total, by who works") && !none.contains("frame,"), "{none}");
        let some = text(2);
        assert!(some.contains("A frame takes 100 instructions"), "{some}");
        assert!(some.contains("L2 misses per frame"), "{some}");
    }

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
