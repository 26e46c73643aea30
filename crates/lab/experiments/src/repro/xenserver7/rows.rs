//! The rows of the result: measured ones and the model's.

use report::{Samples, Stats};
use serde::Serialize;

use super::flows::{Hashes, Spread};
use super::measure::Sample;
use super::model::{Check, Costs, Limit, Machine};
use super::paper;
use crate::repro::outcome::mean;

/// What one measurement is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Queues of each guest.
    pub queues: usize,
    /// Workers of the daemon.
    pub workers: usize,
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Queues of each guest.
    pub queues: usize,
    /// Workers of the daemon.
    pub workers: usize,
    /// Whether it is the model's: nothing in it was measured with these queues.
    pub model: bool,
    /// Payload of all streams in 10⁶ bits per second: of the rounds, or of the model's sets of ports.
    pub mbps: Option<Stats>,
    /// The mean share of the time in which a TX ring of the sender was full.
    pub ring_full: Option<f64>,
    /// CPU time of daemon and guests per KiB of payload, in nanoseconds.
    pub ns_per_kib: Option<f64>,
    /// Its parts.
    pub cost: Option<Cost>,
    /// The share of the workers' time in which one waited for an egress queue that another had locked.
    pub locked: Option<f64>,
    /// The mean share of a CPU that a worker used.
    pub worker_busy: Option<f64>,
    /// How the streams spread over the sender's queues: means.
    pub flows: Option<Flows>,
    /// What limits the model's rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// The paper's rate, where its text has one.
    pub paper_mbps: Option<f64>,
    /// Why there is no measurement, or what a reader must know of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// CPU time per KiB of payload, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The daemon.
    pub daemon: f64,
    /// Both guests: their queues' threads, stacks and programs.
    pub guests: f64,
}

/// Means over rounds, or over the model's sets of ports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Flows {
    /// Streams of the busiest queue, by the hash of the streams' ports.
    pub most: f64,
    /// Queues with a stream, by the same hash.
    pub used: f64,
    /// Queues that carried frames; none for the model.
    pub seen: Option<f64>,
}

/// From this share on, a note mentions the time that the hypervisor below gave to others.
const STOLEN: f64 = 0.02;

/// What was measured, and what failed.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    samples: Vec<(Point, Sample)>,
    failures: Vec<(Point, String)>,
}

impl Measurements {
    /// Adds a sample.
    pub fn push(&mut self, point: Point, sample: Sample) {
        self.samples.push((point, sample));
    }

    /// Notes why there is none.
    pub fn fail(&mut self, point: Point, why: String) {
        if !self.has_failed(point) {
            self.failures.push((point, why));
        }
    }

    /// Whether it failed before.
    pub fn has_failed(&self, point: Point) -> bool {
        self.failures.iter().any(|(failed, _)| *failed == point)
    }

    /// How many failed.
    pub fn failures(&self) -> usize {
        self.failures.len()
    }

    /// The congestion controls that iperf3 named.
    pub fn congestion(&self) -> Vec<String> {
        let named = self.samples.iter().filter_map(|(_, sample)| sample.congestion.clone());
        let mut names: Vec<String> = named.collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn of(&self, point: Point) -> impl Iterator<Item = &Sample> + Clone {
        self.samples.iter().filter(move |(known, _)| *known == point).map(|(_, sample)| sample)
    }

    fn mean(&self, point: Point, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        mean(self.of(point).map(of))
    }

    fn mbps(&self, point: Point) -> Option<Stats> {
        self.of(point).map(|sample| sample.mbps).collect::<Samples>().stats()
    }

    /// The model's costs; none unless one queue was measured.
    pub fn costs(&self) -> Option<Costs> {
        let one = Point { queues: 1, workers: 1 };
        let of = |of: fn(&Sample) -> f64| self.mean(one, of);
        let two = Point { queues: 2, workers: 2 };
        Some(Costs {
            daemon: of(|sample| sample.daemon)?,
            worker: of(|sample| sample.worker)?,
            sender_queues: of(|sample| sample.queues[0])?,
            receiver_queues: of(|sample| sample.queues[1])?,
            guests: of(|sample| sample.guests)?,
            locked: self.mean(two, |sample| sample.locked).unwrap_or(0.0),
        })
    }

    /// The model's predictions for one and two queues, with a worker for each, on `cpus` CPUs.
    pub fn checks(&self, sets: &[Vec<Hashes>], cpus: usize) -> Vec<Check> {
        let Some(costs) = self.costs() else { return Vec::new() };
        let check = |queues| {
            let point = Point { queues, workers: queues };
            let measured = self.mbps(point)?.median;
            let own = 1.0 - self.mean(point, |sample| sample.stolen)?;
            let (rates, limit) = predict(&costs, queues, sets, Machine::Cpus(cpus as f64 * own))?;
            Some(Check::new(queues, (rates.median, limit), measured))
        };
        [1, 2].into_iter().filter_map(check).collect()
    }
}

/// The rates over all sets of flows, and what limits most of them.
fn predict(
    costs: &Costs,
    queues: usize,
    sets: &[Vec<Hashes>],
    machine: Machine,
) -> Option<(Stats, Limit)> {
    let of = |set: &Vec<Hashes>| costs.rate(queues, Spread::of(set, queues), machine);
    let all: Vec<(f64, Limit)> = sets.iter().map(of).collect();
    let stats = all.iter().map(|(rate, _)| *rate).collect::<Samples>().stats()?;
    let count = |limit: Limit| all.iter().filter(|(_, other)| *other == limit).count();
    let most = all.iter().map(|(_, limit)| *limit).max_by_key(|limit| count(*limit))?;
    Some((stats, most))
}

/// The measured rows.
pub fn measured(points: &[Point], seen: &Measurements) -> Vec<Row> {
    let row = |point: &Point| {
        let Point { queues, workers } = *point;
        let mean = |of: fn(&Sample) -> f64| seen.mean(*point, of);
        let daemon = mean(|sample| sample.daemon);
        let cost = daemon.zip(mean(|sample| sample.guests));
        let cost = cost.map(|(daemon, guests)| Cost { daemon, guests });
        Row {
            queues,
            workers,
            model: false,
            mbps: seen.mbps(*point),
            ring_full: mean(|sample| sample.ring_full),
            ns_per_kib: cost.map(|cost| cost.daemon + cost.guests),
            cost,
            locked: mean(|sample| sample.locked),
            worker_busy: mean(|sample| sample.worker_busy),
            flows: flows(*point, seen),
            limit: None,
            paper_mbps: paper::mbps(queues),
            note: note(*point, seen),
        }
    };
    points.iter().map(row).collect()
}

fn flows(point: Point, seen: &Measurements) -> Option<Flows> {
    let spreads = seen.of(point).map(|sample| {
        let set: Vec<Hashes> = sample.ports.iter().filter_map(|port| Hashes::of(*port)).collect();
        Spread::of(&set, point.queues)
    });
    Some(Flows {
        most: mean(spreads.clone().map(|spread| spread.most as f64))?,
        used: mean(spreads.map(|spread| spread.used as f64))?,
        seen: seen.mean(point, |sample| sample.rings as f64),
    })
}

fn note(point: Point, seen: &Measurements) -> Option<String> {
    if let Some((_, why)) = seen.failures.iter().find(|(failed, _)| *failed == point) {
        return Some(format!("failed: {why}"));
    }
    let Some(stolen) = seen.mean(point, |sample| sample.stolen) else {
        return Some("not measured".to_owned());
    };
    let percent = stolen * 100.0;
    (stolen > STOLEN).then(|| format!("other machines had {percent:.0} % of the CPUs"))
}

/// The model's rows: a worker for each queue, on the paper's machine.
pub fn modelled(queues: &[usize], costs: &Costs, sets: &[Vec<Hashes>]) -> Vec<Row> {
    let row = |queues: &usize| {
        let queues = *queues;
        let (mbps, limit) = predict(costs, queues, sets, Machine::Papers)?;
        let spreads = sets.iter().map(|set| Spread::of(set, queues));
        let total = costs.total(queues);
        Some(Row {
            queues,
            workers: queues,
            model: true,
            mbps: Some(mbps),
            ring_full: None,
            ns_per_kib: Some(total),
            cost: Some(Cost { daemon: total - costs.guests, guests: costs.guests }),
            locked: Some(costs.locked(queues)),
            worker_busy: None,
            flows: Some(Flows {
                most: mean(spreads.clone().map(|spread| spread.most as f64))?,
                used: mean(spreads.map(|spread| spread.used as f64))?,
                seen: None,
            }),
            limit: Some(limit),
            paper_mbps: paper::mbps(queues),
            note: None,
        })
    };
    queues.iter().filter_map(row).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sample at this rate, with the model's test costs.
    pub fn sample(mbps: f64, locked: f64) -> Sample {
        Sample {
            mbps,
            ring_full: 0.25,
            rings: 1,
            daemon: 110.0,
            guests: 500.0,
            worker: 100.0,
            queues: [50.0; 2],
            locked,
            worker_busy: 0.5,
            stolen: 0.0,
            congestion: Some("cubic".to_owned()),
            ports: (0..8).map(|stream| 40_000 + 4 * stream).collect(),
        }
    }

    /// Sets of eight connections each.
    pub fn sets() -> Vec<Vec<Hashes>> {
        let set = |set: u16| (0..8).map(|flow| 33_000 + 26 * set + 2 * flow).collect();
        Hashes::of_sets(&(0..100).map(set).collect::<Vec<_>>())
    }

    /// One queue with one worker, and two with two.
    pub fn seen() -> Measurements {
        let mut seen = Measurements::default();
        for (queues, mbps, locked) in [(1, 20_000.0, 0.0), (2, 24_000.0, 0.1)] {
            let point = Point { queues, workers: queues };
            for off in [0.9, 1.0, 1.1] {
                seen.push(point, sample(off * mbps, locked));
            }
        }
        seen
    }

    #[test]
    fn rows_have_medians_and_means() {
        let point = Point { queues: 2, workers: 2 };
        let other = Point { queues: 3, workers: 2 };
        let mut seen = seen();
        seen.fail(other, "it ended".to_owned());
        let rows = measured(&[point, other], &seen);
        let [row, failed] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(row.mbps.map(|mbps| (mbps.median, mbps.n)), Some((24_000.0, 3)));
        assert_eq!((row.ns_per_kib, row.model, row.note.as_deref()), (Some(610.0), false, None));
        assert!(row.flows.is_some_and(|flows| flows.used <= 2.0 && flows.most >= 4.0));
        assert_eq!(failed.note.as_deref(), Some("failed: it ended"));
        assert!(seen.has_failed(other) && seen.failures() == 1 && failed.mbps.is_none());
    }

    #[test]
    fn the_model_is_fed_with_one_queues_costs_and_two_workers_waits() {
        let costs = seen().costs().unwrap();
        assert_eq!(costs.worker, 100.0);
        assert!((costs.locked - 0.1).abs() < 1e-9, "{costs:?}");
        let rows = modelled(&[1, 2, 8], &costs, &sets());
        assert!(rows.iter().all(|row| row.model && row.ring_full.is_none() && row.limit.is_some()));
        let rate = |row: &Row| row.mbps.unwrap().median;
        assert!(rate(&rows[0]) < rate(&rows[1]) && rate(&rows[1]) < rate(&rows[2]));
        assert_eq!((rows[0].paper_mbps, rows[0].ns_per_kib), (Some(17_000.0), Some(610.0)));
        assert!(Measurements::default().costs().is_none());
    }

    #[test]
    fn one_and_two_workers_are_predicted_for_this_machine() {
        let checks = seen().checks(&sets(), 2);
        let [one, two] = &checks[..] else { panic!("{checks:?}") };
        // Two CPUs, 610 ns per KiB.
        assert_eq!((one.predicted.round(), one.limit), (26_859.0, Limit::Cpus));
        assert!((one.error - (26_859.0 - 20_000.0) / 20_000.0).abs() < 1e-3, "{one:?}");
        assert_eq!((two.queues, two.measured), (2, 24_000.0));
        assert!(Measurements::default().checks(&sets(), 2).is_empty());
    }
}
