//! The result for a terminal and as a page.

use report::html::{LineChart, Report};
use report::{Table, human};

use super::document::{Document, Model, Spreading};
use super::rows::{Flows, Row};
use crate::repro::results::{Section, number, spread};
use crate::repro::xenserver7;

/// Everything that is printed.
pub fn sections(document: &Document) -> Vec<Section> {
    let mut sections = vec![Section::table("By the number of queues", rows(document))];
    let flows = document.more.flows.iter();
    sections.extend(flows.map(|flows| Section::table(title(flows), spreading(flows))));
    if let Some(model) = &document.more.model {
        sections.push(Section::table(CHECKS, checks(model)));
    }
    sections.extend(document.claims_section());
    sections.push(Section::remarks("Notes", remarks(document)));
    sections
}

/// The heading of [`checks`].
const CHECKS: &str = "The model for this machine, beside what was measured";

/// Remarks that a reader needs.
fn remarks(document: &Document) -> Vec<String> {
    let name = |row: &Row| format!("{} queues, {} workers", row.queues, row.workers);
    let of_row = |row: &Row| row.note.as_ref().map(|note| format!("{}: {note}.", name(row)));
    document.rows.iter().filter_map(of_row).chain(document.notes()).collect()
}

/// How the model fits the measurements.
fn checks(model: &Model) -> Table {
    let table = Table::new().right("queues").right("workers").right("model Mb/s");
    let mut table = table.right("measured Mb/s").right("error").left("limited by");
    for check in &model.checks {
        let input = if check.is_input { " (the model's input)" } else { "" };
        table.row([
            check.queues.to_string(),
            check.workers.to_string(),
            human(check.predicted),
            human(check.measured),
            format!("{:+.0} %", check.error * 100.0),
            format!("{}{input}", check.limit.name()),
        ]);
    }
    table
}

fn title(flows: &Spreading) -> &'static str {
    match flows.hash {
        "switch" => "Streams per queue, by the switch's hash of ports that the kernel gave",
        "article" => {
            "Streams per queue, by the hash of the article's kernels with a key for each set of ports"
        }
        _ => "Streams per queue, by an even hash, exactly",
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.1}", share * 100.0))
}

fn rows(document: &Document) -> Table {
    let table = Table::new().right("queues").right("workers").left("").right("paper Mb/s");
    let table = table.right("Mb/s: median (min–max)").right("ring full %");
    let table = table.right("ns/KiB").right("daemon").right("guests");
    let table = table.right("locked %").right("worker's CPU %");
    let mut table = table.right("queues used").right("streams on the busiest");
    for row in &document.rows {
        let used = |Flows { used, seen, .. }: Flows| match seen {
            Some(seen) => format!("{used:.1} ({seen:.1} seen)"),
            None => format!("{used:.1}"),
        };
        let kind = match row.limit {
            Some(limit) => format!("model: {}", limit.name()),
            None => "measured".to_owned(),
        };
        table.row([
            row.queues.to_string(),
            row.workers.to_string(),
            kind,
            number(row.paper_mbps),
            spread(row.mbps),
            percent(row.ring_full),
            number(row.ns_per_kib),
            number(row.cost.map(|cost| cost.daemon)),
            number(row.cost.map(|cost| cost.guests)),
            percent(row.locked),
            percent(row.worker_busy),
            row.flows.map_or_else(String::new, used),
            row.flows.map_or_else(String::new, |flows| format!("{:.1}", flows.most)),
        ]);
    }
    table
}

fn spreading(flows: &Spreading) -> Table {
    let streams = flows.queues.iter().flat_map(|queues| queues.most.values()).max().unwrap_or(0);
    let mut table = Table::new().right("queues").right("used").right("busiest");
    for most in 1..=streams {
        table = table.right(format!("{most}: %"));
    }
    table = table.right("more than with one queue fewer: %");
    for queues in &flows.queues {
        let dip = flows.dips.iter().find(|dip| dip.queues == queues.queues);
        let mut cells = vec![
            queues.queues.to_string(),
            format!("{:.2}", queues.used.mean()),
            format!("{:.2}", queues.most.mean()),
        ];
        cells.extend((1..=streams).map(|most| percent(Some(queues.most.at(most)))));
        cells.push(percent(dip.map(|dip| dip.chance)));
        table.row(cells);
    }
    table
}

/// The page.
pub fn page(document: &Document) -> Report {
    let mut page = Report::new("XenServer 7, repeated");
    page.lead(
        "“XenServer 7.0 performance improvements part 2: Parallelised networking datapath” gave every \
         virtual interface several queues. Here two guests are processes, and each queue has a \
         worker of the daemon.",
    );
    let method = &document.method;
    page.paragraph(&format!(
        "{} TCP streams from one guest to the other, {}, on {} CPUs. Rates are medians of {} interleaved \
         rounds of {} s; all else is means.",
        method.own.streams, method.own.congestion, method.own.cpus, method.rounds, method.seconds
    ));
    document.show_claims(&mut page);
    page.section("By the number of queues");
    page.figure(&throughput(document), "A broken line is the model's: nothing on it was measured.");
    page.figure(&ring_full(document), "Means over the rings that carried frames.");
    page.table("", &rows(document));
    page.section("Streams per queue");
    page.figure(
        &busiest(document),
        "The mean falls steadily; one set of ports for each number of queues need not.",
    );
    for flows in &document.more.flows {
        page.table(title(flows), &spreading(flows));
    }
    if let Some(model) = &document.more.model {
        page.section(CHECKS).table("", &checks(model));
    }
    let how = "Ring full is the time in which the sender's frontend has no room for a frame of 64 KiB. \
         The cost is the CPU time of the daemon and of both guests with iperf3, per KiB of payload. Locked is the \
         share of the workers' time in which one waits for an egress queue that another has locked. \
         The model has a CPU for each worker and eight for each guest; that for this machine has its CPUs.";
    document.show_method(&mut page, how, remarks(document));
    page
}

/// The points of the rows for which `is` holds.
fn points(
    document: &Document,
    is: impl Fn(&Row) -> bool,
    value: impl Fn(&Row) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let rows = document.rows.iter().filter(|row| is(row));
    rows.filter_map(|row| Some((row.queues as f64, value(row)?))).collect()
}

/// Adds a line for each number of workers, or one if each queue has a worker.
fn by_workers(
    chart: LineChart,
    document: &Document,
    value: impl Fn(&Row) -> Option<f64>,
) -> LineChart {
    let measured = || document.rows.iter().filter(|row| !row.model);
    if measured().all(|row| row.workers == row.queues) {
        return chart.line("measured", points(document, |row| !row.model, &value));
    }
    [1, 2].into_iter().fold(chart, |chart, workers| {
        let is = |row: &Row| !row.model && row.workers == workers;
        let name = if workers == 1 { "one worker" } else { "two workers" };
        chart.line(name, points(document, is, &value))
    })
}

fn throughput(document: &Document) -> LineChart {
    let median = |row: &Row| row.mbps.map(|mbps| mbps.median);
    let chart = LineChart::new("Throughput", "queues", "Mb/s");
    let chart = by_workers(chart, document, median);
    let model = points(document, |row| row.model, median);
    let chart = if model.is_empty() { chart } else { chart.broken_line("model", model) };
    let paper = [1, xenserver7::DEFAULT_QUEUES].map(|queues| (queues, xenserver7::mbps(queues)));
    let paper = paper.into_iter().filter_map(|(queues, mbps)| Some((queues as f64, mbps?)));
    chart.line("paper: one, default", paper)
}

fn ring_full(document: &Document) -> LineChart {
    let chart = LineChart::new("Time in which a ring is full", "queues", "%");
    by_workers(chart, document, |row| row.ring_full.map(|share| share * 100.0))
}

fn busiest(document: &Document) -> LineChart {
    let chart = LineChart::new("Streams on the busiest queue", "queues", "streams");
    document.more.flows.iter().fold(chart, |chart, flows| {
        let points = flows.queues.iter().map(|it| (it.queues as f64, it.most.mean()));
        let name = match flows.hash {
            "switch" => "the switch's hash",
            "article" => "the article's hash",
            _ => "an even hash",
        };
        chart.line(name, points)
    })
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::example;
    use super::*;

    #[test]
    fn the_papers_numbers_stand_beside_the_measured_ones() {
        let table = rows(&example());
        let all = table.rows();
        assert_eq!(all[0][..5], ["1", "1", "measured", "17,000", "20,000 (18,000–22,000)"]);
        assert_eq!(all[0][5..9], ["25.0", "610", "110", "500"]);
        assert!(all[2][2].starts_with("model: ") && all[2][5].is_empty(), "{:?}", all[2]);
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn a_page_draws_the_model_apart_and_says_how_it_fits() {
        let html = page(&example()).to_html();
        assert_eq!(html.matches("<figure>").count(), 3);
        assert_eq!(html.matches("class=\"curve broken ").count(), 1);
        assert!(html.contains("Note: a note.") && html.contains("s input)"), "{html}");
    }

    #[test]
    fn streams_per_queue_are_shown_with_the_dips() {
        let document = example();
        let table = spreading(&document.more.flows[2]);
        let five = &table.rows()[4];
        assert_eq!((five[0].as_str(), five.len()), ("5", 3 + 8 + 1));
        assert!(!five[11].is_empty() && table.rows()[0][11].is_empty());
    }
}
