//! The result for a terminal.

use std::collections::BTreeSet;

use report::{Claim, Stats, Table, claims_table, human};

use super::claims::Order;
use super::document::Document;
use super::paper::Figure;
use super::rows::{CostRatios, Row};
use crate::repro::results::Section;

/// Everything that is printed.
pub fn sections(document: &Document) -> Vec<Section> {
    let figure = |figure: Figure| {
        let table = Some(table(document, figure));
        Section { title: figure.title().to_owned(), table, remarks: remarks(document, figure) }
    };
    let mut sections: Vec<Section> = figures(document).into_iter().map(figure).collect();
    if !document.claims.is_empty() {
        let mut claims = Section::table("What the paper claims", claims_table(&document.claims));
        claims.remarks = document.claims.iter().map(grounds).collect();
        sections.push(claims);
    }
    sections.push(Section::remarks(ORDER, order_sentences(document)));
    sections.push(Section::remarks("Notes", document.notes().collect()));
    sections
}

/// The heading of [`order_sentences`].
pub const ORDER: &str = "Where the order differs from the paper's";

/// The figures that have rows, in the paper's order.
pub fn figures(document: &Document) -> Vec<Figure> {
    let figures: BTreeSet<Figure> = document.rows.iter().map(|row| row.of).collect();
    figures.into_iter().collect()
}

/// The rows of a figure.
pub fn rows(document: &Document, figure: Figure) -> impl Iterator<Item = &Row> {
    document.rows.iter().filter(move |row| row.of == figure)
}

/// A figure's table.
pub fn table(document: &Document, figure: Figure) -> Table {
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
        let number = |value: Option<f64>| value.map_or(String::new(), human);
        let mut cells = vec![row.config.to_owned(), row.direction.name().to_owned()];
        cells.extend([number(row.paper_mbps), number(row.paper_ratio_to_none)]);
        cells.extend(to_linux.then(|| number(row.paper_ratio_to_linux)));
        cells.extend([
            row.mbps.as_ref().map_or(String::new(), Stats::spread),
            number(row.ratio_to_none),
        ]);
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
        cells.push(time.map_or(String::new(), |time| human(time / 1e3)));
        cells.extend(divided(row.cost_divided_by));
        cells.push(row.paper_cost_divided_by.map_or(String::new(), in_one_cell));
        table.row(cells);
    }
    table
}

fn divided(by: Option<CostRatios>) -> [String; 3] {
    let by = by.unwrap_or_default();
    [by.guest, by.driver, by.hypervisor].map(|by| by.map_or(String::new(), human))
}

/// `4.00 / 2.10 / 1.90`.
fn in_one_cell(by: CostRatios) -> String {
    let part = |by: String| if by.is_empty() { "–".to_owned() } else { by };
    divided(Some(by)).map(part).join(" / ")
}

/// Remarks on a figure's rows. Rows with the same remark share one sentence.
pub fn remarks(document: &Document, figure: Figure) -> Vec<String> {
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

/// Below this share, in per cent, the server's CPU was not the limit.
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

/// The grounds of a verdict.
pub fn grounds(claim: &Claim) -> String {
    format!("{}: {}", claim.source, claim.grounds())
}

/// Sentences on where the order differs from the paper's.
pub fn order_sentences(document: &Document) -> Vec<String> {
    if document.more.orders.is_empty() {
        return vec!["All measured configurations are in the paper's order.".into()];
    }
    document.more.orders.iter().map(Order::sentence).collect()
}

#[cfg(test)]
mod tests {
    use report::Verdict;

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
}
