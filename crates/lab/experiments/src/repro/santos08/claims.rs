//! What the paper claims and issue 15 wants to see, compared with what was measured.

use report::{Claim, Rule, Statement, Unit};

use super::config::Line;
use super::paper::{DEFAULT, MOST, MTU};
use super::rows::Row;

/// The claims about packets of the MTU. One that lacks a measurement cannot be told.
pub fn claims(rows: &[Row]) -> Vec<Claim> {
    let find = |line, coalesce| {
        let is = |row: &&Row| {
            (row.figure, row.line, row.coalesce, row.size) == ("11", line, coalesce, MTU)
        };
        rows.iter().find(is)
    };
    let total = |line, coalesce| find(line, coalesce)?.ns_per_packet.map(|cost| cost.total);
    let over = |line, coalesce| find(line, coalesce)?.over_linux;
    let mut claims = Vec::new();
    // Each optimisation costs less than the one before it: a packet's cost over that of the one before.
    let order = [
        ("§6", Line::Original, DEFAULT, Line::GuestCopy, MOST, "guest copy, coalesced, ÷ original"),
        (
            "§6",
            Line::GuestCopy,
            MOST,
            Line::MultiqueueReuse,
            MOST,
            "multi-queue with grant reuse ÷ guest copy",
        ),
        (
            "§6",
            Line::MultiqueueReuse,
            MOST,
            Line::Direct,
            MOST,
            "direct ÷ multi-queue with grant reuse",
        ),
    ];
    for (source, before, before_frames, after, after_frames, what) in order {
        let says = "each step costs less than the one before";
        let paper = |line, frames| super::paper::over_linux(line, frames).map(|over| 1.0 + over);
        let number = paper(after, after_frames).zip(paper(before, before_frames));
        let number = number.map(|(after, before)| after / before);
        let here = total(after, after_frames).zip(total(before, before_frames));
        let here = here.map(|(after, before)| after / before);
        let statement = Statement { source, says, number, unit: Unit::Times };
        claims.push(statement.compare("receive", what, here, Rule::AtMost(1.0, 1.0)));
    }
    let saved = |line| Some(total(line, DEFAULT)? - total(line, MOST)?);
    let saves = Statement {
        source: "Figure 11",
        says: "coalescing saves more behind a driver domain than on Linux",
        number: None,
        unit: Unit::Times,
    };
    let here = saved(Line::GuestCopy).zip(saved(Line::Linux));
    // What Linux saves may be nothing; then any saving is more.
    let here = here.map(|(copied, linux)| copied / linux.max(1.0));
    claims.push(saves.compare(
        "receive",
        "ns saved by 64 instead of 6 packets per interrupt: guest copy ÷ Linux",
        here,
        Rule::Above(1.0),
    ));
    let direct = Statement {
        source: "§6",
        says: "direct I/O costs little more than Linux",
        number: Some(0.11),
        unit: Unit::Share,
    };
    claims.push(direct.compare(
        "receive",
        "over Linux: direct",
        over(Line::Direct, MOST),
        Rule::AtMost(0.25, 0.5),
    ));
    claims.extend(copies(rows));
    claims
}

/// Who pays for the copy. The paper's guest copies are compared with its original, which here flips pages; so these compare
/// with pvnet's own copies.
fn copies(rows: &[Row]) -> Vec<Claim> {
    let cost = |line| {
        let is =
            |row: &&Row| (row.figure, row.line, row.coalesce, row.size) == ("11", line, MOST, MTU);
        rows.iter().find(is)?.ns_per_packet
    };
    let driver = |after, before| Some(cost(after)?.driver / cost(before)?.driver);
    let statement = |source, says| Statement { source, says, number: None, unit: Unit::Times };
    let moved = || {
        let (guest, copy) = (cost(Line::GuestCopy)?, cost(Line::Copy)?);
        Some((guest.guest - copy.guest) / (copy.driver - guest.driver))
    };
    let device = "the driver domain does not copy what a device puts into guest memory";
    vec![
        statement("§4.3", device).compare(
            "receive",
            "driver domain: a card's queue for the guest ÷ copy from the card",
            driver(Line::MultiqueueReuse, Line::CopyFromCard),
            Rule::AtMost(0.5, 0.5),
        ),
        statement("§4.3", device).compare(
            "receive",
            "driver domain: a tap's queue for the guest ÷ copy from the tap",
            driver(Line::Steered, Line::Copy),
            Rule::AtMost(0.95, 1.0),
        ),
        statement("§4.1", "the guest's copy relieves the driver domain").compare(
            "receive",
            "driver domain: guest copy ÷ copy",
            driver(Line::GuestCopy, Line::Copy),
            Rule::AtMost(1.0, 1.0),
        ),
        statement("§4.1", "the guest pays no more than the driver domain saves").compare(
            "receive",
            "what the guest pays ÷ what the driver domain saves",
            moved(),
            Rule::AtMost(1.0, 1.0),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use report::Verdict;

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
        ];
        let keys: Vec<Received> = all.iter().map(|(line, frames, _)| key(*line, *frames)).collect();
        all.iter().zip(&keys).for_each(|((_, _, total), key)| seen.push(*key, sample(*total)));
        let claims = claims(&rows(&keys, &seen));
        let verdict = |what: &str| {
            let found = claims.iter().find(|claim| claim.what.contains(what));
            found.unwrap_or_else(|| panic!("{what}")).verdict
        };
        assert_eq!(verdict("÷ original"), Verdict::Holds);
        assert_eq!(verdict("reuse ÷ guest copy"), Verdict::CannotBeTold);
        assert_eq!(verdict("ns saved"), Verdict::Holds);
        assert_eq!(verdict("over Linux"), Verdict::Holds);
    }
}
