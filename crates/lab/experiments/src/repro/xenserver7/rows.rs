//! The rows of the result: measured ones and the model's.

use report::{Samples, Stats};
use schemars::JsonSchema;
use serde::Serialize;

use super::flows::{Hashes, Spread};
use super::measure::Sample;
use super::model::{Costs, Limit, Machine};
use crate::repro::rounds::{self, Key, mean};
use crate::repro::xenserver7;

/// Identifies a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Queues of each guest.
    pub queues: usize,
    /// Workers of the daemon.
    pub workers: usize,
}

/// A row.
#[derive(Clone, Debug, JsonSchema, Serialize)]
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
    /// The parts of that cost.
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
    /// The paper's rate, if its text has one.
    pub paper_mbps: Option<f64>,
    /// Why there is no measurement, or a remark on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// CPU time per KiB of payload, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Cost {
    /// The daemon.
    pub daemon: f64,
    /// Both guests: their queues' threads, stacks and programs.
    pub guests: f64,
}

/// Means over rounds, or over the model's sets of ports.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Flows {
    /// Streams of the busiest queue, by the hash of the streams' ports.
    pub most: f64,
    /// Queues with a stream, by the same hash.
    pub used: f64,
    /// Queues that carried frames; none for the model.
    pub seen: Option<f64>,
}

/// From this share on, a note mentions the time that this machine's hypervisor gave to others.
const STOLEN: f64 = 0.02;

/// The samples of all measurements, and the failures.
pub type Measurements = rounds::Measurements<Point, Sample>;

impl Key for Point {
    type Server = Self;

    fn server(self) -> Self {
        self
    }
}

impl Point {
    /// Its name, for people.
    pub fn name(self) -> String {
        format!("{} queues, {} workers", self.queues, self.workers)
    }
}

/// The congestion controls that iperf3 named.
pub fn congestion(seen: &Measurements) -> Vec<String> {
    let mut names: Vec<String> =
        seen.all().filter_map(|sample| sample.congestion.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The rates over all sets of flows, and what limits most of them.
pub fn predict(
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
            mbps: seen.stats(*point, |sample| Some(sample.mbps)),
            ring_full: mean(|sample| sample.ring_full),
            ns_per_kib: cost.map(|cost| cost.daemon + cost.guests),
            cost,
            locked: mean(|sample| sample.locked),
            worker_busy: mean(|sample| sample.worker_busy),
            flows: flows(*point, seen),
            limit: None,
            paper_mbps: xenserver7::mbps(queues),
            note: note(*point, seen),
        }
    };
    points.iter().map(row).collect()
}

fn flows(point: Point, seen: &Measurements) -> Option<Flows> {
    let spreads = seen.of(point).iter().map(|sample| sample.spread(point.queues));
    Some(Flows {
        most: mean(spreads.clone().map(|spread| spread.most as f64))?,
        used: mean(spreads.map(|spread| spread.used as f64))?,
        seen: seen.mean(point, |sample| sample.rings as f64),
    })
}

fn note(point: Point, seen: &Measurements) -> Option<String> {
    if let Some(missing) = seen.missing(point) {
        return Some(missing);
    }
    let stolen = seen.mean(point, |sample| sample.stolen)?;
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
            paper_mbps: xenserver7::mbps(queues),
            note: None,
        })
    };
    queues.iter().filter_map(row).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::model::tests::COSTS;
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
        let mut seen = Measurements::new();
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
    fn the_models_rows_are_marked_as_such() {
        let rows = modelled(&[1, 2, 8], &COSTS, &sets());
        assert!(rows.iter().all(|row| row.model && row.ring_full.is_none() && row.limit.is_some()));
        let rate = |row: &Row| row.mbps.unwrap().median;
        assert!(rate(&rows[0]) < rate(&rows[1]) && rate(&rows[1]) < rate(&rows[2]));
        assert_eq!((rows[0].paper_mbps, rows[0].ns_per_kib), (Some(17_000.0), Some(610.0)));
    }
}
