//! A model of machines with more CPUs, from costs that were measured here.
//!
//! A chain of threads carries a byte: the sender's stack, its queue's thread, a worker, the receiver's queue's thread,
//! its stack. In the model each thread has a CPU. So the rate is that at which the first kind of thread has no idle time
//! left. Flows do not compensate for each other: a queue without a flow carries nothing.

use serde::Serialize;

use super::flows::Spread;
use super::paper::GUEST_CPUS;

/// CPU time of each kind of thread, in nanoseconds per KiB of payload, with one queue and one worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// All of the daemon.
    pub daemon: f64,
    /// Of that, the workers.
    pub worker: f64,
    /// The threads of the sender's queues.
    pub sender_queues: f64,
    /// The threads of the receiver's queues.
    pub receiver_queues: f64,
    /// Both guests: queues, stacks and programs.
    pub guests: f64,
    /// The share of its time in which one of two workers waits for the other's lock, with two queues.
    pub locked: f64,
}

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The workers with traffic.
    Workers,
    /// The threads of the sender's queues.
    SenderQueues,
    /// The threads of the receiver's queues.
    ReceiverQueues,
    /// The virtual CPUs on which stacks and programs run.
    Stacks,
    /// All CPUs of the machine.
    Cpus,
}

/// The machine that the model is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Machine {
    /// A CPU for each worker, and eight for each guest.
    Papers,
    /// So many CPUs for everything.
    Cpus(f64),
}

impl Limit {
    /// Its name for readers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::SenderQueues => "sender's queues",
            Self::ReceiverQueues => "receiver's queues",
            Self::Stacks => "stacks",
            Self::Cpus => "CPUs",
        }
    }
}

/// Mb/s that a KiB per nanosecond is.
const MBPS: f64 = 1024.0 * 8.0 * 1e3;

impl Costs {
    /// The share of a worker's time that it waits for locks, with a worker for each queue. Each of the others has a
    /// given lock with the same chance; it was measured with one other and two locks.
    pub fn locked(&self, queues: usize) -> f64 {
        let others = queues.saturating_sub(1) as f64;
        (2.0 * self.locked * others / queues.max(1) as f64).min(1.0)
    }

    /// What the daemon and the guests take for a KiB, in nanoseconds, waits for locks included.
    pub fn total(&self, queues: usize) -> f64 {
        self.daemon + self.waits(queues) + self.guests
    }

    fn waits(&self, queues: usize) -> f64 {
        let locked = self.locked(queues);
        self.worker * locked / (1.0 - locked).max(f64::EPSILON)
    }

    /// The rate in Mb/s with a worker for each queue and flows that spread like this, and what limits it.
    pub fn rate(&self, queues: usize, spread: Spread, machine: Machine) -> (f64, Limit) {
        let (used, to_receiver) = (spread.used as f64, spread.used_to_receiver as f64);
        let mut limits = vec![
            (used / (self.worker + self.waits(queues)), Limit::Workers),
            (used / self.sender_queues, Limit::SenderQueues),
            (to_receiver / self.receiver_queues, Limit::ReceiverQueues),
        ];
        match machine {
            Machine::Papers => {
                let stacks = self.guests - self.sender_queues - self.receiver_queues;
                // Half of it at each end.
                limits.push((GUEST_CPUS as f64 * 2.0 / stacks.max(f64::EPSILON), Limit::Stacks));
            }
            Machine::Cpus(cpus) => limits.push((cpus / self.total(queues), Limit::Cpus)),
        }
        let least = limits.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
        least.map_or((0.0, Limit::Cpus), |(rate, limit)| (rate * MBPS, limit))
    }
}

/// A prediction for a point that was measured too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Queues and workers.
    pub queues: usize,
    /// Mb/s, by the model for this machine's CPUs.
    pub predicted: f64,
    /// Mb/s, the median.
    pub measured: f64,
    /// How far the prediction is from the measurement, as a share of it.
    pub error: f64,
    /// What limits the rate, by the model.
    pub limit: Limit,
}

impl Check {
    /// Compares a prediction with a measurement.
    pub fn new(queues: usize, (predicted, limit): (f64, Limit), measured: f64) -> Self {
        let error = (predicted - measured) / measured.max(f64::EPSILON);
        Self { queues, predicted, measured, error, limit }
    }
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
    };

    fn spread(used: usize) -> Spread {
        Spread { most: 8 / used, used, used_to_receiver: used }
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
        let (rate, limit) = COSTS.rate(2, spread(2), Machine::Cpus(2.0));
        assert_eq!((rate.round(), limit), ((MBPS * 2.0 / 610.0).round(), Limit::Cpus));
    }

    #[test]
    fn waits_for_locks_grow_with_the_workers_and_cost_time() {
        let costs = Costs { locked: 0.1, ..COSTS };
        let near = |here: f64, there: f64| assert!((here - there).abs() < 1e-9, "{here} {there}");
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

    #[test]
    fn a_check_says_how_far_off_the_model_is() {
        let check = Check::new(2, (900.0, Limit::Cpus), 1000.0);
        assert!((check.error + 0.1).abs() < 1e-9, "{check:?}");
    }
}
