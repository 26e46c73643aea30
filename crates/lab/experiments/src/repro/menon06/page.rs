//! The result as a page: the paper's figures beside the measurements.

use report::html::{BarChart, Report, StackedChart};
use report::{Stats, Table, claims_table, human};

use super::document::Document;
use super::paper::Figure;
use super::rows::{CostRatios, Row};
use super::show;

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
    if !document.claims.is_empty() {
        page.section("What the paper claims").table("", &claims_table(&document.claims));
        for claim in &document.claims {
            page.paragraph(&show::grounds(claim));
        }
    }
    page.section(show::ORDER);
    for sentence in show::order_sentences(document) {
        page.paragraph(&sentence);
    }
    for figure in show::figures(document) {
        page.section(figure.title()).table("", &show::table(document, figure));
        for remark in show::remarks(document, figure) {
            page.paragraph(&remark);
        }
        charts(&mut page, document, figure);
    }
    details(&mut page, document);
    page.machine(&document.machine);
    page
}

fn charts(page: &mut Report, document: &Document, figure: Figure) {
    if figure.shows_costs() {
        page.figure(&costs(document, figure), "CPU seconds per 10⁹ bytes received.");
        for row in show::rows(document, figure) {
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
        for row in show::rows(document, figure).filter(|row| row.direction.name() == direction) {
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

fn costs(document: &Document, figure: Figure) -> StackedChart {
    let parts = ["guest", "driver domain", "hypervisor"];
    let chart = StackedChart::new(figure.title(), "CPU s/GB", parts);
    show::rows(document, figure).fold(chart, |chart, row| match row.cpu_s_per_gb {
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
        let count = |name: &str| counts.get(name).copied().map_or(String::new(), human);
        table.row(cells.into_iter().chain(COUNTS.map(count)));
    }
    page.section("Operations of the hypervisor, per packet").paragraph(
        "A packet is 1448 bytes received, the payload of an MTU-sized frame, even if larger frames \
         carried it. Frames are counted at pvnet's NIC, in both directions; a GSO frame counts once.",
    );
    page.table("", &table);
    page.section("How it was measured").paragraph(
        "Guest is the server's program with its stack, in a guest or on Linux. In driver domain \
         configurations these count as the driver domain. The driver domain is the daemon without \
         its grant and event operations, which count as the hypervisor. Only the server's CPU is \
         counted.",
    );
    for note in document.notes() {
        page.paragraph(&note);
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::example;
    use super::*;

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
