//! What the paper claims, held against what was measured.

use serde::Serialize;

use super::paper::{CHANNEL_SAVES, DRIVER_NONE, Direction, Figure, GUEST_NONE};
use super::rows::Row;

/// A claim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// What is compared.
    pub what: String,
    /// What must be so.
    pub wanted: String,
    /// What is.
    pub measured: Option<f64>,
    /// Whether it is so; nothing if it was not measured.
    pub shown: Option<bool>,
}

/// Two configurations of one figure, in another order than in the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Order {
    /// The figure.
    pub figure: &'static str,
    /// Which way the stream goes.
    pub direction: Direction,
    /// What is faster in the paper.
    pub paper_faster: &'static str,
    /// What is slower there.
    pub paper_slower: &'static str,
    /// How much faster, in the paper.
    pub paper_ratio: f64,
    /// The same ratio here: not more than 1.
    pub ratio: f64,
    /// Whether the slowest round of one lies within the rounds of the other: it may be chance.
    pub ranges_overlap: bool,
}

impl Order {
    /// As a sentence.
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

/// Every pair in another order than the paper's.
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

/// The claims, of those figures that there are rows of.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let has = |figure: Figure| rows.iter().any(|row| row.of == figure);
    let mut targets = Vec::new();
    if has(Figure::Five) {
        targets.push(all_together(rows));
        targets.push(largest_gain(rows));
    }
    if has(Figure::Seven) {
        let over = ratio(rows, Figure::Seven, "high/none", GUEST_NONE);
        let what = "transmit: high over a NIC that offers nothing ÷ none";
        targets.push(at_least(what, 1.9, over));
    }
    if has(Figure::Eight) {
        targets.push(channel(rows));
    }
    if has(Figure::Eleven) {
        let over = ratio(rows, Figure::Eleven, "Driver-MTU", DRIVER_NONE);
        let what = "receive: MTU buffers ÷ zeroed pages, in the driver domain".to_owned();
        let shown = over.map(|over| over > 1.0);
        targets.push(Target { what, wanted: "> 1".to_owned(), measured: over, shown });
    }
    if has(Figure::Thirteen) {
        let over = ratio(rows, Figure::Thirteen, "Guest-copy", GUEST_NONE);
        targets.push(at_least("receive: copy ÷ flip", 1.18, over));
    }
    targets
}

fn find<'a>(rows: &'a [Row], figure: Figure, config: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.of == figure && row.config == config)
}

fn ratio(rows: &[Row], figure: Figure, config: &str, to: &str) -> Option<f64> {
    let rate = |config| Some(find(rows, figure, config)?.mbps?.median);
    Some(rate(config)? / rate(to).filter(|rate| *rate > 0.0)?)
}

fn at_least(what: &str, least: f64, measured: Option<f64>) -> Target {
    let shown = measured.map(|measured| measured >= least);
    Target { what: what.to_owned(), wanted: format!("≥ {least}"), measured, shown }
}

/// The best combination that the machine can do.
fn all_together(rows: &[Row]) -> Target {
    let over = |config: &str| ratio(rows, Figure::Five, config, "none");
    match (over("high-ioc-sp"), over("high-ioc")) {
        (None, Some(without)) => {
            at_least("transmit: all but superpages ÷ none", 4.4, Some(without))
        }
        (all, _) => at_least("transmit: all optimisations ÷ none", 4.4, all),
    }
}

fn largest_gain(rows: &[Row]) -> Target {
    let over = |config: &str| ratio(rows, Figure::Five, config, "high");
    let others = [over("sp"), over("ioc")].into_iter().flatten();
    // The paper's: each of the others by itself is no gain.
    let measured = others.reduce(f64::max).filter(|next| *next > 0.0).map(|next| 1.0 / next);
    let what = "transmit: high ÷ the best other optimisation by itself".to_owned();
    let shown = measured.map(|measured| measured > 1.0);
    Target { what, wanted: "> 1".to_owned(), measured, shown }
}

fn channel(rows: &[Row]) -> Target {
    let time = |config| {
        let row = find(rows, Figure::Eight, config)?;
        row.per_packet.as_ref()?.get("hypervisor_ns").copied().filter(|time| *time > 0.0)
    };
    let saved = time("high").zip(time("high-ioc")).map(|(before, after)| 1.0 - after / before);
    let what = "transmit: part of the hypervisor's time per packet that the header channel saves";
    at_least(what, CHANNEL_SAVES, saved)
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::document;
    use super::*;

    /// The paper's own throughput, with superpages faster than in it or not.
    fn paper(config: &str) -> f64 {
        match config {
            "none" | GUEST_NONE => 750.0,
            "sp" | "ioc" => 760.0,
            "high" => 2794.0,
            "high-ioc" => 3230.0,
            "high-ioc-sp" => 3310.0,
            "high/none" | "high/csum" => 1461.0,
            "high/csum+sg" => 2007.0,
            DRIVER_NONE => 1738.0,
            "Driver-MTU" | "Guest-copy" | "Guest-copy-SP" => 2033.0,
            "Driver-MTU-SP" => 2301.0,
            _ => 2508.0,
        }
    }

    const SHOWN: [Figure; 4] = [Figure::Five, Figure::Seven, Figure::Eleven, Figure::Thirteen];

    #[test]
    fn the_papers_own_numbers_pass() {
        let document = document(&SHOWN, paper);
        assert_eq!(document.orders, []);
        assert_eq!(document.targets.len(), 5);
        assert!(document.targets.iter().all(|target| target.shown == Some(true)), "{document:?}");
    }

    #[test]
    fn another_order_is_told() {
        let slower = |config: &str| if config == "high-ioc" { 2700.0 } else { paper(config) };
        let orders = document(&[Figure::Five], slower).orders;
        let [order] = &orders[..] else { panic!("{orders:?}") };
        assert_eq!((order.paper_faster, order.paper_slower), ("high-ioc", "high"));
        assert!(order.ratio < 1.0 && order.paper_ratio > 1.0 && order.ranges_overlap);
        assert!(order.sentence().contains("ranges overlap"), "{}", order.sentence());
        let slower = |config: &str| if config == "high-ioc" { 700.0 } else { paper(config) };
        let document = document(&[Figure::Five], slower);
        assert!(document.orders.iter().any(|order| !order.ranges_overlap));
    }

    #[test]
    fn a_claim_that_does_not_hold_says_so() {
        let even = document(&SHOWN, |_| 100.0);
        assert!(even.targets.iter().all(|target| target.shown == Some(false)), "{even:?}");
        let eight = |after: f64| {
            let rate = move |config: &str| if config == "high" { 100.0 } else { after };
            document(&[Figure::Eight], rate).targets[0].clone()
        };
        // The sample's time per packet is the inverse of its rate.
        assert_eq!(eight(100.0).shown, Some(false));
        assert_eq!(eight(170.0).shown, Some(true));
        assert!((eight(200.0).measured.unwrap() - 0.5).abs() < 1e-9);
    }
}
