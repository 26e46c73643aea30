//! The model's input from the measurements, and how the model fits them.

use super::flows::Hashes;
use super::measure::Sample;
use super::model::{Check, Costs, MBPS, Machine, crowding, rise};
use super::rows::{Measurements, Point, predict};

const ONE: Point = Point { queues: 1, workers: 1 };
const TWO: Point = Point { queues: 2, workers: 2 };

/// The measurements of a machine, by its number of CPUs.
#[derive(Clone, Copy)]
pub struct Fit<'a> {
    seen: &'a Measurements,
    points: &'a [Point],
    cpus: f64,
}

impl<'a> Fit<'a> {
    /// Takes the measurements of `points` on a machine with `cpus` CPUs.
    pub fn new(seen: &'a Measurements, points: &'a [Point], cpus: usize) -> Self {
        Self { seen, points, cpus: cpus as f64 }
    }

    fn mean(self, point: Point, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        self.seen.mean(point, of)
    }

    fn cost(self, point: Point) -> Option<f64> {
        self.mean(point, |sample| sample.daemon + sample.guests)
    }

    /// The CPUs that were not given to others.
    fn own_cpus(self, point: Point) -> Option<f64> {
        Some(self.cpus * (1.0 - self.mean(point, |sample| sample.stolen)?))
    }

    /// The model's costs; `None` unless one queue was measured.
    pub fn costs(self) -> Option<Costs> {
        let of = |of: fn(&Sample) -> f64| self.mean(ONE, of);
        let daemon = |point| self.mean(point, |sample| sample.daemon);
        let second = daemon(TWO).zip(daemon(Point { workers: 1, ..TWO }));
        let mbps = self.rate(ONE)?;
        let busy = mbps / MBPS * self.cost(ONE)? / self.own_cpus(ONE)?;
        Some(Costs {
            daemon: of(|sample| sample.daemon)?,
            worker: of(|sample| sample.worker)?,
            sender_queues: of(|sample| sample.queues[0])?,
            receiver_queues: of(|sample| sample.queues[1])?,
            guests: of(|sample| sample.guests)?,
            locked: self.mean(TWO, |sample| sample.locked).unwrap_or(0.0),
            second_worker: second.map_or(0.0, |(two, one)| (two - one).max(0.0)),
            contention: self.contention()?,
            idle: (1.0 - busy).clamp(0.0, 1.0),
        })
    }

    /// How a KiB's cost rises with the share of the threads that have no CPU, with one worker.
    fn contention(self) -> Option<f64> {
        let point = |point: Point| {
            let crowding = self.mean(point, |sample| {
                crowding(sample.spread(point.queues), point.workers, self.cpus)
            })?;
            Some((crowding, self.cost(point)?))
        };
        let with_one = self.points.iter().filter(|point| point.workers == 1);
        Some(rise(point(ONE)?, with_one.filter_map(|it| point(*it))))
    }

    fn rate(self, point: Point) -> Option<f64> {
        Some(self.seen.stats(point, |sample| Some(sample.mbps))?.median)
    }

    /// The model's predictions for one and two workers on this machine.
    pub fn checks(self, costs: &Costs, sets: &[Vec<Hashes>]) -> Vec<Check> {
        let check = |point: &Point| {
            let Point { queues, workers } = *point;
            let measured = self.rate(*point)?;
            let machine = Machine::Small { cpus: self.own_cpus(*point)?, workers };
            let (rates, limit) = predict(costs, queues, sets, machine)?;
            let predicted = rates.median;
            let error = (predicted - measured) / measured.max(f64::EPSILON);
            let is_input = *point == ONE;
            Some(Check { queues, workers, predicted, measured, error, limit, is_input })
        };
        self.points.iter().filter(|point| point.workers <= 2).filter_map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Limit;
    use super::super::rows::tests::{sample, seen, sets};
    use super::*;

    const POINTS: [Point; 2] = [ONE, TWO];

    #[test]
    fn the_model_is_fed_with_one_queues_costs_and_two_workers_waits() {
        let seen = seen();
        let costs = Fit::new(&seen, &POINTS, 2).costs().unwrap();
        assert_eq!((costs.worker, costs.second_worker, costs.contention), (100.0, 0.0, 0.0));
        assert!((costs.locked - 0.1).abs() < 1e-9, "{costs:?}");
        // 20,000 Mb/s at 610 ns per KiB are 1.49 of two CPUs.
        assert!((costs.idle - (1.0 - 20_000.0 / MBPS * 610.0 / 2.0)).abs() < 1e-9, "{costs:?}");
        assert!(Fit::new(&Measurements::new(), &POINTS, 2).costs().is_none());
    }

    #[test]
    fn the_cost_rises_with_the_threads_of_one_worker() {
        let mut seen = seen();
        let two = Point { queues: 2, workers: 1 };
        let dearer = Sample { guests: 600.0, ..sample(19_000.0, 0.0) };
        let more = crowding(dearer.spread(2), 1, 2.0) - (1.0 - 2.0 / 5.0);
        seen.push(two, dearer);
        let costs = Fit::new(&seen, &[ONE, two, TWO], 2).costs().unwrap();
        assert!((costs.contention - 100.0 / more).abs() < 1e-6, "{costs:?}");
    }

    #[test]
    fn one_and_two_workers_are_predicted_for_this_machine() {
        let seen = seen();
        let fit = Fit::new(&seen, &POINTS, 2);
        let checks = fit.checks(&fit.costs().unwrap(), &sets());
        let [one, two] = &checks[..] else { panic!("{checks:?}") };
        // The rate of one queue is an input.
        assert!(one.is_input && one.error.abs() < 1e-9 && one.limit == Limit::Cpus, "{one:?}");
        assert_eq!((two.queues, two.workers, two.measured), (2, 2, 24_000.0));
        // More threads leave the CPUs less idle time.
        assert!(!two.is_input && two.predicted > one.predicted, "{two:?}");
        let error = (two.predicted - 24_000.0) / 24_000.0;
        assert!((two.error - error).abs() < 1e-9);
    }
}
