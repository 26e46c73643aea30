//! The paper's bars beside the measurements.

use std::collections::BTreeMap;

use report::{CpuSplit, Samples, Stats};
use schemars::JsonSchema;
use serde::Serialize;

use super::measure::{Cost, Sample};
use super::paper::{self, CHANNEL_SAVES, Figure, HIGH_DIVIDES, LINUX, Program};
use super::plan::{Key, Planned};
use crate::repro::rounds;
use crate::repro::transfer::Direction;

/// One bar.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Row {
    /// Its figure.
    pub figure: &'static str,
    /// The configuration's name in the figure.
    pub config: &'static str,
    /// The direction of the stream.
    pub direction: Direction,
    /// How it is sent.
    pub program: Program,
    /// The paper's throughput, in Mb/s.
    pub paper_mbps: Option<f64>,
    /// The throughput here, in Mb/s.
    pub mbps: Option<Stats>,
    /// The median divided by that of the figure's unoptimised configuration.
    pub ratio_to_none: Option<f64>,
    /// The paper's ratio to its unoptimised configuration.
    pub paper_ratio_to_none: Option<f64>,
    /// The median divided by that of native Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_linux: Option<f64>,
    /// The paper's ratio to native Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_ratio_to_linux: Option<f64>,
    /// The rate that the stream did not exceed, in Mb/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pace_mbps: Option<u32>,
    /// How busy the server's CPU was in the paper, in per cent, at a rate that others reached too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_busy_percent: Option<f64>,
    /// Where the server CPU's time went, in CPU seconds per second.
    pub cpu: Option<CpuSplit>,
    /// The cost of 10⁹ bytes, in CPU seconds.
    pub cpu_s_per_gb: Option<Cost>,
    /// The cost of the figure's first configuration divided by this one's, for the same bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_divided_by: Option<CostRatios>,
    /// The paper's ratio of these costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_cost_divided_by: Option<CostRatios>,
    /// Operations of the hypervisor per 1448 bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_packet: Option<BTreeMap<String, f64>>,
    /// What the paper says in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_says: Option<&'static str>,
    /// How the measurement differs from the bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why there is no measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_measurable: Option<String>,
    #[serde(skip)]
    pub(super) of: Figure,
}

/// Ratios of two costs, by domain; none for a domain without numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct CostRatios {
    /// The guest's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<f64>,
    /// The driver domain's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<f64>,
    /// The hypervisor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<f64>,
}

/// The samples of all measurements, and the failures.
pub type Measurements = rounds::Measurements<Key, Sample>;

/// The rows of a plan.
pub fn rows(plan: &[Planned], seen: &Measurements) -> Vec<Row> {
    let mut rows: Vec<Row> = plan.iter().map(|planned| Row::new(planned, seen)).collect();
    let bare = rows.clone();
    for row in &mut rows {
        row.compare(&bare);
    }
    rows
}

impl Row {
    fn new(planned: &Planned, seen: &Measurements) -> Self {
        let bar = &planned.bar;
        let (measured, missing) = match &planned.key {
            Ok(key) => (seen.of(*key), seen.missing(*key)),
            Err(why) => (&[][..], Some(why.clone())),
        };
        let rates: Samples = measured.iter().map(|sample| sample.mbps).collect();
        let overall = [Figure::Table1, Figure::Three, Figure::Four].contains(&bar.figure);
        Self {
            figure: bar.figure.name(),
            config: bar.config,
            direction: bar.direction,
            program: bar.program,
            paper_mbps: bar.mbps,
            mbps: rates.stats(),
            ratio_to_none: None,
            paper_ratio_to_none: paper::ratio(bar, bar.figure.none()),
            ratio_to_linux: None,
            paper_ratio_to_linux: paper::ratio(bar, LINUX).filter(|_| overall),
            pace_mbps: bar.pace,
            paper_busy_percent: bar.busy_percent,
            cpu: CpuSplit::mean(measured.iter().map(|sample| sample.cpu)),
            cpu_s_per_gb: cost(measured),
            cost_divided_by: None,
            paper_cost_divided_by: paper_divided(bar.figure, bar.config),
            per_packet: per_packet(measured),
            paper_says: bar.says,
            note: planned.note.clone(),
            not_measurable: missing,
            of: bar.figure,
        }
    }

    /// The share of time in which the server's CPU was busy, in per cent.
    pub fn busy(&self) -> Option<f64> {
        self.cpu.as_ref().map(|cpu| {
            let busy = cpu.guest + cpu.driver + cpu.hypervisor;
            100.0 * busy / (busy + cpu.idle).max(f64::EPSILON)
        })
    }

    /// Fills in the ratios to other rows.
    fn compare(&mut self, rows: &[Self]) {
        let other = |config: &str| {
            let same = |row: &&Self| row.of == self.of && row.direction == self.direction;
            rows.iter().filter(same).find(|row| row.config == config)
        };
        let rate = |row: &Self| row.mbps.map(|mbps| mbps.median).filter(|median| *median > 0.0);
        let ratio = |config: &str| Some(rate(self)? / other(config).and_then(rate)?);
        let (none, linux) = (ratio(self.of.none()), ratio(LINUX));
        if self.of.shows_costs() {
            let first = other(self.of.none()).and_then(|row| row.cpu_s_per_gb);
            let divided = first.zip(self.cpu_s_per_gb).map(|(first, own)| divide(first, own));
            self.cost_divided_by = divided;
        }
        self.ratio_to_none = none;
        self.ratio_to_linux = linux.filter(|_| self.paper_ratio_to_linux.is_some());
    }
}

fn divide(first: Cost, own: Cost) -> CostRatios {
    let part = |first: f64, own: f64| (own > 0.0).then(|| first / own);
    CostRatios {
        guest: part(first.guest, own.guest),
        driver: part(first.driver, own.driver),
        hypervisor: part(first.hypervisor, own.hypervisor),
    }
}

fn paper_divided(figure: Figure, config: &str) -> Option<CostRatios> {
    match (figure, config) {
        (Figure::Six, "high") => {
            let [guest, driver, hypervisor] = HIGH_DIVIDES.map(Some);
            Some(CostRatios { guest, driver, hypervisor })
        }
        (Figure::Eight, "high-ioc") => {
            let hypervisor = Some(1.0 / (1.0 - CHANNEL_SAVES));
            Some(CostRatios { hypervisor, ..CostRatios::default() })
        }
        _ => None,
    }
}

fn median(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    let values: Samples = samples.iter().map(value).collect();
    values.stats().map_or(0.0, |stats| stats.median)
}

fn cost(samples: &[Sample]) -> Option<Cost> {
    (!samples.is_empty()).then(|| Cost {
        guest: median(samples, |sample| sample.cost.guest),
        driver: median(samples, |sample| sample.cost.driver),
        hypervisor: median(samples, |sample| sample.cost.hypervisor),
    })
}

fn per_packet(samples: &[Sample]) -> Option<BTreeMap<String, f64>> {
    let names = samples.first()?.per_packet.as_ref()?.keys();
    let value = |sample: &Sample, name: &str| {
        sample.per_packet.as_ref().and_then(|counts| counts.get(name)).copied().unwrap_or(0.0)
    };
    let median = |name: &String| (name.clone(), median(samples, |sample| value(sample, name)));
    Some(names.map(median).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::paper::{DRIVER_NONE, GUEST_NONE};
    use super::super::plan::{keys, plan};
    use super::*;

    /// Two samples of everything that these figures show. `mbps` gives the throughput of a
    /// configuration, by its name.
    pub fn measurements(
        figures: &[Figure],
        mbps: impl Fn(&str) -> f64,
    ) -> (Vec<Planned>, Measurements) {
        let plan = plan(figures, &[], Ok(()));
        let mut seen = Measurements::new();
        for key in keys(&plan) {
            let shown = plan.iter().find(|planned| planned.key == Ok(key)).unwrap();
            let mbps = mbps(shown.bar.config);
            for mbps in [mbps, mbps * 1.1] {
                seen.push(key, sample(mbps));
            }
        }
        (plan, seen)
    }

    /// The rows of these measurements.
    pub fn rows(figures: &[Figure], mbps: impl Fn(&str) -> f64) -> Vec<Row> {
        let (plan, seen) = measurements(figures, mbps);
        super::rows(&plan, &seen)
    }

    /// The paper's own throughput.
    pub fn paper(config: &str) -> f64 {
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

    /// A sample whose costs are proportional to its time.
    fn sample(mbps: f64) -> Sample {
        let part = 1000.0 / mbps;
        Sample {
            mbps,
            cpu: CpuSplit { guest: 0.5, driver: 0.25, hypervisor: 0.25, idle: 0.0 },
            cost: Cost { guest: part, driver: part, hypervisor: part },
            per_packet: Some(
                [("hypervisor_ns", part), ("maps", 1.0), ("copies", 2.0), ("bytes_copied", 66.0)]
                    .map(|(name, n)| (name.to_owned(), n))
                    .into(),
            ),
            stolen: 0.0,
        }
    }

    #[test]
    fn costs_are_compared_where_the_paper_compares_them() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 200.0 };
        let rows = rows(&[Figure::Six], rates);
        let row = rows.iter().find(|row| row.config == "high").unwrap();
        let CostRatios { guest, hypervisor, .. } = row.cost_divided_by.unwrap();
        assert!((guest.unwrap() - 2.0).abs() < 1e-9 && (hypervisor.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(row.paper_cost_divided_by.unwrap().guest, Some(4.0));
    }

    #[test]
    fn a_row_without_a_measurement_says_why() {
        let plan = plan(&[Figure::Nine, Figure::Thirteen], &[], Err("no superpages"));
        let mut seen = Measurements::new();
        let key = keys(&plan)[0];
        seen.push(key, sample(1.0));
        seen.fail(key, "the daemon ended".to_owned());
        assert!(seen.has_failed(key) && seen.failures() == 1);
        let rows = super::rows(&plan, &seen);
        let why = |config: &str| {
            let row = rows.iter().find(|row| row.config == config).unwrap();
            assert!(row.mbps.is_none() && row.cpu_s_per_gb.is_none() && row.per_packet.is_none());
            row.not_measurable.clone().unwrap()
        };
        assert!(why("SP-GP").contains("performance counters"));
        assert_eq!(why("Guest-copy-SP"), "no superpages");
        assert_eq!(why("Guest-none"), "failed: the daemon ended");
        assert_eq!(why("Linux"), "not measured");
    }

    #[test]
    fn overall_figures_compare_with_linux_too() {
        let rates = |config: &str| if config == "Linux" { 400.0 } else { 100.0 };
        let rows = rows(&[Figure::Table1], rates);
        let row = rows.iter().find(|row| row.config == "Xen-guest").unwrap();
        assert!((row.ratio_to_linux.unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(row.ratio_to_none, Some(1.0));
        assert!((row.paper_ratio_to_linux.unwrap() - 0.199).abs() < 1e-3);
    }
}
