//! A report as a page with plots.

use ::report::html::{BarChart, LineChart, Report};
use ::report::{Stats, count};
use scope_model::{L2_BYTES, Policy, TLB_ENTRIES};
use scope_result::{EventKind, Profile};

use super::tables::tables;
use super::words::{caveats, lead, model, provenance, sentence, unit};
use crate::summary::{Summary, mode_name};

pub fn page(summary: &Summary<'_>, top: usize) -> Report {
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
    page.paragraph(&provenance(&summary.recording.provenance));
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
    let chart = Policy::ALL.iter().fold(chart, |chart, policy| {
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
