//! The result for a terminal and as a page.

use report::html::{LineChart, Report, StackedChart};
use report::{Table, human};

use super::MTU;
use super::config::{Line, Placement};
use super::document::Document;
use super::rows::Row;
use crate::repro::results::{Section, number, spread};
use crate::repro::santos08;

/// The figures, with their titles.
const FIGURES: [(&str, &str); 2] = [
    ("8", "Figure 8: the cost of a received packet"),
    ("11", "Figure 11: the cost of a received packet, by packets per interrupt"),
];
const READS: &str = "§4.1: what reading the payload costs a guest without a stack";

/// Everything that is printed.
pub fn sections(document: &Document) -> Vec<Section> {
    let mut sections = FIGURES
        .map(|(figure, title)| Section::table(title, table(document, figure)))
        .into_iter()
        .collect::<Vec<_>>();
    if !document.more.reads.is_empty() {
        sections.push(Section::table(READS, reads(document)));
    }
    sections.extend(document.claims_section());
    sections.push(Section::remarks("Notes", remarks(document)));
    sections
}

fn rows<'a>(document: &'a Document, figure: &'a str) -> impl Iterator<Item = &'a Row> {
    document.rows.iter().filter(move |row| row.figure == figure)
}

fn remarks(document: &Document) -> Vec<String> {
    let note = |row: &Row| Some(format!("{}: {}.", row.name(), row.note.as_ref()?));
    let copy = format!(
        "A copy of a packet of {MTU} bytes from one page to another takes {:.0} ns.",
        document.method.own.copy_ns
    );
    rows(document, "11").filter_map(note).chain([copy]).chain(document.notes()).collect()
}

fn table(document: &Document, figure: &str) -> Table {
    let mut table = Table::new().left("").left("CPUs").right("bytes").right("per interrupt");
    for name in ["guest ns", "driver ns", "hypervisor ns", "total ns: median (min–max)"] {
        table = table.right(name);
    }
    for name in ["over Linux", "in the paper", "packets/s", "packets/notification"] {
        table = table.right(name);
    }
    for row in rows(document, figure) {
        let percent = |value: Option<f64>| {
            value.map_or_else(String::new, |over| format!("{:+.0} %", over * 100.0))
        };
        let cost = row.ns_per_packet;
        table.row([
            row.line.name().to_owned(),
            row.cpus.name().to_owned(),
            row.size.to_string(),
            row.coalesce.to_string(),
            number(cost.map(|cost| cost.guest)),
            number(cost.map(|cost| cost.driver)),
            number(cost.map(|cost| cost.hypervisor)),
            spread(row.total),
            percent(row.over_linux),
            percent(row.paper_over_linux),
            number(row.pps),
            number(row.packets_per_interrupt),
        ]);
    }
    table
}

fn reads(document: &Document) -> Table {
    let mut table = Table::new().left("").left("CPUs").right("reading ns: median (min–max)");
    table = table.right("guest ns besides").right("driver and hypervisor ns");
    for row in &document.more.reads {
        let cells = [row.read_ns, row.without_ns, row.driver_ns].map(spread);
        let names = [row.line.name(), row.cpus.name()].map(str::to_owned);
        table.row(names.into_iter().chain(cells));
    }
    table
}

/// The page.
pub fn page(document: &Document) -> Report {
    let mut page = Report::new("Santos et al. 2008, repeated");
    page.lead(
        "“Bridging the Gap between Software and Hardware Techniques for I/O Virtualization” made the \
         receiving guest copy, gave it a queue of the card, kept its pages mapped, and let packets share \
         interrupts. Here a stream of datagrams arrives at a guest by each of these.",
    );
    let method = &document.method;
    page.paragraph(&format!(
        "Costs are medians of {} interleaved rounds of {} s with {} packets per second.",
        method.rounds,
        method.seconds,
        human(f64::from(method.own.pps))
    ));
    document.show_claims(&mut page);
    for (figure, title) in FIGURES {
        page.section(title).table("", &table(document, figure));
        for (placement, size) in kinds(document) {
            match figure {
                "8" => {
                    let chart = parts(document, placement, size);
                    page.figure(&chart, "Nanoseconds of CPU time per packet.");
                }
                _ => {
                    let chart = totals(document, placement, size);
                    page.figure(&chart, "The total of all domains.");
                }
            }
        }
        if figure == "11" {
            for (placement, _) in kinds(document).into_iter().filter(|(_, size)| *size == MTU) {
                let chart = over_linux(document, placement);
                page.figure(&chart, "The paper's text has numbers for 64 packets per interrupt.");
            }
        }
    }
    if !document.more.reads.is_empty() {
        page.section(READS).table("", &reads(document));
    }
    let how = "The hypervisor is the daemon's threads that serve guests' calls and cards' interrupts, and the \
         workers' grant and event operations; the driver domain is the rest of the daemon. The guest is its frontend, \
         its stack and the receiving program; on Linux, all that the server's CPU does. Cards and the sender have \
         the other CPU, and the driver domain too where it is apart from the guest.";
    document.show_method(&mut page, how, remarks(document));
    page
}

/// The placements and sizes that were measured.
fn kinds(document: &Document) -> Vec<(Placement, u16)> {
    let mut kinds = Vec::new();
    for row in &document.rows {
        if !kinds.contains(&(row.cpus, row.size)) {
            kinds.push((row.cpus, row.size));
        }
    }
    kinds
}

fn of_kind<'a>(
    document: &'a Document,
    figure: &'a str,
    placement: Placement,
    size: u16,
) -> impl Iterator<Item = &'a Row> {
    rows(document, figure).filter(move |row| (row.cpus, row.size) == (placement, size))
}

fn parts(document: &Document, placement: Placement, size: u16) -> StackedChart {
    let title = format!("{} of {size} bytes, {}", FIGURES[0].1, placement.name());
    let chart = StackedChart::new(title, "ns", ["guest", "driver domain", "hypervisor"]);
    of_kind(document, "8", placement, size).fold(chart, |chart, row| match row.ns_per_packet {
        Some(cost) => chart.bar(row.line.name(), [cost.guest, cost.driver, cost.hypervisor]),
        None => chart,
    })
}

fn totals(document: &Document, placement: Placement, size: u16) -> LineChart {
    let title = format!("{}, {size} bytes, {}", FIGURES[1].1, placement.name());
    let chart = LineChart::new(title, "packets per interrupt", "ns per packet");
    Line::ALL.into_iter().fold(chart, |chart, line| {
        let of = of_kind(document, "11", placement, size).filter(|row| row.line == line);
        let points = of.filter_map(|row| Some((f64::from(row.coalesce), row.total?.median)));
        chart.line(line.name(), points)
    })
}

/// The lines for which the paper's text has numbers at 64 packets per interrupt, with these numbers.
fn over_linux(document: &Document, placement: Placement) -> LineChart {
    let title = format!("Figure 11: the cost over Linux's, {}", placement.name());
    let chart = LineChart::new(title, "packets per interrupt", "% over Linux");
    let lines = [Line::GuestCopy, Line::MultiqueueReuse, Line::Direct];
    let chart = lines.into_iter().fold(chart, |chart, line| {
        let of = of_kind(document, "11", placement, MTU).filter(|row| row.line == line);
        let points = of.filter_map(|row| Some((f64::from(row.coalesce), row.over_linux? * 100.0)));
        chart.line(line.name(), points)
    });
    lines.into_iter().fold(chart, |chart, line| {
        let point = santos08::over_linux(line, santos08::MOST);
        let point = point.map(|over| (f64::from(santos08::MOST), over * 100.0));
        chart.line(format!("{}, in the paper", line.name()), point)
    })
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::example;
    use super::*;

    #[test]
    fn rows_show_their_parts_and_the_paper() {
        let document = example();
        let table = table(&document, "8");
        let [_, row] = table.rows() else { panic!("{table:?}") };
        assert_eq!(row[..7], ["guest-copy", "together", "1500", "6", "1,250", "625", "625"]);
        assert_eq!(row[8..10], ["+150 %", ""]);
        assert_eq!(reads(&document).rows()[0], ["copy", "apart", "300", "1,000", "2,000"]);
    }

    #[test]
    fn a_page_has_the_bars_and_both_plots_for_each_kind() {
        let html = page(&example()).to_html();
        assert_eq!(html.matches("<figure>").count(), 3);
        assert!(html.contains("Note: a note.") && html.contains("guest-copy, in the paper"));
    }
}
