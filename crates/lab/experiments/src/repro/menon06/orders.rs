//! Pairs of configurations whose order differs from the paper's.

use schemars::JsonSchema;
use serde::Serialize;

use super::rows::Row;
use crate::repro::transfer::Direction;

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
    /// The same ratio here, at most 1.
    pub ratio: f64,
    /// Whether the ranges of their rounds overlap, so that the order may be chance.
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
    use super::super::paper::Figure;
    use super::super::rows::tests::{paper, rows};
    use super::*;

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
