//! The paper's bars beside what was measured: rows, as programs read them.

use std::collections::BTreeMap;

use report::{CpuSplit, Machine, Samples, Stats};
use serde::Serialize;

use super::measure::{Cost, Sample};
use super::paper::{self, CHANNEL_SAVES, Direction, Figure, HIGH_DIVIDES, LINUX, Program};
use super::plan::{Key, Planned};
use super::verdict::{Order, Target, orders, targets};

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// The paper.
    pub paper: &'static str,
    /// Where and when it ran.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// The paper's bars, in its order.
    pub rows: Vec<Row>,
    /// What the paper claims, and whether it is so here.
    pub targets: Vec<Target>,
    /// Pairs of configurations whose order is another than in the paper.
    pub orders: Vec<Order>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Seconds of each transfer.
    pub seconds: u32,
    /// Interleaved rounds.
    pub rounds: u32,
    /// The server's CPU; any if absent.
    pub server_cpu: Option<usize>,
    /// The client's CPU; any if absent.
    pub client_cpu: Option<usize>,
    /// What is not as it should be.
    pub notes: Vec<String>,
}

/// One bar.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its figure.
    pub figure: &'static str,
    /// Its name there.
    pub config: &'static str,
    /// Which way the stream goes.
    pub direction: Direction,
    /// How it is sent.
    pub program: Program,
    /// The paper's throughput, in Mb/s.
    pub paper_mbps: Option<f64>,
    /// The throughput here, in Mb/s.
    pub mbps: Option<Stats>,
    /// The median over that of the figure's unoptimised configuration.
    pub ratio_to_none: Option<f64>,
    /// The same of the paper.
    pub paper_ratio_to_none: Option<f64>,
    /// The median over that of native Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_linux: Option<f64>,
    /// The same of the paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_ratio_to_linux: Option<f64>,
    /// Where the server CPU's time went, in CPU seconds per second.
    pub cpu: Option<CpuSplit>,
    /// What 10⁹ bytes cost, in CPU seconds.
    pub cpu_s_per_gb: Option<Cost>,
    /// By how much the figure's first configuration costs more, for the same bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_divided_by: Option<Divided>,
    /// The same of the paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_cost_divided_by: Option<Divided>,
    /// What was asked of the hypervisor by 1448 bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_packet: Option<BTreeMap<String, f64>>,
    /// The paper's words where it gives no number, or beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_says: Option<&'static str>,
    /// In what this falls short of the bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why there is no measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_measurable: Option<String>,
    #[serde(skip)]
    pub(super) of: Figure,
}

/// Costs divided by others; a domain without a number is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Divided {
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

/// What was seen of each kind of measurement.
#[derive(Debug, Default)]
pub struct Measurements(Vec<(Key, Result<Vec<Sample>, String>)>);

impl Measurements {
    /// Adds a sample.
    pub fn push(&mut self, key: Key, sample: Sample) {
        if let Ok(samples) = self.entry(key) {
            samples.push(sample);
        }
    }

    /// Notes that it does not work; there are no further samples then.
    pub fn fail(&mut self, key: Key, why: String) {
        *self.entry(key) = Err(why);
    }

    /// Whether it does not work.
    pub fn has_failed(&self, key: Key) -> bool {
        self.0.iter().any(|(known, seen)| *known == key && seen.is_err())
    }

    /// What does not work.
    pub fn failures(&self) -> usize {
        self.0.iter().filter(|(_, seen)| seen.is_err()).count()
    }

    /// The largest share of the server CPU's time that others had meanwhile, 0 to 1.
    pub fn stolen(&self) -> f64 {
        let samples = self.0.iter().flat_map(|(_, seen)| seen.iter().flatten());
        samples.map(|sample| sample.stolen).fold(0.0, f64::max)
    }

    fn entry(&mut self, key: Key) -> &mut Result<Vec<Sample>, String> {
        let index = self.0.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.0.push((key, Ok(Vec::new())));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    fn samples(&self, key: Key) -> Result<&[Sample], String> {
        match self.0.iter().find(|(known, _)| *known == key) {
            Some((_, Ok(samples))) => Ok(samples),
            Some((_, Err(why))) => Err(format!("failed: {why}")),
            None => Err("not measured".to_owned()),
        }
    }
}

impl Document {
    /// Sets what was measured beside the paper.
    pub fn new(plan: &[Planned], seen: &Measurements, method: Method) -> Self {
        let mut rows: Vec<Row> = plan.iter().map(|planned| Row::new(planned, seen)).collect();
        let bare = rows.clone();
        for row in &mut rows {
            row.compare(&bare);
        }
        Self {
            paper: "menon06",
            machine: Machine::detect(),
            method,
            targets: targets(&rows),
            orders: orders(&rows),
            rows,
        }
    }
}

impl Row {
    fn new(planned: &Planned, seen: &Measurements) -> Self {
        let bar = &planned.bar;
        let samples = planned.key.clone().and_then(|key| seen.samples(key));
        let measured = samples.as_deref().unwrap_or_default();
        let rates: Samples = measured.iter().map(|sample| sample.mbps).collect();
        let overall = [Figure::Table1, Figure::Three, Figure::Four].contains(&bar.figure);
        Self {
            figure: bar.figure.key(),
            config: bar.config,
            direction: bar.direction,
            program: bar.program,
            paper_mbps: bar.mbps,
            mbps: rates.stats(),
            ratio_to_none: None,
            paper_ratio_to_none: paper::ratio(bar, bar.figure.none()),
            ratio_to_linux: None,
            paper_ratio_to_linux: paper::ratio(bar, LINUX).filter(|_| overall),
            cpu: cpu(measured),
            cpu_s_per_gb: cost(measured),
            cost_divided_by: None,
            paper_cost_divided_by: paper_divided(bar.figure, bar.config),
            per_packet: per_packet(measured),
            paper_says: bar.says,
            note: planned.note.clone(),
            not_measurable: samples.err(),
            of: bar.figure,
        }
    }

    /// Fills in what needs other rows.
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

fn divide(first: Cost, own: Cost) -> Divided {
    let part = |first: f64, own: f64| (own > 0.0).then(|| first / own);
    Divided {
        guest: part(first.guest, own.guest),
        driver: part(first.driver, own.driver),
        hypervisor: part(first.hypervisor, own.hypervisor),
    }
}

fn paper_divided(figure: Figure, config: &str) -> Option<Divided> {
    match (figure, config) {
        (Figure::Six, "high") => {
            let [guest, driver, hypervisor] = HIGH_DIVIDES.map(Some);
            Some(Divided { guest, driver, hypervisor })
        }
        (Figure::Eight, "high-ioc") => {
            let hypervisor = Some(1.0 / (1.0 - CHANNEL_SAVES));
            Some(Divided { hypervisor, ..Divided::default() })
        }
        _ => None,
    }
}

fn median(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    let values: Samples = samples.iter().map(value).collect();
    values.stats().map_or(0.0, |stats| stats.median)
}

/// The mean, whose parts still add up to the CPU.
fn cpu(samples: &[Sample]) -> Option<CpuSplit> {
    let n = samples.len() as f64;
    let mean = |part: fn(&CpuSplit) -> f64| {
        samples.iter().map(|sample| part(&sample.cpu)).sum::<f64>() / n
    };
    (!samples.is_empty()).then(|| CpuSplit {
        guest: mean(|cpu| cpu.guest),
        driver: mean(|cpu| cpu.driver),
        hypervisor: mean(|cpu| cpu.hypervisor),
        idle: mean(|cpu| cpu.idle),
    })
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
    use super::super::plan::{keys, plan};
    use super::*;

    /// A document of these figures, where a configuration's throughput and cost are told by its
    /// name, twice.
    pub fn document(figures: &[Figure], mbps: impl Fn(&str) -> f64) -> Document {
        let plan = plan(figures, &[], Ok(()));
        let mut seen = Measurements::default();
        for key in keys(&plan) {
            let shown = plan.iter().find(|planned| planned.key == Ok(key)).unwrap();
            let mbps = mbps(shown.bar.config);
            for mbps in [mbps, mbps * 1.1] {
                seen.push(key, sample(mbps));
            }
        }
        let notes = vec!["a note".to_owned()];
        let method =
            Method { seconds: 1, rounds: 2, server_cpu: Some(1), client_cpu: Some(0), notes };
        Document::new(&plan, &seen, method)
    }

    /// All that a transfer costs is its time.
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
    fn json_has_the_documented_shape() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 300.0 };
        let document = document(&[Figure::Five], rates);
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["paper"], "menon06");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        let row = rows.iter().find(|row| row["config"] == "high-ioc").unwrap();
        assert_eq!((&row["figure"], &row["direction"]), (&"5".into(), &"tx".into()));
        assert_eq!(row["paper_mbps"], 3230.0);
        let mbps = &row["mbps"];
        assert_eq!((mbps["min"].as_f64(), mbps["n"].as_u64()), (Some(300.0), Some(2)));
        assert!((row["ratio_to_none"].as_f64().unwrap() - 3.0).abs() < 1e-9, "{row}");
        assert!((row["paper_ratio_to_none"].as_f64().unwrap() - 4.307).abs() < 1e-3, "{row}");
        for part in ["guest", "driver", "hypervisor"] {
            assert!(row["cpu_s_per_gb"][part].as_f64() > Some(0.0), "{row}");
        }
        for count in ["maps", "copies", "bytes_copied"] {
            assert!(row["per_packet"][count].as_f64() > Some(0.0), "{row}");
        }
        assert!(row.get("not_measurable").is_none());
    }

    #[test]
    fn costs_are_compared_where_the_paper_does() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 200.0 };
        let document = document(&[Figure::Six], rates);
        let row = document.rows.iter().find(|row| row.config == "high").unwrap();
        let Divided { guest, hypervisor, .. } = row.cost_divided_by.unwrap();
        assert!((guest.unwrap() - 2.0).abs() < 1e-9 && (hypervisor.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(row.paper_cost_divided_by.unwrap().guest, Some(4.0));
    }

    #[test]
    fn what_is_not_measured_says_why() {
        let plan = plan(&[Figure::Nine, Figure::Thirteen], &[], Err("no superpages"));
        let mut seen = Measurements::default();
        let key = keys(&plan)[0];
        seen.push(key, sample(1.0));
        seen.fail(key, "the daemon ended".to_owned());
        assert!(seen.has_failed(key) && seen.failures() == 1);
        let method =
            Method { seconds: 1, rounds: 1, server_cpu: None, client_cpu: None, notes: vec![] };
        let document = Document::new(&plan, &seen, method);
        let why = |config: &str| {
            let row = document.rows.iter().find(|row| row.config == config).unwrap();
            assert!(row.mbps.is_none() && row.cpu_s_per_gb.is_none() && row.per_packet.is_none());
            row.not_measurable.clone().unwrap()
        };
        assert!(why("SP-GP").contains("performance counters"));
        assert_eq!(why("Guest-copy-SP"), "no superpages");
        assert_eq!(why("Guest-none"), "failed: the daemon ended");
        assert_eq!(why("Linux"), "not measured");
        assert!(document.targets.iter().all(|target| target.shown.is_none()));
    }

    #[test]
    fn overall_figures_compare_with_linux_too() {
        let rates = |config: &str| if config == "Linux" { 400.0 } else { 100.0 };
        let document = document(&[Figure::Table1], rates);
        let row = document.rows.iter().find(|row| row.config == "Xen-guest").unwrap();
        assert!((row.ratio_to_linux.unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(row.ratio_to_none, Some(1.0));
        assert!((row.paper_ratio_to_linux.unwrap() - 0.199).abs() < 1e-3);
    }
}
