//! The paper's claims and other expectations, compared with the measurements.

use report::{Claim, Rule, Statement, Unit};

use super::config::{Line, Placement};
use super::measure::Cost;
use super::reads::ReadRow;
use super::rows::Row;
use super::{DEFAULT, MOST, MTU};
use crate::repro::santos08;

/// The claims about packets of the MTU, for each placement. One that lacks a measurement cannot be told. A copy of such a
/// packet takes `copy_ns`.
pub fn claims(rows: &[Row], reads: &[ReadRow], copy_ns: f64) -> Vec<Claim> {
    let mut claims = Vec::new();
    for placement in [Placement::Together, Placement::Apart] {
        let of = Measured { rows, placement };
        if rows.iter().any(|row| row.cpus == placement) {
            claims.extend(of.order());
            claims.extend(of.coalescing());
            claims.extend(of.copies(copy_ns));
        }
    }
    claims.extend(read(reads));
    claims
}

/// The rows of one placement.
#[derive(Clone, Copy)]
struct Measured<'a> {
    rows: &'a [Row],
    placement: Placement,
}

const fn workload(placement: Placement) -> &'static str {
    match placement {
        Placement::Together => "receive, together",
        Placement::Apart => "receive, apart",
    }
}

fn statement(source: &'static str, says: &'static str) -> Statement {
    Statement { source, says, number: None, unit: Unit::Times }
}

impl<'a> Measured<'a> {
    fn find(self, line: Line, coalesce: u16) -> Option<&'a Row> {
        let is = |row: &&Row| {
            (row.figure, row.line, row.cpus) == ("11", line, self.placement)
                && (row.coalesce, row.size) == (coalesce, MTU)
        };
        self.rows.iter().find(is)
    }

    fn cost(self, line: Line, coalesce: u16) -> Option<Cost> {
        self.find(line, coalesce)?.ns_per_packet
    }

    fn total(self, line: Line, coalesce: u16) -> Option<f64> {
        Some(self.cost(line, coalesce)?.total)
    }

    fn compare(self, statement: Statement, what: &str, here: Option<f64>, rule: Rule) -> Claim {
        statement.compare(workload(self.placement), what, here, rule)
    }

    /// Each optimisation costs less than the one before it, and direct I/O little more than Linux.
    fn order(self) -> Vec<Claim> {
        let steps = [
            ((Line::Original, DEFAULT), Line::GuestCopy, "guest copy, coalesced, ÷ original"),
            (
                (Line::GuestCopy, MOST),
                Line::MultiqueueReuse,
                "multi-queue with grant reuse ÷ guest copy",
            ),
            ((Line::MultiqueueReuse, MOST), Line::Direct, "direct ÷ multi-queue with grant reuse"),
        ];
        let step = |((before, frames), after, what)| {
            let paper = |line, frames| santos08::over_linux(line, frames).map(|over| 1.0 + over);
            let number = divide(paper(after, MOST), paper(before, frames));
            let says = "each step costs less than the one before";
            let statement = Statement { number, ..statement("§6", says) };
            let here = divide(self.total(after, MOST), self.total(before, frames));
            self.compare(statement, what, here, Rule::AtMost(1.0, 1.05))
        };
        let direct = Statement {
            source: "§6",
            says: "direct I/O costs little more than Linux",
            number: santos08::over_linux(Line::Direct, MOST),
            unit: Unit::Share,
        };
        let over = self.find(Line::Direct, MOST).and_then(|row| row.over_linux);
        let direct = self.compare(direct, "over Linux: direct", over, Rule::AtMost(0.25, 0.5));
        steps.map(step).into_iter().chain([direct]).collect()
    }

    /// Sharing interrupts saves more behind a driver domain than on Linux.
    fn coalescing(self) -> Vec<Claim> {
        let saved = |line| Some(self.total(line, DEFAULT)? - self.total(line, MOST)?);
        let claim = |(line, what)| {
            let more = saved(line).zip(saved(Line::Linux)).map(|(line, linux)| line - linux);
            let here = divide(more, self.total(Line::Linux, MOST));
            let says = "coalescing saves more behind a driver domain than on Linux";
            let statement = Statement { unit: Unit::Share, ..statement("Figure 11", says) };
            self.compare(statement, what, here, Rule::Above(0.0))
        };
        let lines = [
            (Line::GuestCopy, "64 instead of 6: what guest copy saves more than Linux, ÷ Linux"),
            (
                Line::MultiqueueReuse,
                "64 instead of 6: what multi-queue saves more than Linux, ÷ Linux",
            ),
        ];
        lines.map(claim).into()
    }

    /// Who pays for the copy. The paper compares guest copies with its original. Here the original flips pages, so
    /// guest copies are compared with pvnet's own copies.
    fn copies(self, copy_ns: f64) -> Vec<Claim> {
        let driver = |line| Some(self.cost(line, MOST)?.driver);
        // The meter counts the copy as the hypervisor's.
        let both = |line| self.cost(line, MOST).map(|cost| cost.driver + cost.hypervisor);
        let guest = |line| Some(self.cost(line, MOST)?.guest);
        let saved = both(Line::Copy).zip(both(Line::GuestCopy)).map(|(copy, own)| copy - own);
        let paid = guest(Line::GuestCopy).zip(guest(Line::Copy)).map(|(own, copy)| own - copy);
        let device = "the driver domain does not copy what a device puts into guest memory";
        let over = |line, base| divide(driver(line), driver(base));
        vec![
            self.compare(
                statement("§4.3", device),
                "driver domain: a card's queue for the guest ÷ copy at the uplink",
                over(Line::MultiqueueReuse, Line::Copy),
                Rule::AtMost(0.5, 0.5),
            ),
            self.compare(
                statement("§4.3", device),
                "driver domain: a card's queue for the guest ÷ copy from the card",
                over(Line::MultiqueueReuse, Line::CopyFromCard),
                Rule::AtMost(1.0, 1.1),
            )
            .differs("Both have the card's DMA: the difference is one copy of 1500 bytes."),
            self.compare(
                statement("§4.3", device),
                "driver domain and hypervisor: a tap's queue for the guest ÷ copy from the tap",
                divide(both(Line::Steered), both(Line::Copy)),
                Rule::AtMost(0.95, 1.0),
            )
            .differs(
                "The kernel copies from the tap in both: the difference is the worker's copy.",
            ),
            self.compare(
                statement("§4.1", "the guest's copy relieves the driver domain of its own"),
                "driver domain and hypervisor: what guest copy saves ÷ a copy",
                divide(saved, Some(copy_ns)),
                Rule::AtLeast(1.0, 0.5),
            )
            .differs(
                "A buffer that is granted to the guest has to be acknowledged; that is work, too.",
            ),
            self.compare(
                statement("§4.1", "the guest pays no more than the driver domain saves"),
                "what the guest pays ÷ what the driver domain saves",
                divide(paid, saved.filter(|saved| *saved > 0.0)),
                Rule::AtMost(1.0, 1.25),
            ),
        ]
    }
}

fn divide(number: Option<f64>, by: Option<f64>) -> Option<f64> {
    number.zip(by).map(|(number, by)| number / by)
}

/// Whose cache the copy warms, with guest and driver domain apart: on one CPU there is only one cache.
fn read(reads: &[ReadRow]) -> Option<Claim> {
    let of = |line| {
        let is = |row: &&ReadRow| (row.line, row.cpus) == (line, Placement::Apart);
        Some(reads.iter().find(is)?.read_ns?.median)
    };
    let says = "a copy on the guest's CPU makes the payload cheaper to read";
    (!reads.is_empty()).then(|| {
        statement("§4.1", says).compare(
            "reading, apart",
            "reading every byte of a packet: guest copy ÷ copy",
            divide(of(Line::GuestCopy), of(Line::Copy)),
            Rule::AtMost(0.8, 0.95),
        )
    })
}

#[cfg(test)]
mod tests {
    use report::Verdict;

    use super::super::reads::tests::read_row;
    use super::super::rows::tests::{key, sample};
    use super::super::rows::{Measurements, Received, rows};
    use super::*;

    #[test]
    fn claims_follow_the_measurements() {
        let mut seen = Measurements::new();
        let all = [
            (Line::Linux, DEFAULT, 1000.0),
            (Line::Linux, MOST, 900.0),
            (Line::Original, DEFAULT, 4000.0),
            (Line::GuestCopy, DEFAULT, 3000.0),
            (Line::GuestCopy, MOST, 2000.0),
            (Line::Direct, MOST, 1000.0),
            // Half of it is the guest's.
            (Line::Copy, MOST, 2400.0),
        ];
        let keys: Vec<Received> = all.iter().map(|(line, frames, _)| key(*line, *frames)).collect();
        all.iter().zip(&keys).for_each(|((_, _, total), key)| seen.push(*key, sample(*total)));
        let reads = [read_row(Line::Copy, 300.0), read_row(Line::GuestCopy, 60.0)];
        let claims = claims(&rows(&keys, &seen), &reads, 150.0);
        let find = |what: &str| {
            let found = claims.iter().find(|claim| claim.what.contains(what));
            found.unwrap_or_else(|| panic!("{what}"))
        };
        let verdict = |what: &str| find(what).verdict;
        assert_eq!(verdict("÷ original"), Verdict::Holds);
        assert_eq!(verdict("reuse ÷ guest copy"), Verdict::CannotBeTold);
        // Guest copy saves 1000 ns and Linux 100; a packet on Linux costs 900.
        assert_eq!(find("guest copy saves more").here, Some(1.0));
        assert_eq!(verdict("over Linux"), Verdict::Holds);
        // It saves 200 ns; a copy takes 150.
        assert!((find("÷ a copy").here.unwrap() - 200.0 / 150.0).abs() < 1e-9);
        // The guest's part fell, too.
        assert_eq!(verdict("what the guest pays"), Verdict::Holds);
        assert_eq!(
            (find("reading every byte").here, verdict("reading every byte")),
            (Some(0.2), Verdict::Holds)
        );
        // Only the reading was measured with guest and driver domain apart.
        assert!(claims.iter().all(|claim| claim.workload != "receive, apart"));
    }
}
