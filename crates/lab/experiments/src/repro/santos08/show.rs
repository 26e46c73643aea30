//! The result for a terminal and as a page.

use report::html::{LineChart, Report, StackedChart};
use report::{Table, claims_table, human};

use super::config::LINES;
use super::document::Document;
use super::rows::Row;
use crate::error::{Error, Result};
use crate::output;

/// The figures, with their titles.
const FIGURES: [(&str, &str); 2] = [
    ("8", "Figure 8: the cost of a received packet"),
    ("11", "Figure 11: the cost of a received packet, by packets per interrupt"),
];

/// Prints everything.
pub fn print(document: &Document) -> Result<()> {
    for (figure, title) in FIGURES {
        output::print(&format!("\n{title}\n"))?;
        table(document, figure).print().map_err(Error::Print)?;
    }
    output::print("\nWhat the paper claims\n")?;
    claims_table(&document.claims).print().map_err(Error::Print)?;
    output::print(&format!("\n{}\n", remarks(document).join("\n")))
}

fn rows<'a>(document: &'a Document, figure: &'a str) -> impl Iterator<Item = &'a Row> {
    document.rows.iter().filter(move |row| row.figure == figure)
}

fn remarks(document: &Document) -> Vec<String> {
    let note = |row: &Row| {
        let Row { line, coalesce, size, .. } = row;
        let note = row.note.as_ref()?;
        Some(format!("{}, {coalesce} per interrupt, {size} bytes: {note}", line.name()))
    };
    let method = document.method.notes.iter().map(|note| format!("Note: {note}."));
    rows(document, "11").filter_map(note).chain(method).collect()
}

fn table(document: &Document, figure: &str) -> Table {
    let mut table = Table::new().left("").right("bytes").right("per interrupt");
    for name in ["guest ns", "driver ns", "hypervisor ns", "total ns: median (min–max)"] {
        table = table.right(name);
    }
    for name in ["over Linux", "in the paper", "packets/s", "packets/notification"] {
        table = table.right(name);
    }
    for row in rows(document, figure) {
        let number = |value: Option<f64>| value.map_or_else(String::new, human);
        let percent = |value: Option<f64>| {
            value.map_or_else(String::new, |over| format!("{:+.0} %", over * 100.0))
        };
        let cost = row.ns_per_packet;
        table.row([
            row.line.name().to_owned(),
            row.size.to_string(),
            row.coalesce.to_string(),
            number(cost.map(|cost| cost.guest)),
            number(cost.map(|cost| cost.driver)),
            number(cost.map(|cost| cost.hypervisor)),
            row.total.map_or_else(String::new, |total| total.spread()),
            percent(row.over_linux),
            percent(row.paper_over_linux),
            number(row.pps),
            number(row.packets_per_interrupt),
        ]);
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
        human(f64::from(method.pps))
    ));
    page.section("What the paper claims").table("", &claims_table(&document.claims));
    for (figure, title) in FIGURES {
        page.section(title).table("", &table(document, figure));
    }
    page.figure(&parts(document), "Nanoseconds of the server's CPU per packet.");
    for size in sizes(document) {
        page.figure(&lines(document, size), "The total of all domains.");
    }
    page.section("How it was measured").paragraph(
        "The hypervisor is the daemon's threads that serve guests' calls and cards' interrupts, and the \
         workers' grant and event operations; the driver domain is the rest of the daemon. The guest is its frontend, \
         its stack and the receiving program; on Linux, all that the server's CPU does. Cards and the sender have \
         the other CPU.",
    );
    for remark in remarks(document) {
        page.paragraph(&remark);
    }
    page.machine(&document.machine);
    page
}

fn sizes(document: &Document) -> Vec<u16> {
    let mut sizes: Vec<u16> = document.rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn parts(document: &Document) -> StackedChart {
    let chart = StackedChart::new(FIGURES[0].1, "ns", ["guest", "driver domain", "hypervisor"]);
    rows(document, "8").fold(chart, |chart, row| match row.ns_per_packet {
        Some(cost) => {
            let label = format!("{}, {} bytes", row.line.name(), row.size);
            chart.bar(label, [cost.guest, cost.driver, cost.hypervisor])
        }
        None => chart,
    })
}

fn lines(document: &Document, size: u16) -> LineChart {
    let title = format!("{}, {size} bytes", FIGURES[1].1);
    let chart = LineChart::new(title, "packets per interrupt", "ns per packet");
    LINES.into_iter().fold(chart, |chart, line| {
        let of = rows(document, "11").filter(|row| row.line == line && row.size == size);
        let points = of.filter_map(|row| Some((f64::from(row.coalesce), row.total?.median)));
        chart.line(line.name(), points)
    })
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::document;
    use super::*;

    #[test]
    fn rows_show_their_parts_and_the_paper() {
        let document = document();
        let table = table(&document, "8");
        let [_, row] = table.rows() else { panic!("{table:?}") };
        assert_eq!(row[..6], ["guest-copy", "1500", "6", "1,250", "625", "625"]);
        assert_eq!(row[7..9], ["+150 %", ""]);
    }

    #[test]
    fn a_page_has_the_bars_and_a_plot_for_each_size() {
        let html = page(&document()).to_html();
        assert_eq!(html.matches("<figure>").count(), 2);
        assert!(html.contains("Note: a note.") && html.contains("guest-copy"));
    }
}
