//! A model of machines with more CPUs, from costs that were measured here.
//!
//! A chain of threads carries a byte: the sender's stack, its queue's thread, a worker, the receiver's queue's thread,
//! its stack. In the model of a large machine each thread has a CPU. So the rate is that at which the first kind of thread has
//! no idle time left. Flows do not compensate for each other: a queue without a flow carries nothing.
//!
//! On a small machine the threads of the guests and the workers share the CPUs. Then two more things decide: each thread that
//! has to wait for a CPU makes a byte dearer, because threads alternate and find their caches cold; and the CPUs are
//! idle when all threads of the chain wait for each other, which is rarer the more threads there are.

use schemars::JsonSchema;
use serde::Serialize;

use super::GUEST_CPUS;
use super::flows::Spread;

/// CPU time of each kind of thread, in nanoseconds per KiB of payload, with one queue and one worker.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Costs {
    /// All of the daemon.
    pub daemon: f64,
    /// The workers' part of that.
    pub worker: f64,
    /// The threads of the sender's queues.
    pub sender_queues: f64,
    /// The threads of the receiver's queues.
    pub receiver_queues: f64,
    /// Both guests: queues, stacks and programs.
    pub guests: f64,
    /// The share of its time in which one of two workers waits for the other's lock, with two queues.
    pub locked: f64,
    /// What a second worker adds to the daemon's cost, with two queues.
    pub second_worker: f64,
    /// The rise of the cost with the share of the threads without a CPU, from the points with one worker: as much is
    /// added if no thread has a CPU of its own.
    pub contention: f64,
    /// The share of the CPUs' time in which they did nothing for the transfer.
    pub idle: f64,
}

named::named! {
    /// What limits the rate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Limit {
        /// The workers with traffic.
        Workers => "workers",
        /// The threads of the sender's queues.
        SenderQueues => "sender's queues",
        /// The threads of the receiver's queues.
        ReceiverQueues => "receiver's queues",
        /// The virtual CPUs on which stacks and programs run.
        Stacks => "stacks",
        /// All CPUs of the machine.
        Cpus => "CPUs",
    }
}

/// The modelled machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Machine {
    /// A worker with a CPU of its own for each queue, and eight CPUs for each guest.
    Papers,
    /// This many CPUs for everything.
    Small {
        /// CPUs.
        cpus: f64,
        /// Workers of the daemon.
        workers: usize,
    },
}

/// A KiB per nanosecond, in Mb/s.
pub const MBPS: f64 = 1024.0 * 8.0 * 1e3;
/// The threads of the programs: iperf3 has one at each end (before version 3.16).
const PROGRAMS: f64 = 2.0;
/// All threads with one queue and one worker: the programs, a queue's thread at each end, the worker.
const THREADS: f64 = PROGRAMS + 3.0;

/// The share of the threads that have no CPU, if flows spread like this.
pub fn crowding(spread: Spread, workers: usize, cpus: f64) -> f64 {
    (1.0 - cpus / threads(spread, workers)).max(0.0)
}

/// The threads that carry something.
fn threads(Spread { used, used_to_receiver, .. }: Spread, workers: usize) -> f64 {
    PROGRAMS + (used + used_to_receiver + workers.min(used)) as f64
}

/// The rise of a cost with the crowding, through the first point: a least-squares fit. Each point is a crowding and a
/// cost.
pub fn rise(first: (f64, f64), points: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for (crowding, cost) in points {
        let (x, y) = (crowding - first.0, cost - first.1);
        products += x * y;
        squares += x * x;
    }
    if squares > 0.0 { (products / squares).max(0.0) } else { 0.0 }
}

impl Costs {
    /// The share of a worker's time that it waits for locks. Each of the other workers has a given lock with the same
    /// chance; it was measured with one other and two locks.
    pub fn locked(&self, workers: usize) -> f64 {
        let others = workers.saturating_sub(1) as f64;
        (2.0 * self.locked * others / workers.max(1) as f64).min(1.0)
    }

    /// Nanoseconds of the daemon and the guests per KiB, including waits for locks.
    pub fn total(&self, workers: usize) -> f64 {
        self.daemon + self.waits(workers) + self.guests
    }

    fn waits(&self, workers: usize) -> f64 {
        let locked = self.locked(workers);
        self.worker * locked / (1.0 - locked).max(f64::EPSILON)
    }

    /// The same if all threads share `cpus` CPUs, and the busy share of these CPUs.
    fn shared(&self, spread: Spread, workers: usize, cpus: f64) -> (f64, f64) {
        let threads = threads(spread, workers);
        let alone = (1.0 - cpus / THREADS).max(0.0);
        let more = self.contention * (crowding(spread, workers, cpus) - alone);
        // The second worker's addition includes the waits for locks.
        let second = if workers > 1 { self.second_worker.max(self.waits(workers)) } else { 0.0 };
        // The CPUs are idle if all threads wait at once, as the five threads of one queue did.
        let busy = 1.0 - self.idle.powf(threads / THREADS);
        (self.daemon + self.guests + more + second, busy)
    }

    /// The rate in Mb/s with flows that spread like this, and what limits it.
    pub fn rate(&self, queues: usize, spread: Spread, machine: Machine) -> (f64, Limit) {
        let (used, to_receiver) = (spread.used as f64, spread.used_to_receiver as f64);
        let queues_limit = [
            (used / self.sender_queues, Limit::SenderQueues),
            (to_receiver / self.receiver_queues, Limit::ReceiverQueues),
        ];
        let limits = match machine {
            Machine::Papers => {
                let stacks = self.guests - self.sender_queues - self.receiver_queues;
                [
                    (used / (self.worker + self.waits(queues)), Limit::Workers),
                    // Half of the stacks' work is at each end.
                    (GUEST_CPUS as f64 * 2.0 / stacks.max(f64::EPSILON), Limit::Stacks),
                ]
            }
            Machine::Small { cpus, workers } => {
                let working = workers.min(spread.used) as f64;
                let (cost, busy) = self.shared(spread, workers, cpus);
                [
                    (working / (self.worker + self.waits(workers)), Limit::Workers),
                    (cpus * busy / cost, Limit::Cpus),
                ]
            }
        };
        let all = limits.into_iter().chain(queues_limit);
        let least = all.min_by(|one, other| one.0.total_cmp(&other.0));
        least.map_or((0.0, Limit::Cpus), |(rate, limit)| (rate * MBPS, limit))
    }
}

/// A prediction for a point that was measured too.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Check {
    /// Queues of each guest.
    pub queues: usize,
    /// Workers.
    pub workers: usize,
    /// Mb/s, by the model for this machine's CPUs.
    pub predicted: f64,
    /// Mb/s, the median.
    pub measured: f64,
    /// The error of the prediction, as a share of the measurement.
    pub error: f64,
    /// What limits the rate, by the model.
    pub limit: Limit,
    /// Whether this point's rate is an input of the model, so that both agree.
    pub is_input: bool,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A worker that takes half as long as either guest's queue, and stacks that take much.
    pub const COSTS: Costs = Costs {
        daemon: 110.0,
        worker: 100.0,
        sender_queues: 50.0,
        receiver_queues: 50.0,
        guests: 500.0,
        locked: 0.0,
        second_worker: 0.0,
        contention: 0.0,
        idle: 0.0,
    };

    fn spread(used: usize) -> Spread {
        Spread { most: 8 / used, used, used_to_receiver: used }
    }

    fn near(here: f64, there: f64) {
        assert!((here - there).abs() < 1e-9, "{here} {there}");
    }

    #[test]
    fn workers_limit_few_queues_and_stacks_limit_many() {
        let rate = |queues, used| COSTS.rate(queues, spread(used), Machine::Papers);
        let (one, limit) = rate(1, 1);
        assert_eq!((one.round(), limit), ((MBPS / 100.0).round(), Limit::Workers));
        // Twice the queues with flows carry twice as much; queues without a flow add nothing.
        assert!((rate(2, 2).0 / one - 2.0).abs() < 1e-9);
        assert_eq!(rate(4, 2), rate(2, 2));
        let (many, limit) = rate(8, 8);
        assert_eq!((many.round(), limit), ((MBPS * 16.0 / 400.0).round(), Limit::Stacks));
    }

    #[test]
    fn all_cpus_together_limit_a_small_machine() {
        let small = |workers| Machine::Small { cpus: 2.0, workers };
        let (rate, limit) = COSTS.rate(2, spread(2), small(2));
        assert_eq!((rate.round(), limit), ((MBPS * 2.0 / 610.0).round(), Limit::Cpus));
        // Five threads on two CPUs, idle for a fifth of the time; seven have more to do, and are in each other's way.
        let costs = Costs { idle: 0.2, contention: 700.0, ..COSTS };
        near(costs.rate(1, spread(1), small(1)).0, MBPS * 2.0 * 0.8 / 610.0);
        let more = 700.0 * ((1.0 - 2.0 / 7.0) - (1.0 - 2.0 / 5.0));
        let busy = 1.0 - 0.2_f64.powf(7.0 / 5.0);
        near(costs.rate(2, spread(2), small(1)).0, MBPS * 2.0 * busy / (610.0 + more));
    }

    #[test]
    fn a_second_worker_costs_what_was_measured() {
        let costs = Costs { second_worker: 40.0, locked: 0.1, ..COSTS };
        let machine = Machine::Small { cpus: 2.0, workers: 2 };
        near(costs.rate(2, spread(2), machine).0, MBPS * 2.0 / 650.0);
    }

    #[test]
    fn the_rise_of_a_cost_is_a_fit_through_the_first_point() {
        near(rise((0.6, 800.0), [(0.7, 900.0), (0.8, 1000.0)].into_iter()), 1000.0);
        near(rise((0.6, 800.0), [(0.6, 900.0)].into_iter()), 0.0);
        near(crowding(spread(2), 1, 2.0), 1.0 - 2.0 / 7.0);
        near(crowding(spread(1), 1, 8.0), 0.0);
    }

    #[test]
    fn waits_for_locks_grow_with_the_workers_and_cost_time() {
        let costs = Costs { locked: 0.1, ..COSTS };
        near(costs.locked(1), 0.0);
        near(costs.locked(2), 0.1);
        near(costs.locked(8), 0.175);
        near(costs.total(1), 610.0);
        // A tenth of the time is waiting: nine tenths are the 100 ns of work.
        near(costs.total(2), 610.0 + 100.0 / 9.0);
        assert!(
            costs.rate(2, spread(2), Machine::Papers).0
                < COSTS.rate(2, spread(2), Machine::Papers).0
        );
    }
}
