//! The tables of a report.

use ::report::{Table, count, human};
use scope_model::{CostEvent, Counters, L2_BYTES, Policy, TLB_ENTRIES};
use scope_result::EventKind;

use super::words::{sentence, unit};
use crate::summary::{Summary, function_name, mode_name};

const COLUMNS: [&str; 7] =
    ["model cycles", "instructions", "L1I miss", "L1D miss", "L2 miss", "ITLB miss", "DTLB miss"];

/// Adds the columns of [`cells`] to a table.
pub fn with_columns(summary: &Summary<'_>, table: Table) -> Table {
    let table = table.right(format!("% of {}", summary.event().name()));
    COLUMNS.into_iter().fold(table, Table::right)
}

/// The cells of counts, per frame.
pub fn cells(summary: &Summary<'_>, counters: &Counters) -> Vec<String> {
    let all = summary.weight(&summary.total);
    let cycles = summary.cycles(counters);
    let per_frame = |count: u64| human(summary.per_frame(count as f64));
    vec![
        format!("{:.1}", 100.0 * summary.weight(counters) / all.max(1.0)),
        human(summary.per_frame(cycles)),
        per_frame(counters.instructions),
        per_frame(counters.l1i_misses),
        per_frame(counters.read_misses + counters.write_misses),
        per_frame(counters.l2i_misses + counters.l2d_misses),
        per_frame(counters.itlb_misses),
        per_frame(counters.dtlb_misses),
    ]
}

pub fn tables(summary: &Summary<'_>, top: usize) -> [(String, Table); 6] {
    let mut domains = with_columns(summary, Table::new().left("who").left("code"));
    for ((who, mode), counters) in summary.by(|part| (part.who.clone(), part.mode)) {
        let names = vec![who.to_string(), mode_name(mode).to_owned()];
        domains.row(names.into_iter().chain(cells(summary, &counters)));
    }
    let all = vec!["all".to_owned(), String::new()];
    domains.row(all.into_iter().chain(cells(summary, &summary.total)));

    let mut modules = with_columns(summary, Table::new().left("who").left("module"));
    for ((who, module), counters) in
        summary.by(|part| (part.who.clone(), function_name(&part.function).0)).into_iter().take(top)
    {
        modules.row(vec![who.to_string(), module].into_iter().chain(cells(summary, &counters)));
    }

    let mut functions =
        with_columns(summary, Table::new().left("who").left("module").left("function"));
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
        (format!("TLB misses {unit}, by policy and entries:"), tlb(summary)),
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
    let table = Table::new().left("policy").left("of");
    let mut table =
        TLB_ENTRIES.iter().fold(table, |table, entries| table.right(entries.to_string()));
    let sweep = &summary.sweep;
    for policy in Policy::ALL {
        for (side, misses) in [("code", &sweep.itlb), ("data", &sweep.dtlb)] {
            let misses = misses[policy as usize];
            if misses.iter().sum::<u64>() > 0 {
                let names = [policy.name(), side].map(str::to_owned);
                let cells = misses.map(|misses| human(summary.per_frame(misses as f64)));
                table.row(names.into_iter().chain(cells));
            }
        }
    }
    table
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
