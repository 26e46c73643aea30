//! `pvscope report`: a recording as tables, and as a page with plots.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use ::report::html::{BarChart, LineChart, Report};
use ::report::{Stats, Table, count, human};
use clap::Args;
use scope_model::{CostEvent, Counters, L2_BYTES, POLICIES, TLB_ENTRIES};
use scope_result::{Domain, EventKind, Profile};

use crate::error::{Error, Result};
use crate::filter::FilterArgs;
use crate::model_args::CostArgs;
use crate::report_data::ReportData;
use crate::summary::{Summary, function_name, mode_name};

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
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    costs: CostArgs,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let summary = Summary::new(&recording, args.costs.read(&recording.config)?);
    let summary = summary.only(|part| args.filter.selects(part));
    if args.json {
        let text = serde_json::to_string_pretty(&ReportData::new(&summary));
        return show(&format!("{}\n", text.map_err(|error| Error::Usage(error.to_string()))?));
    }
    if args.csv {
        return show(&ReportData::new(&summary).csv());
    }
    let mut text = format!("{}\n{}\n\n", lead(&summary), model(&summary));
    for (caption, table) in tables(&summary, args.top) {
        text += &format!("{caption}\n{}\n", table.render(std::io::stdout().is_terminal()));
    }
    text += &format!("{}\n", caveats(&summary));
    if let Some(path) = &args.html {
        let page = page(&summary, args.top);
        page.write(path).map_err(|error| Error::Usage(error.to_string()))?;
        text += &format!("Report with plots: {}\n", path.display());
    }
    show(&text)
}

/// Prints a text. A reader that stops early, such as `head`, is no error.
pub fn show(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::path("standard output")),
    }
}

/// A summary in a sentence or two.
fn lead(summary: &Summary<'_>) -> String {
    let work = &summary.recording.work;
    let cycles = summary.cycles(&summary.total);
    let instructions = summary.total.instructions as f64;
    if work.frames == 0 {
        return format!(
            "{}: no frames were counted, so all counts are totals: {} instructions and {} model cycles.",
            work.what,
            human(instructions),
            human(cycles),
        );
    }
    let parts = if work.interface.is_empty() {
        " (by the guest's own counters, read before the marks and after them)".to_owned()
    } else {
        format!(
            ", {} with {} bytes of payload and {} acknowledgements, at the driver of {}",
            count(work.data_frames),
            count(work.payload),
            count(work.acks),
            work.interface
        )
    };
    format!(
        "{}: {} frames of {} bytes on average{parts}.\nA frame takes {} instructions and {} model cycles; 10⁹ bytes take {} × 10⁹ \
         instructions and {} × 10⁹ model cycles.",
        work.what,
        count(work.frames),
        human(work.bytes as f64 / summary.frames()),
        human(summary.per_frame(instructions)),
        human(summary.per_frame(cycles)),
        human(summary.per_gigabyte(instructions) / 1e9),
        human(summary.per_gigabyte(cycles) / 1e9),
    )
}

/// The modelled processor and the costs.
pub fn model(summary: &Summary<'_>) -> String {
    let config = &summary.recording.config;
    format!(
        "Model {}: {config}. Model cycles, which rank code and are no time: {}.",
        config.preset.name(),
        summary.costs()
    )
}

/// The unit of counts: per frame, or in total if no frames were counted.
fn unit(summary: &Summary<'_>) -> &'static str {
    if summary.recording.work.frames == 0 { "in total" } else { "per frame" }
}

/// The text with a capital first letter.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The limits of the recording's validity.
fn caveats(summary: &Summary<'_>) -> String {
    let checks = &summary.recording.checks;
    let unknown = summary.by(|part| part.function.module.is_empty());
    let unknown = unknown.iter().find(|(is, _)| *is).map_or(0, |(_, sum)| sum.instructions);
    let share = |count: u64| 100.0 * count as f64 / summary.total.instructions.max(1) as f64;
    let mut text = format!(
        "Of {} instructions {:.2} % are in code without a known name. ",
        count(summary.total.instructions),
        share(unknown)
    );
    text += &format!("{} accesses could not be translated. ", checks.untranslated);
    if checks.unknown_switches > 0 {
        text += &format!(
            "{} switches were to a domain whose number could not be read: this Xen keeps it at another offset. ",
            checks.unknown_switches
        );
    }
    if let Some(clock) = checks.clock {
        let (counted, executed) = (summary.recording.instructions, clock);
        text += &match counted.checked_sub(executed) {
            Some(more) => format!(
                "{} of them are {:.3} % more than QEMU's clock counted. ",
                count(more),
                share(more)
            ),
            None => format!(
                "QEMU's clock counted {} more, idle time included. ",
                count(executed.saturating_sub(counted))
            ),
        };
    }
    let has_xen = summary.recording.domains.iter().any(|domain| matches!(domain, Domain::Xen(_)));
    if has_xen && checks.new_spaces == 0 {
        text += "No write of CR3 was seen in Xen's switch_cr3_cr4, so all policies are flushed as the processor is when Xen \
                 switches. ";
    }
    if checks.not_frames > 0 {
        text += &format!("{} calls of drivers' functions had no frame. ", checks.not_frames);
    }
    if checks.compared > 0 {
        text += &format!(
            "Of {} accesses {} differed from QEMU's own translation. ",
            checks.compared, checks.stale
        );
    }
    if summary.recording.events_lost > 0 {
        text += &format!("{} events were dropped. ", summary.recording.events_lost);
    }
    text.trim_end().to_owned()
}

const COLUMNS: [&str; 8] = [
    "% of cycles",
    "model cycles",
    "instructions",
    "L1I miss",
    "L1D miss",
    "L2 miss",
    "ITLB miss",
    "DTLB miss",
];

fn with_columns(table: Table) -> Table {
    COLUMNS.into_iter().fold(table, Table::right)
}

/// The cells of counts, per frame.
fn cells(summary: &Summary<'_>, counters: &Counters) -> Vec<String> {
    let all = summary.cycles(&summary.total);
    let cycles = summary.cycles(counters);
    let per_frame = |count: u64| human(summary.per_frame(count as f64));
    vec![
        format!("{:.1}", 100.0 * cycles / all.max(1.0)),
        human(summary.per_frame(cycles)),
        per_frame(counters.instructions),
        per_frame(counters.l1i_misses),
        per_frame(counters.read_misses + counters.write_misses),
        per_frame(counters.l2i_misses + counters.l2d_misses),
        per_frame(counters.itlb_misses),
        per_frame(counters.dtlb_misses),
    ]
}

fn tables(summary: &Summary<'_>, top: usize) -> [(String, Table); 6] {
    let mut domains = with_columns(Table::new().left("who").left("code"));
    for ((who, mode), counters) in summary.by(|part| (part.who.clone(), part.mode)) {
        let names = vec![who.to_string(), mode_name(mode).to_owned()];
        domains.row(names.into_iter().chain(cells(summary, &counters)));
    }
    let all = vec!["all".to_owned(), String::new()];
    domains.row(all.into_iter().chain(cells(summary, &summary.total)));

    let mut modules = with_columns(Table::new().left("who").left("module"));
    for ((who, module), counters) in
        summary.by(|part| (part.who.clone(), function_name(&part.function).0)).into_iter().take(top)
    {
        modules.row(vec![who.to_string(), module].into_iter().chain(cells(summary, &counters)));
    }

    let mut functions = with_columns(Table::new().left("who").left("module").left("function"));
    let by_function = summary.by(|part| (part.who.clone(), part.function.clone()));
    for ((who, function), counters) in by_function.into_iter().take(top) {
        let (module, name) = function_name(&function);
        let names = vec![who.to_string(), module, name];
        functions.row(names.into_iter().chain(cells(summary, &counters)));
    }
    let unit = unit(summary);
    let unit_first = sentence(unit);
    [
        (format!("{unit_first}, by who works:"), domains),
        ("By module:".to_owned(), modules),
        ("By function:".to_owned(), functions),
        (format!("L2 misses {unit}, by its size:"), l2(summary)),
        (format!("TLB misses {unit}, code and data, by entries and policy:"), tlb(summary)),
        ("Events:".to_owned(), events(summary)),
    ]
}

fn l2(summary: &Summary<'_>) -> Table {
    let table = Table::new().right("KiB").right("code").right("data").right("both");
    let sweep = &summary.sweep;
    let rows = L2_BYTES.iter().zip(sweep.l2i.iter().zip(&sweep.l2d));
    rows.filter(|(_, (code, data))| **code + **data > 0).fold(
        table,
        |mut table, (bytes, (code, data))| {
            let per_frame = |count: u64| human(summary.per_frame(count as f64));
            table.row([
                (bytes >> 10).to_string(),
                per_frame(*code),
                per_frame(*data),
                per_frame(code + data),
            ]);
            table
        },
    )
}

fn tlb(summary: &Summary<'_>) -> Table {
    let table = TLB_ENTRIES
        .iter()
        .fold(Table::new().left("policy"), |table, entries| table.right(entries.to_string()));
    let sweep = &summary.sweep;
    POLICIES.iter().fold(table, |mut table, policy| {
        let (code, data) = (&sweep.itlb[*policy as usize], &sweep.dtlb[*policy as usize]);
        if code.iter().chain(data).sum::<u64>() > 0 {
            let sums = code.iter().zip(data).map(|(code, data)| (code + data) as f64);
            let cells = sums.map(|sum| human(summary.per_frame(sum)));
            table.row(std::iter::once(policy.name().to_owned()).chain(cells));
        }
        table
    })
}

fn events(summary: &Summary<'_>) -> Table {
    let mut table = Table::new().left("event").right("total").right("per frame");
    for (what, events) in [
        ("switch to another domain", summary.events(|kind| matches!(kind, EventKind::Switch(_)))),
        ("write of CR3", summary.events(|kind| kind == EventKind::Cr3)),
        ("write of CR4", summary.events(|kind| kind == EventKind::Cr4)),
        ("invalidation of a page", summary.events(|kind| kind == EventKind::Invalidate)),
    ] {
        let per_frame = human(summary.per_frame(events as f64));
        table.row([what.to_owned(), count(events), per_frame]);
    }
    // The first three are those above, counted by their instructions.
    for event in CostEvent::ALL.into_iter().skip(3) {
        let events = summary.total.events[event as usize];
        let per_frame = human(summary.per_frame(events as f64));
        table.row([event.title().to_owned(), count(events), per_frame]);
    }
    let counters = &summary.total;
    for (what, misses) in [
        ("L1 miss in a row", counters.l1_sequential),
        ("L2 miss in a row", counters.l2_sequential),
        ("line from memory", counters.l3_misses),
        ("line from memory in a row", counters.l3_sequential),
        ("page walk", counters.page_walks),
    ] {
        let per_frame = human(summary.per_frame(misses as f64));
        table.row([what.to_owned(), count(misses), per_frame]);
    }
    table
}

fn page(summary: &Summary<'_>, top: usize) -> Report {
    let mut page = Report::new("Where a frame's cycles go");
    page.lead(&sentence(&lead(summary)));
    page.paragraph(&model(summary));
    let [domains, modules, functions, l2, tlb, events] = tables(summary, top);
    let no_chart = || Vec::new();
    let parts = [
        (domains, vec![by_who_chart(summary)]),
        (modules, no_chart()),
        (functions, no_chart()),
        (l2, vec![l2_chart(summary)]),
        (tlb, vec![tlb_chart(summary)]),
        (events, after_charts(summary)),
    ];
    for ((caption, table), charts) in parts {
        charts.iter().for_each(|(chart, caption)| {
            page.figure(&**chart, caption);
        });
        page.table(caption.trim_end_matches(':'), &table);
    }
    page.paragraph(&caveats(summary));
    page
}

type Figure = (Box<dyn ::report::html::Chart>, String);

fn by_who_chart(summary: &Summary<'_>) -> Figure {
    let mut bars =
        BarChart::new(format!("Model cycles {}, by who works", unit(summary)), "model cycles");
    for ((who, mode), counters) in summary.by(|part| (part.who.clone(), part.mode)) {
        let cycles = summary.per_frame(summary.cycles(&counters));
        bars = bars.bar(format!("{who}, {}", mode_name(mode)), Stats::single(cycles));
    }
    (Box::new(bars), "Cycles by domain and kind of code.".to_owned())
}

fn per_frame(summary: &Summary<'_>, counts: &[u64]) -> Vec<f64> {
    counts.iter().map(|count| summary.per_frame(*count as f64)).collect()
}

fn l2_chart(summary: &Summary<'_>) -> Figure {
    let sizes = L2_BYTES.map(|bytes| match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mebibytes => format!("{mebibytes} MiB"),
    });
    let sweep = &summary.sweep;
    let chart = LineChart::new(format!("L2 misses {}", unit(summary)), "size of L2", "misses")
        .steps(sizes)
        .values("code", per_frame(summary, &sweep.l2i))
        .values("data", per_frame(summary, &sweep.l2d));
    (Box::new(chart), "Where the curve is flat, a larger cache saves nothing.".to_owned())
}

fn tlb_chart(summary: &Summary<'_>) -> Figure {
    let entries = TLB_ENTRIES.map(|entries| entries.to_string());
    let title = format!("DTLB misses {}", unit(summary));
    let chart = LineChart::new(title, "entries", "misses").steps(entries);
    let chart = POLICIES.iter().fold(chart, |chart, policy| {
        let misses = per_frame(summary, &summary.sweep.dtlb[*policy as usize]);
        chart.values(policy.name(), misses)
    });
    (Box::new(chart), "What a larger TLB or another policy would save.".to_owned())
}

/// The fewest events whose average means anything.
const FEW: usize = 20;

fn after_charts(summary: &Summary<'_>) -> Vec<Figure> {
    let alike =
        |one: EventKind, other| std::mem::discriminant(&one) == std::mem::discriminant(&other);
    let known = summary.recording.after.iter().filter_map(|after| {
        let what = match after.kind {
            EventKind::Switch(_) => "a switch to another domain",
            EventKind::Invalidate => "the invalidation of a page",
            _ => return None,
        };
        let events = summary.events(|kind| alike(kind, after.kind));
        let caption = format!("The time after {what}, average of {} events.", count(events));
        let chart = || -> Figure { (Box::new(after_chart(what, &after.profile)), caption) };
        (events >= FEW as u64).then(chart)
    });
    known.collect()
}

fn after_chart(what: &str, profile: &Profile) -> LineChart {
    let average = |sums: &[u64]| -> Vec<(f64, f64)> {
        let steps = sums.iter().zip(&profile.events).enumerate();
        let points = steps.filter(|(_, (_, events))| **events > 0);
        points
            .map(|(n, (sum, events))| {
                (n as f64 * Profile::STEP as f64, *sum as f64 / *events as f64)
            })
            .collect()
    };
    let unit = format!("misses in {} instructions", Profile::STEP);
    LineChart::new(format!("Misses after {what}"), "instructions since", unit)
        .line("TLBs", average(&profile.tlb))
        .line("L2", average(&profile.l2))
}

#[cfg(test)]
mod tests {
    use scope_model::Costs;
    use scope_result::{Block, Mode, Recording, Work};

    use super::*;

    #[test]
    fn without_frames_counts_are_totals_and_the_report_says_so() {
        let counters = Counters { instructions: 200, ..Counters::default() };
        let block = Block {
            address: 0x40_0000,
            bytes: 4,
            instructions: 1,
            mode: Mode::User,
            space: 0,
            domain: 0,
            function: 0,
            counters: vec![(0, counters)],
        };
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
}
