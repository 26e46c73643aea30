//! The result for a terminal and as a page: the paper's figures beside the measurements.

use std::collections::BTreeSet;

use report::html::{BarChart, Report, StackedChart};
use report::{Stats, Table};

use super::claims::Order;
use super::document::Document;
use super::paper::Figure;
use super::rows::{CostRatios, Row};
use crate::repro::results::{Section, number, spread};

/// Everything that is printed.
pub fn sections(document: &Document) -> Vec<Section> {
    let figure = |figure: Figure| {
        let table = Some(table(document, figure));
        Section { title: figure.title().to_owned(), table, remarks: remarks(document, figure) }
    };
    let mut sections: Vec<Section> = figures(document).into_iter().map(figure).collect();
    let claims = document.claims_section();
    sections
        .extend(claims.map(|claims| Section { remarks: document.grounds().collect(), ..claims }));
    sections.push(Section::remarks(ORDER, order_sentences(document)));
    sections.push(Section::remarks("Notes", document.notes().collect()));
    sections
}

/// The heading of [`order_sentences`].
const ORDER: &str = "Where the order differs from the paper's";

/// The figures that have rows, in the paper's order.
fn figures(document: &Document) -> Vec<Figure> {
    let figures: BTreeSet<Figure> = document.rows.iter().map(|row| row.of).collect();
    figures.into_iter().collect()
}

fn rows(document: &Document, figure: Figure) -> impl Iterator<Item = &Row> {
    document.rows.iter().filter(move |row| row.of == figure)
}

/// A figure's table.
fn table(document: &Document, figure: Figure) -> Table {
    if figure.shows_costs() { costs(document, figure) } else { throughput(document, figure) }
}

fn throughput(document: &Document, figure: Figure) -> Table {
    let to_linux = rows(document, figure).any(|row| row.paper_ratio_to_linux.is_some());
    let mut table = Table::new()
        .left("configuration")
        .left("")
        .right("paper Mb/s")
        .right(format!("÷ {}", figure.none()));
    if to_linux {
        table = table.right("÷ Linux");
    }
    table = table.right("Mb/s: median (min–max)").right(format!("÷ {}", figure.none()));
    if to_linux {
        table = table.right("÷ Linux");
    }
    table = table.right("guest s/GB").right("driver dom.").right("hypervisor").right("CPU busy");
    for row in rows(document, figure) {
        let mut cells = vec![row.config.to_owned(), row.direction.name().to_owned()];
        cells.extend([number(row.paper_mbps), number(row.paper_ratio_to_none)]);
        cells.extend(to_linux.then(|| number(row.paper_ratio_to_linux)));
        cells.extend([spread(row.mbps), number(row.ratio_to_none)]);
        cells.extend(to_linux.then(|| number(row.ratio_to_linux)));
        cells.extend(parts(row));
        let busy = row.busy().map_or(String::new(), |busy| format!("{busy:.0} %"));
        let paper = row.paper_busy_percent.map(|paper| format!(" (paper {paper:.0} %)"));
        cells.push(busy + &paper.unwrap_or_default());
        table.row(cells);
    }
    table
}

/// The cost of a gigabyte, by domain.
fn parts(row: &Row) -> [String; 3] {
    let parts = row.cpu_s_per_gb.map(|cost| [cost.guest, cost.driver, cost.hypervisor]);
    parts.map_or_else(Default::default, |parts| parts.map(|part| format!("{part:.2}")))
}

fn costs(document: &Document, figure: Figure) -> Table {
    let by = format!("{} ÷ this", figure.none());
    let mut table = Table::new()
        .left("configuration")
        .right("guest s/GB")
        .right("driver dom.")
        .right("hypervisor")
        .right("hypervisor µs/packet")
        .right(format!("{by}: guest"))
        .right("driver dom.")
        .right("hypervisor")
        .left("paper: the same");
    for row in rows(document, figure) {
        let time = row.per_packet.as_ref().and_then(|counts| counts.get("hypervisor_ns"));
        let mut cells = vec![row.config.to_owned()];
        cells.extend(parts(row));
        cells.push(number(time.map(|time| time / 1e3)));
        cells.extend(divided(row.cost_divided_by));
        cells.push(row.paper_cost_divided_by.map_or(String::new(), in_one_cell));
        table.row(cells);
    }
    table
}

fn divided(by: Option<CostRatios>) -> [String; 3] {
    let by = by.unwrap_or_default();
    [by.guest, by.driver, by.hypervisor].map(number)
}

/// `4.00 / 2.10 / 1.90`.
fn in_one_cell(by: CostRatios) -> String {
    let part = |by: String| if by.is_empty() { "–".to_owned() } else { by };
    divided(Some(by)).map(part).join(" / ")
}

/// Remarks on a figure's rows. Rows with the same remark share one sentence.
fn remarks(document: &Document, figure: Figure) -> Vec<String> {
    let mut remarks: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows(document, figure) {
        for remark in of_row(row) {
            match remarks.iter_mut().find(|(known, _)| *known == remark) {
                Some((_, configs)) => configs.push(row.config),
                None => remarks.push((remark, vec![row.config])),
            }
        }
    }
    let sentence = |(remark, mut configs): (String, Vec<&str>)| {
        configs.dedup();
        format!("{}: {remark}", configs.join(", "))
    };
    remarks.into_iter().map(sentence).collect()
}

/// Per cent. If the server's CPU was less busy, it was not the limit.
const SATURATED: f64 = 90.0;

fn of_row(row: &Row) -> impl Iterator<Item = String> {
    let why = row.not_measurable.as_ref().map(|why| format!("not measurable: {why}"));
    let is_free = row.pace_mbps.is_none();
    let idle = row.busy().filter(|busy| is_free && *busy < SATURATED);
    let idle = idle
        .map(|_| "the server's CPU was not busy all the time, so something else limits".to_owned());
    let says = row.paper_says.map(|says| format!("the paper: {says}"));
    [why, row.note.clone(), idle, says].into_iter().flatten()
}

/// Sentences on where the order differs from the paper's.
fn order_sentences(document: &Document) -> Vec<String> {
    if document.more.orders.is_empty() {
        return vec!["All measured configurations are in the paper's order.".into()];
    }
    document.more.orders.iter().map(Order::sentence).collect()
}

/// The page.
pub fn page(document: &Document) -> Report {
    let mut page = Report::new("Menon, Cox, Zwaenepoel 2006, repeated");
    page.lead(
        "“Optimizing Network Virtualization in Xen” measured what a guest's network costs and what \
         three optimisations save. Here are the same configurations on pvnet: a TCP stream of the \
         kernel's stack, from or to a server with one CPU; the client has another.",
    );
    page.paragraph(&format!(
        "Medians of {} interleaved rounds of {} s. The paper's machines are from 2006, so the bars \
         do not compare Mb/s: each configuration is divided by the unoptimised one of its figure.",
        document.method.rounds, document.method.seconds
    ));
    document.show_claims(&mut page);
    page.section(ORDER);
    for sentence in order_sentences(document) {
        page.paragraph(&sentence);
    }
    for figure in figures(document) {
        page.section(figure.title()).table("", &table(document, figure));
        for remark in remarks(document, figure) {
            page.paragraph(&remark);
        }
        charts(&mut page, document, figure);
    }
    details(&mut page, document);
    document.show_method(&mut page, METHOD, document.notes());
    page
}

fn charts(page: &mut Report, document: &Document, figure: Figure) {
    if figure.shows_costs() {
        page.figure(&costs_chart(document, figure), "CPU seconds per 10⁹ bytes received.");
        for row in rows(document, figure) {
            if let Some(paper) = row.paper_cost_divided_by {
                let chart = savings(row, paper);
                page.figure(&chart, "Longer is cheaper; 1 is no saving. Medians of all rounds.");
            }
        }
        return;
    }
    for (direction, chart) in bars(document, figure) {
        let what = format!("{direction}: throughput divided by that of {}.", figure.none());
        page.figure(&chart, &what);
    }
}

/// A chart for each direction in which the figure has bars, normalised.
fn bars(document: &Document, figure: Figure) -> Vec<(&'static str, BarChart)> {
    let mut charts = Vec::new();
    for direction in ["tx", "rx"] {
        let title = format!("{} ({direction})", figure.title());
        let unit = format!("÷ {}", figure.none());
        let mut chart = BarChart::new(title, unit).series(["paper", "pvnet"]);
        let mut any = false;
        for row in rows(document, figure).filter(|row| row.direction.name() == direction) {
            let pair = [row.paper_ratio_to_none.map(Stats::single), normalised(row)];
            if pair.iter().any(Option::is_some) {
                chart = chart.group(row.config, pair);
                any = true;
            }
        }
        if any {
            charts.push((direction, chart));
        }
    }
    charts
}

/// The statistics, divided like the median in `ratio_to_none`.
fn normalised(row: &Row) -> Option<Stats> {
    let (mbps, ratio) = (row.mbps?, row.ratio_to_none?);
    let scale = ratio / mbps.median;
    Some(Stats { median: ratio, min: mbps.min * scale, max: mbps.max * scale, n: mbps.n })
}

fn costs_chart(document: &Document, figure: Figure) -> StackedChart {
    let parts = ["guest", "driver domain", "hypervisor"];
    let chart = StackedChart::new(figure.title(), "CPU s/GB", parts);
    rows(document, figure).fold(chart, |chart, row| match row.cpu_s_per_gb {
        Some(cost) => chart.bar(row.config, [cost.guest, cost.driver, cost.hypervisor]),
        None => chart,
    })
}

/// The ratios of costs for which the paper gives numbers.
fn savings(row: &Row, paper: CostRatios) -> BarChart {
    let title = format!("Cost of {} ÷ cost of {}, for the same bytes", row.of.none(), row.config);
    let here = row.cost_divided_by.unwrap_or_default();
    let parts = [
        ("guest", paper.guest, here.guest),
        ("driver domain", paper.driver, here.driver),
        ("hypervisor", paper.hypervisor, here.hypervisor),
    ];
    let chart = BarChart::new(title, "÷").series(["paper", "pvnet"]);
    parts.into_iter().filter(|(_, paper, _)| paper.is_some()).fold(chart, |chart, part| {
        let (name, paper, here) = part;
        chart.group(name, [paper, here].map(|by| by.map(Stats::single)))
    })
}

/// Operations of the hypervisor, as columns.
const COUNTS: [&str; 10] = [
    "frames",
    "maps",
    "unmaps",
    "copies",
    "bytes_copied",
    "transfers",
    "pages_zeroed",
    "segments",
    "notifications",
    "hypervisor_ns",
];

fn details(page: &mut Report, document: &Document) {
    let mut table = Table::new().left("figure").left("configuration").left("");
    for name in COUNTS {
        table = table.right(name.replace('_', " "));
    }
    for row in &document.rows {
        let Some(counts) = &row.per_packet else { continue };
        let cells = [row.figure, row.config, row.direction.name()].map(str::to_owned);
        let count = |name: &str| number(counts.get(name).copied());
        table.row(cells.into_iter().chain(COUNTS.map(count)));
    }
    page.section("Operations of the hypervisor, per packet").paragraph(
        "A packet is 1448 bytes received, the payload of an MTU-sized frame, even if larger frames \
         carried it. Frames are counted at pvnet's NIC, in both directions; a GSO frame counts once.",
    );
    page.table("", &table);
}

const METHOD: &str = "Guest is the server's program with its stack, in a guest or on Linux. In driver domain \
     configurations these count as the driver domain. The driver domain is the daemon without its \
     grant and event operations, which count as the hypervisor. Only the server's CPU is counted.";

#[cfg(test)]
mod tests {
    use report::{Claim, Verdict};

    use super::super::document::tests::example;
    use super::*;

    #[test]
    fn tables_have_the_papers_numbers_beside_the_measured_ones() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 200.0 };
        let document = example(&[Figure::Seven, Figure::Six], rates);
        assert_eq!(figures(&document), [Figure::Six, Figure::Seven]);
        let table = table(&document, Figure::Seven);
        let row = table.rows().iter().find(|row| row[0] == "high/none").unwrap();
        assert_eq!(row[2..5], ["1,461", "1.95", "210 (200–220)"]);
        assert_eq!(row[5], "2.00");
        assert_eq!(row[9], "100 %");
        let costs = super::table(&document, Figure::Six);
        let high = costs.rows().iter().find(|row| row[0] == "high").unwrap();
        assert_eq!(high[8], "4.00 / 2.10 / 1.90");
    }

    #[test]
    fn rows_without_a_measurement_say_why() {
        let document = example(&[Figure::Nine, Figure::Eleven], |_| 100.0);
        for figure in figures(&document) {
            let remarks = remarks(&document, figure);
            for row in table(&document, figure).rows() {
                let about = |remark: &&String| {
                    let (configs, why) = remark.split_once(": ").unwrap();
                    configs.split(", ").any(|config| config == row[0])
                        && why.starts_with("not measurable: ")
                };
                let measured = !row[4].is_empty();
                assert_eq!(usize::from(!measured), remarks.iter().filter(about).count(), "{row:?}");
            }
        }
        let remarks = remarks(&document, Figure::Nine);
        assert!(remarks[0].starts_with("Base, SP, SP-GP: not measurable: TLB"), "{remarks:?}");
    }

    #[test]
    fn every_order_has_a_sentence() {
        let document = example(&[Figure::Five], |_| 100.0);
        assert_eq!(order_sentences(&document).len(), document.more.orders.len());
        let failed = |claim: &Claim| claim.verdict == Verdict::DoesNotHold;
        assert!(document.claims.iter().all(failed));
    }

    #[test]
    fn the_page_shows_figures_beside_the_papers() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 300.0 };
        let html = page(&example(&[Figure::Five, Figure::Six, Figure::Nine], rates)).to_html();
        assert_eq!(html.matches("<figure>").count(), 3);
        assert!(html.contains("Cost of none ÷ cost of high"));
        assert!(html.contains("paper") && html.contains("Medians of 2 interleaved rounds"));
        assert!(html.contains("not measurable") && html.contains("Note: a note."));
    }

    #[test]
    fn bars_are_divided_by_the_unoptimised_one() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 300.0 };
        let document = example(&[Figure::Five], rates);
        let high = document.rows.iter().find(|row| row.config == "high").unwrap();
        let stats = normalised(high).unwrap();
        assert!((stats.median - 3.0).abs() < 1e-9 && (stats.min - 2.857).abs() < 1e-3);
        assert_eq!(bars(&document, Figure::Five).len(), 1);
    }
}
