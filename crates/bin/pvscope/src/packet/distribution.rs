//! How much packets of one flow differ.

use ::report::html::{LineChart, Report};
use ::report::{Table, human};
use document::Document;
use schemars::JsonSchema;
use scope_model::Costs;
use scope_result::Recording;
use serde::Serialize;

use super::flow::{Flow, Tally};
use super::span::{self, Direction};
use crate::error::{Error, Result};
use crate::report::sentence;

/// The quantiles of the table, in percent.
const QUANTILES: [(&str, usize); 4] = [("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)];

/// A measure of a packet.
type Measure = (&'static str, fn(&Tally, &Costs) -> f64);

const MEASURES: [Measure; 6] = [
    ("instructions", |tally, _| tally.instructions as f64),
    ("model cycles", |tally, costs| tally.cycles(costs)),
    ("L1 misses", |tally, _| tally.l1 as f64),
    ("L2 misses", |tally, _| tally.l2 as f64),
    ("ITLB misses", |tally, _| tally.itlb as f64),
    ("DTLB misses", |tally, _| tally.dtlb as f64),
];

/// The complete packets of a flow.
pub struct Distribution<'a> {
    recording: &'a Recording,
    direction: Direction,
    /// For each measure its values, sorted.
    values: [Vec<f64>; MEASURES.len()],
}

impl<'a> Distribution<'a> {
    /// The distribution of a flow's complete packets.
    pub fn new(flow: &Flow<'a>, direction: Direction, costs: &Costs) -> Result<Self> {
        let spans = span::spans(flow, direction).into_iter().filter(|span| span.complete);
        let tallies = spans.map(|span| {
            let mut sum = Tally::default();
            flow.visits[span.from..span.to].iter().for_each(|visit| sum += visit.tally());
            sum
        });
        let tallies: Vec<Tally> = tallies.collect();
        if tallies.is_empty() {
            return Err(Error::Usage(format!(
                "the flow has no complete {} of a guest: `pvscope run --flow N` with a larger N has more",
                direction.name()
            )));
        }
        let values = MEASURES.map(|(_, of)| {
            let mut values: Vec<f64> = tallies.iter().map(|tally| of(tally, costs)).collect();
            values.sort_by(f64::total_cmp);
            values
        });
        Ok(Self { recording: flow.recording, direction, values })
    }

    fn packets(&self) -> usize {
        self.values[0].len()
    }

    /// A summary in a sentence.
    pub fn lead(&self) -> String {
        format!(
            "{}: {} complete packets ({}), each from its beginning to its completion; packets under way at the same time share the \
             work in between.",
            self.recording.work.what,
            self.packets(),
            self.direction.name()
        )
    }

    /// The quantiles of each measure.
    pub fn table(&self) -> Table {
        let table = Table::new().left("of a packet");
        let table = QUANTILES.iter().fold(table, |table, (name, _)| table.right(*name));
        MEASURES.iter().zip(&self.values).fold(table, |mut table, ((name, _), values)| {
            let cells = QUANTILES.map(|(_, percent)| human(quantile(values, percent)));
            table.row(std::iter::once((*name).to_owned()).chain(cells));
            table
        })
    }

    /// The same as a document for programs, with the values of all packets.
    pub fn data(&self) -> DistributionData<'_> {
        let rows = MEASURES.iter().zip(&self.values).map(|((name, _), values)| {
            let [p50, p90, p99, max] = QUANTILES.map(|(_, percent)| quantile(values, percent));
            MeasureRow { measure: name, p50, p90, p99, max, values }
        });
        DistributionData {
            what: &self.recording.work.what,
            direction: self.direction,
            packets: self.packets(),
            measures: rows.collect(),
        }
    }

    /// A page with the table and a plot of each measure.
    pub fn page(&self) -> Report {
        let mut page = Report::new("How packets differ");
        page.lead(&sentence(&self.lead()));
        page.table("Quantiles", &self.table());
        for ((name, _), values) in MEASURES.iter().zip(&self.values) {
            let last = values.len().saturating_sub(1).max(1) as f64;
            let points =
                values.iter().enumerate().map(|(n, value)| (100.0 * n as f64 / last, *value));
            let title = format!("{} of a packet", sentence(name));
            let chart = LineChart::new(title, "% of packets with at most", *name);
            let chart = chart.line(*name, points.collect::<Vec<_>>());
            page.figure(&chart, "All complete packets of the flow, in order.");
        }
        page
    }
}

/// The packets of a flow, by what they cost.
#[derive(JsonSchema, Serialize)]
pub struct DistributionData<'a> {
    what: &'a str,
    direction: Direction,
    packets: usize,
    measures: Vec<MeasureRow<'a>>,
}

impl Document for DistributionData<'_> {
    const SCHEMA: &'static str = "pvscope-distribution/1";
}

/// Quantiles of a measure, and the values of all packets.
#[derive(JsonSchema, Serialize)]
struct MeasureRow<'a> {
    measure: &'static str,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    values: &'a [f64],
}

/// The least value that `percent` of the sorted values do not exceed.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            QUANTILES.map(|(_, percent)| quantile(&hundred, percent)),
            [50.0, 90.0, 99.0, 100.0]
        );
        assert_eq!(QUANTILES.map(|(_, percent)| quantile(&[3.0], percent)), [3.0; 4]);
        assert_eq!(quantile(&[1.0, 2.0], 50), 1.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 50), 2.0);
    }
}
