//! What the paper claims, compared with what was measured.

use report::{Claim, Rule, Statement, Unit};

use super::paper::{CHANNEL_SAVES, DRIVER_NONE, Figure, GUEST_NONE};
use super::rows::Row;

/// The claims of the figures that have rows.
pub fn claims(rows: &[Row]) -> Vec<Claim> {
    let has = |figure: Figure| rows.iter().any(|row| row.of == figure);
    let mut claims = Vec::new();
    if has(Figure::Five) {
        claims.push(all_together(rows));
        claims.push(largest_gain(rows));
    }
    if has(Figure::Seven) {
        let statement = Statement {
            source: "Figure 7",
            says: "with a NIC that offers nothing, the high-level interface nearly doubles the rate",
            number: paper_ratio(rows, Figure::Seven, "high/none"),
            unit: Unit::Times,
        };
        let over = ratio(rows, Figure::Seven, "high/none", GUEST_NONE);
        let what = "high over a NIC that offers nothing ÷ none";
        claims.push(statement.compare(TRANSMIT, what, over, at_least(1.9)));
    }
    if has(Figure::Eight) {
        claims.push(channel(rows));
    }
    if has(Figure::Eleven) {
        let statement = Statement {
            source: "Figure 11",
            says: "in the driver domain, buffers of the MTU are faster than zeroed pages",
            number: paper_ratio(rows, Figure::Eleven, "Driver-MTU"),
            unit: Unit::Times,
        };
        let over = ratio(rows, Figure::Eleven, "Driver-MTU", DRIVER_NONE);
        claims.push(statement.compare(
            RECEIVE,
            "MTU buffers ÷ zeroed pages, in the driver domain",
            over,
            Rule::Above(1.0),
        ));
    }
    if has(Figure::Thirteen) {
        let statement = Statement {
            source: "Figure 13",
            says: "a guest receives more by copies than by page flips",
            number: paper_ratio(rows, Figure::Thirteen, "Guest-copy"),
            unit: Unit::Times,
        };
        let over = ratio(rows, Figure::Thirteen, "Guest-copy", GUEST_NONE);
        claims.push(statement.compare(RECEIVE, "copy ÷ flip", over, at_least(1.18)));
    }
    claims
}

const TRANSMIT: &str = "transmit";
const RECEIVE: &str = "receive";

/// Holds from this number on, and never weakly.
fn at_least(least: f64) -> Rule {
    Rule::AtLeast(least, least)
}

fn find<'a>(rows: &'a [Row], figure: Figure, config: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.of == figure && row.config == config)
}

fn ratio(rows: &[Row], figure: Figure, config: &str, to: &str) -> Option<f64> {
    let rate = |config| Some(find(rows, figure, config)?.mbps?.median);
    Some(rate(config)? / rate(to).filter(|rate| *rate > 0.0)?)
}

/// The paper's ratio to the figure's unoptimised configuration.
fn paper_ratio(rows: &[Row], figure: Figure, config: &str) -> Option<f64> {
    find(rows, figure, config)?.paper_ratio_to_none
}

/// The claim about the best combination that this machine can run.
fn all_together(rows: &[Row]) -> Claim {
    let statement = Statement {
        source: "Figure 5",
        says: "all optimisations together raise the rate by a factor of 4.4",
        number: Some(4.4),
        unit: Unit::Times,
    };
    let over = |config: &str| ratio(rows, Figure::Five, config, "none");
    let (what, here) = match (over("high-ioc-sp"), over("high-ioc")) {
        (None, Some(without)) => ("all but superpages ÷ none", Some(without)),
        (all, _) => ("all optimisations ÷ none", all),
    };
    statement.compare(TRANSMIT, what, here, at_least(4.4))
}

fn largest_gain(rows: &[Row]) -> Claim {
    let statement = Statement {
        source: "Figure 5",
        says: "the high-level interface gains most; each other optimisation alone gains nothing",
        number: None,
        unit: Unit::Times,
    };
    let over = |config: &str| ratio(rows, Figure::Five, config, "high");
    let others = [over("sp"), over("ioc")].into_iter().flatten();
    let here = others.reduce(f64::max).filter(|next| *next > 0.0).map(|next| 1.0 / next);
    statement.compare(TRANSMIT, "high ÷ the best other optimisation alone", here, Rule::Above(1.0))
}

fn channel(rows: &[Row]) -> Claim {
    let statement = Statement {
        source: "Figure 8",
        says: "the I/O channel saves 38 % of the hypervisor's cost",
        number: Some(CHANNEL_SAVES),
        unit: Unit::Share,
    };
    let time = |config| {
        let row = find(rows, Figure::Eight, config)?;
        row.per_packet.as_ref()?.get("hypervisor_ns").copied().filter(|time| *time > 0.0)
    };
    let saved = time("high").zip(time("high-ioc")).map(|(before, after)| 1.0 - after / before);
    let what = "share of the hypervisor's time per packet that the header channel saves";
    statement.compare(TRANSMIT, what, saved, at_least(CHANNEL_SAVES))
}

#[cfg(test)]
mod tests {
    use report::Verdict;

    use super::super::rows::tests::{paper, rows};
    use super::*;

    const FIGURES: [Figure; 4] = [Figure::Five, Figure::Seven, Figure::Eleven, Figure::Thirteen];

    fn verdicts(figures: &[Figure], mbps: impl Fn(&str) -> f64) -> Vec<Verdict> {
        claims(&rows(figures, mbps)).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn the_papers_own_numbers_hold() {
        assert_eq!(verdicts(&FIGURES, paper), [Verdict::Holds; 5]);
    }

    #[test]
    fn a_claim_that_does_not_hold_says_so() {
        assert_eq!(verdicts(&FIGURES, |_| 100.0), [Verdict::DoesNotHold; 5]);
        let figure_8 = |after: f64| {
            let rate = move |config: &str| if config == "high" { 100.0 } else { after };
            claims(&rows(&[Figure::Eight], rate)).remove(0)
        };
        // The sample's time per packet is the inverse of its rate.
        assert_eq!(figure_8(100.0).verdict, Verdict::DoesNotHold);
        assert_eq!(figure_8(170.0).verdict, Verdict::Holds);
        assert!((figure_8(200.0).here.unwrap() - 0.5).abs() < 1e-9);
    }
}
