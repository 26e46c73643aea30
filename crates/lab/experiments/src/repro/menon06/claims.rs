//! The paper's claims, compared with the measurements.

use report::{Claim, Rule, Unit};
use schemars::JsonSchema;
use serde::Serialize;

use super::paper::{CHANNEL_SAVES, DRIVER_OPT_PACED, DRIVER_PACED, Figure, LINUX_PACED};
use super::rows::Row;
use crate::repro::document::statement;
use crate::repro::transfer::Direction;

/// The claims of the figures that have rows.
pub fn claims(rows: &[Row]) -> Vec<Claim> {
    let has = |figure: Figure| rows.iter().any(|row| row.of == figure);
    let mut claims = Vec::new();
    if has(Figure::Table1) {
        claims.extend(paced(rows));
    }
    if has(Figure::Five) {
        claims.push(all_together(rows));
        claims.push(largest_gain(rows));
    }
    if has(Figure::Seven) {
        let says =
            "with a NIC that offers nothing, the high-level interface nearly doubles the rate";
        let what = "high over a NIC that offers nothing ÷ none";
        let (paper, here) = over_none(rows, Figure::Seven, "high/none");
        let statement = statement("Figure 7", says, paper, Unit::Times);
        claims.push(statement.compare(TRANSMIT, what, here, Rule::at_least(1.9)));
    }
    if has(Figure::Eight) {
        claims.push(channel(rows));
    }
    if has(Figure::Eleven) {
        let says = "in the driver domain, buffers of the MTU are faster than zeroed pages";
        let what = "MTU buffers ÷ zeroed pages, in the driver domain";
        let (paper, here) = over_none(rows, Figure::Eleven, "Driver-MTU");
        let statement = statement("Figure 11", says, paper, Unit::Times);
        claims.push(statement.compare(RECEIVE, what, here, Rule::Above(1.0)));
    }
    if has(Figure::Thirteen) {
        let says = "a guest receives more by copies than by page flips";
        let (paper, here) = over_none(rows, Figure::Thirteen, "Guest-copy");
        let statement = statement("Figure 13", says, paper, Unit::Times);
        claims.push(statement.compare(RECEIVE, "copy ÷ flip", here, Rule::at_least(1.18)));
        claims.push(pool(rows));
    }
    claims
}

const TRANSMIT: &str = "transmit";
const RECEIVE: &str = "receive";

fn find<'a>(rows: &'a [Row], figure: Figure, config: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.of == figure && row.config == config)
}

fn ratio(rows: &[Row], figure: Figure, config: &str, to: &str) -> Option<f64> {
    let rate = |config| Some(find(rows, figure, config)?.mbps?.median);
    Some(rate(config)? / rate(to).filter(|rate| *rate > 0.0)?)
}

/// The ratio of a configuration's rate to the figure's unoptimised one, in the paper and here.
fn over_none(rows: &[Row], figure: Figure, config: &str) -> (Option<f64>, Option<f64>) {
    let paper = find(rows, figure, config).and_then(|row| row.paper_ratio_to_none);
    (paper, ratio(rows, figure, config, figure.none()))
}

/// The claim about the best combination that this machine can run.
fn all_together(rows: &[Row]) -> Claim {
    let says = "all optimisations together raise the rate by a factor of 4.4";
    let statement = statement("Figure 5", says, 4.4, Unit::Times);
    let over = |config: &str| ratio(rows, Figure::Five, config, "none");
    let (what, here) = match (over("high-ioc-sp"), over("high-ioc")) {
        (None, Some(without)) => ("all but superpages ÷ none", Some(without)),
        (all, _) => ("all optimisations ÷ none", all),
    };
    statement.compare(TRANSMIT, what, here, Rule::at_least(4.4))
}

/// Table 1 at a rate that all configurations reach: how busy the CPU is.
fn paced(rows: &[Row]) -> [Claim; 2] {
    let row = |config| find(rows, Figure::Table1, config);
    let ratio = |of: &dyn Fn(&Row) -> Option<f64>, config, to| {
        Some(of(row(config)?)? / of(row(to)?).filter(|busy| *busy > 0.0)?)
    };
    let compare = |says, config, to, what, rule| {
        let number = ratio(&|row| row.paper_busy_percent, config, to);
        let statement = statement("Table 1", says, number, Unit::Times);
        statement.compare(TRANSMIT, what, ratio(&Row::busy, config, to), rule)
    };
    [
        compare(
            "at the rate of the links, the driver domain needs more CPU time than Linux",
            DRIVER_PACED,
            LINUX_PACED,
            "CPU time at one rate: driver domain ÷ Linux",
            Rule::Above(1.0),
        ),
        compare(
            "at the rate of the links, the optimised driver domain needs less than the original",
            DRIVER_OPT_PACED,
            DRIVER_PACED,
            "CPU time at one rate: optimised ÷ original driver domain",
            Rule::AtMost(1.0, 1.05),
        ),
    ]
}

/// The claim about the shared pages of §4.2.
fn pool(rows: &[Row]) -> Claim {
    let calls = |config| {
        let row = find(rows, Figure::Thirteen, config)?;
        row.per_packet.as_ref()?.get("hypercalls").copied()
    };
    let says = "pages that are shared from the set-up on need no grant operation per packet";
    let statement = statement("§4.2", says, None, Unit::Times);
    let here = calls("Guest-copy-pool").zip(calls("Guest-copy").filter(|calls| *calls > 0.0));
    let what = "hypercalls per packet: copy to the shared pool ÷ copy";
    let differs = "What is left maps the acknowledgements, which the guest sends as before.";
    let here = here.map(|(pool, copy)| pool / copy);
    statement.compare(RECEIVE, what, here, Rule::AtMost(0.4, 0.6)).differs(differs)
}

fn largest_gain(rows: &[Row]) -> Claim {
    let says = "the high-level interface gains most; each other optimisation alone gains nothing";
    let statement = statement("Figure 5", says, None, Unit::Times);
    let over = |config: &str| ratio(rows, Figure::Five, config, "high");
    let others = [over("sp"), over("ioc")].into_iter().flatten();
    let here = others.reduce(f64::max).filter(|next| *next > 0.0).map(|next| 1.0 / next);
    statement.compare(TRANSMIT, "high ÷ the best other optimisation alone", here, Rule::Above(1.0))
}

fn channel(rows: &[Row]) -> Claim {
    let says = "the I/O channel saves 38 % of the hypervisor's cost";
    let statement = statement("Figure 8", says, CHANNEL_SAVES, Unit::Share);
    let time = |config| {
        let row = find(rows, Figure::Eight, config)?;
        row.per_packet.as_ref()?.get("hypervisor_ns").copied().filter(|time| *time > 0.0)
    };
    let saved = time("high").zip(time("high-ioc")).map(|(before, after)| 1.0 - after / before);
    let what = "share of the hypervisor's time per packet that the header channel saves";
    statement.compare(TRANSMIT, what, saved, Rule::at_least(CHANNEL_SAVES))
}

/// Two configurations of one figure whose order differs from the paper's.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Order {
    /// The figure.
    pub figure: &'static str,
    /// The direction of the stream.
    pub direction: Direction,
    /// The configuration that is faster in the paper.
    pub paper_faster: &'static str,
    /// The configuration that is slower in the paper.
    pub paper_slower: &'static str,
    /// The ratio of the two in the paper.
    pub paper_ratio: f64,
    /// The same ratio here, below 1.
    pub ratio: f64,
    /// Whether the ranges of the two configurations' rounds overlap, so that the order may be chance.
    pub ranges_overlap: bool,
}

impl Order {
    /// The difference as a sentence.
    pub fn sentence(&self) -> String {
        let chance = if self.ranges_overlap { "their ranges overlap" } else { "in every round" };
        let figure = self.figure;
        let place = if figure == "table1" { "Table 1" } else { &format!("Figure {figure}") };
        format!(
            "{place} ({}): in the paper {} is {:.2} times {}, here it is {:.2} times ({chance}).",
            self.direction.name(),
            self.paper_faster,
            self.paper_ratio,
            self.paper_slower,
            self.ratio
        )
    }
}

/// Every pair whose order differs from the paper's.
pub fn orders(rows: &[Row]) -> Vec<Order> {
    let pairs = rows.iter().flat_map(|row| rows.iter().map(move |other| (row, other)));
    pairs.filter_map(|(faster, slower)| order(faster, slower)).collect()
}

fn order(faster: &Row, slower: &Row) -> Option<Order> {
    let together = faster.of == slower.of && faster.direction == slower.direction;
    let paper_ratio = faster.paper_mbps? / slower.paper_mbps?;
    let (fast, slow) = (faster.mbps?, slower.mbps?);
    let differs = together && paper_ratio > 1.0 && fast.median <= slow.median;
    differs.then(|| Order {
        figure: faster.figure,
        direction: faster.direction,
        paper_faster: faster.config,
        paper_slower: slower.config,
        paper_ratio,
        ratio: fast.median / slow.median.max(f64::EPSILON),
        ranges_overlap: fast.max >= slow.min,
    })
}

#[cfg(test)]
mod tests {
    use report::Verdict;

    use super::super::paper::Figure;
    use super::super::rows::tests::{paper, rows};
    use super::*;

    const FIGURES: [Figure; 4] = [Figure::Five, Figure::Seven, Figure::Eleven, Figure::Thirteen];

    fn verdicts(figures: &[Figure], mbps: impl Fn(&str) -> f64) -> Vec<Verdict> {
        claims(&rows(figures, mbps)).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn the_papers_own_numbers_hold() {
        let mut verdicts = verdicts(&FIGURES, paper);
        // The samples do not count hypercalls.
        assert_eq!(verdicts.pop(), Some(Verdict::CannotBeTold));
        assert_eq!(verdicts, [Verdict::Holds; 5]);
    }

    #[test]
    fn the_pool_saves_hypercalls_and_a_paced_row_shows_how_busy_the_cpu_is() {
        let mut rows = rows(&[Figure::Table1, Figure::Thirteen], |_| 100.0);
        for (config, calls) in [("Guest-copy", 1.2), ("Guest-copy-pool", 0.3)] {
            let row = rows.iter_mut().find(|row| row.config == config).unwrap();
            row.per_packet.as_mut().unwrap().insert("hypercalls".to_owned(), calls);
        }
        let claims = claims(&rows);
        let find = |what: &str| claims.iter().find(|claim| claim.what.contains(what)).unwrap();
        assert!((find("shared pool").here.unwrap() - 0.25).abs() < 1e-9);
        let driver = find("driver domain ÷ Linux");
        assert_eq!((driver.paper, driver.here), (Some(46.0 / 40.0), Some(1.0)));
        assert_eq!(find("optimised ÷ original").verdict, Verdict::Holds);
    }

    #[test]
    fn a_claim_that_does_not_hold_says_so() {
        assert_eq!(verdicts(&FIGURES, |_| 100.0)[..5], [Verdict::DoesNotHold; 5]);
        let figure_8 = |after: f64| {
            let rate = move |config: &str| if config == "high" { 100.0 } else { after };
            claims(&rows(&[Figure::Eight], rate)).remove(0)
        };
        // The sample's time per packet is the inverse of its rate.
        assert_eq!(figure_8(100.0).verdict, Verdict::DoesNotHold);
        assert_eq!(figure_8(170.0).verdict, Verdict::Holds);
        assert!((figure_8(200.0).here.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_papers_own_order_has_no_differences() {
        let figures = [Figure::Five, Figure::Seven, Figure::Eleven, Figure::Thirteen];
        assert_eq!(orders(&rows(&figures, paper)), []);
    }

    #[test]
    fn a_different_order_is_found() {
        let slower = |config: &str| if config == "high-ioc" { 2700.0 } else { paper(config) };
        let orders = orders(&rows(&[Figure::Five], slower));
        let [order] = &orders[..] else { panic!("{orders:?}") };
        assert_eq!((order.paper_faster, order.paper_slower), ("high-ioc", "high"));
        assert!(order.ratio < 1.0 && order.paper_ratio > 1.0 && order.ranges_overlap);
        assert!(order.sentence().contains("ranges overlap"), "{}", order.sentence());
        let slower = |config: &str| if config == "high-ioc" { 700.0 } else { paper(config) };
        let orders = super::orders(&rows(&[Figure::Five], slower));
        assert!(orders.iter().any(|order| !order.ranges_overlap));
    }
}
