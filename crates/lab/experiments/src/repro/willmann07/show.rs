//! The result for a terminal and as a page.

use report::html::{LineChart, Report, StackedChart};
use report::{Table, human};

use super::config::{CDNA, Config};
use super::document::Document;
use super::paper::Part;
use super::rows::{Row, notes};
use crate::repro::results::{Section, number, spread};
use crate::repro::shares::Shares;

/// Everything that is printed.
pub fn sections(document: &Document) -> Vec<Section> {
    let part = |part: Part| Section::table(part.title(), table(document, part));
    let mut sections: Vec<Section> = parts(document).into_iter().map(part).collect();
    sections.extend(document.claims_section());
    sections.push(Section::remarks("Notes", remarks(document)));
    sections
}

/// Remarks that a reader needs.
fn remarks(document: &Document) -> Vec<String> {
    notes(&document.rows).into_iter().chain(document.notes()).collect()
}

/// The parts that have rows.
fn parts(document: &Document) -> Vec<Part> {
    let has = |part: &Part| document.rows.iter().any(|row| row.part == *part);
    Part::ALL.into_iter().filter(has).collect()
}

fn rows(document: &Document, part: Part) -> impl Iterator<Item = &Row> {
    document.rows.iter().filter(move |row| row.part == part)
}

/// A number measured here, with the paper's in brackets.
fn beside(here: Option<f64>, paper: Option<f64>, show: impl Fn(f64) -> String) -> String {
    let here = here.map_or_else(String::new, &show);
    paper.map_or(here.clone(), |paper| format!("{here} ({})", show(paper)))
}

/// The columns of Table 2.
fn table(document: &Document, part: Part) -> Table {
    let mut table = Table::new()
        .left("configuration")
        .left("")
        .right("guests")
        .right("paper Mb/s")
        .right("Mb/s: median (min–max)");
    for name in ["hyp. % (paper)", "driver %", "guest OS %", "user %", "idle %"] {
        table = table.right(name);
    }
    table = table
        .right("driver int./s")
        .right("guest int./s")
        .right("packets/int.")
        .right("Jain")
        .right("µs/packet: hyp., driver, guest");
    for row in rows(document, part) {
        let paper = row.paper.and_then(|paper| paper.share);
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        let mut cells = vec![
            row.config.name().to_owned(),
            row.direction.name().to_owned(),
            row.guests.to_string(),
            row.paper.map_or_else(String::new, |paper| human(paper.mbps)),
            spread(row.mbps),
        ];
        let shares =
            |it: Shares| [it.hypervisor, it.driver, it.guest_system, it.guest_user, it.idle];
        for column in 0..5 {
            let of = |share: Option<Shares>| share.map(|it| shares(it)[column]);
            cells.push(beside(of(row.share), of(paper), percent));
        }
        let of_paper = |domain: usize| Some(row.paper?.interrupts_per_s?[domain]);
        let here = row.interrupts_per_s;
        cells.push(beside(here.and_then(|here| here.driver), of_paper(0), human));
        cells.push(beside(here.and_then(|here| here.guest), of_paper(1), human));
        cells.push(number(row.packets_per_interrupt));
        cells.push(row.jain.map_or_else(String::new, |jain| format!("{jain:.3}")));
        cells.push(row.us_per_packet.map_or_else(String::new, |cost| {
            let guest = cost.guest_system + cost.guest_user;
            format!("{:.2}, {:.2}, {guest:.2}", cost.hypervisor, cost.driver)
        }));
        table.row(cells);
    }
    table
}

/// The page.
pub fn page(document: &Document) -> Report {
    let mut page = Report::new("Willmann et al. 2007, repeated");
    page.lead(
        "“Concurrent Direct Network Access for Virtual Machine Monitors” gave every guest a protected \
         context of the network card. Here the card, the hypervisor and the guests are processes, and \
         the same guests are served by a driver domain for comparison.",
    );
    let method = &document.method;
    page.paragraph(&format!(
        "Rates are medians of {} interleaved rounds of {} s, shares are means. {} NICs, {} Mb/s each; TCP with {}.",
        method.rounds, method.seconds, method.own.nics, method.own.rate_mbps, method.own.congestion
    ));
    document.show_claims(&mut page);
    for part in parts(document) {
        page.section(part.title()).table("", &table(document, part));
        match part.figure() {
            Some(_) => page.figure(&lines(document, part), "The sum of all guests."),
            None => page.figure(&shares(document, part), "Shares of the server's CPU."),
        };
    }
    let how = "Guest is everything in the guests: frontends, kernels and programs. The hypervisor is the \
         daemon's threads that serve guests' calls and cards' interrupts, and the workers' grant and \
         event operations; the driver domain is the rest of the daemon. Cards and peers have the \
         client's CPU.";
    document.show_method(&mut page, how, remarks(document));
    page
}

fn shares(document: &Document, part: Part) -> StackedChart {
    let chart = StackedChart::cpu(part.title());
    rows(document, part).fold(chart, |chart, row| match row.share {
        Some(share) => {
            let guest = share.guest_system + share.guest_user;
            let label = format!("{} {}", row.config.name(), row.direction.name());
            chart.bar(label, [guest, share.driver, share.hypervisor, share.idle])
        }
        None => chart,
    })
}

fn lines(document: &Document, part: Part) -> LineChart {
    let chart = LineChart::new(part.title(), "guests", "Mb/s");
    [CDNA, Config::XenIntel, Config::CdnaTso].into_iter().fold(chart, |chart, config| {
        let of = rows(document, part).filter(|row| row.config == config);
        let points = of.filter_map(|row| Some((f64::from(row.guests), row.mbps?.median)));
        chart.line(config.name(), points)
    })
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::example;
    use super::*;

    #[test]
    fn the_papers_numbers_stand_beside_the_measured_ones() {
        let document = example();
        let table = table(&document, Part::Table2);
        let [row] = table.rows() else { panic!("{table:?}") };
        assert_eq!(row[..5], ["cdna-hypervisor", "tx", "1", "1,867", "700"]);
        assert_eq!(row[5], "10.0 (10.2)");
        assert_eq!(row[9], "50.0 (50.8)");
        assert_eq!(row[11], "1,000 (13,659)");
    }

    #[test]
    fn a_page_has_a_chart_for_each_part() {
        let html = page(&example()).to_html();
        assert_eq!(html.matches("<figure>").count(), 2);
        assert!(html.contains("Note: a note.") && html.contains("cdna-hypervisor"));
    }
}
