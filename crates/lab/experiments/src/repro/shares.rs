//! Divides the server CPU's time between the domains.

use std::hint::black_box;
use std::time::{Duration, Instant};

use lab::{CpuUsage, ThreadTime};
use report::Samples;
use schemars::JsonSchema;
use serde::Serialize;

/// The daemon's threads that do a hypervisor's work: guests' memory and store, their calls, the cards' vectors and
/// commands. The names are cut to the length that the kernel keeps.
const HYPERVISOR: [&str; 4] = ["guest client", "contexts client", "nic vectors", "card client"];
/// The beginning of the names of the threads whose grant and event operations the meter counts.
const WORKER: &str = "worker-";

/// Shares of the server CPU's time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Shares {
    /// The hypervisor.
    pub hypervisor: f64,
    /// The driver domain.
    pub driver: f64,
    /// The guests' kernels.
    pub guest_system: f64,
    /// The guests' programs.
    pub guest_user: f64,
    /// Idle time.
    pub idle: f64,
}

/// Processor times at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The daemon.
    pub daemon: Duration,
    /// The part of the daemon's time in threads that do a hypervisor's work.
    pub hypervisor: Duration,
    /// How long the workers ran, and how long they waited for the CPU.
    pub workers: [Duration; 2],
    /// The meter's time, from the beginning to the end of the workers' grant and event operations. Others may have
    /// had the CPU meanwhile.
    pub metered: Duration,
    /// All guests: their kernels, frontends and programs.
    pub guests: Duration,
    /// The part of the guests' time in programs outside of their kernels.
    pub guest_user: Duration,
}

impl Times {
    /// Adds the daemon's threads.
    pub fn with_daemon(mut self, threads: &[ThreadTime]) -> Self {
        for ThreadTime { name, ran, waited } in threads {
            self.daemon += *ran;
            if HYPERVISOR.contains(&name.as_str()) {
                self.hypervisor += *ran;
            }
            if name.starts_with(WORKER) {
                self.workers[0] += *ran;
                self.workers[1] += *waited;
            }
        }
        self
    }
}

/// The shares of the server CPU's time between two moments, and the share that other programs had.
pub fn shares(before: &Times, after: &Times, usage: &CpuUsage) -> (Shares, f64) {
    let since = |of: fn(&Times) -> Duration| of(after).saturating_sub(of(before));
    let daemon = since(|times| times.daemon);
    let [ran, waited] = [since(|times| times.workers[0]), since(|times| times.workers[1])];
    // The workers waited for the CPU as often within operations as elsewhere.
    let running = ran.as_secs_f64() / (ran + waited).as_secs_f64().max(f64::EPSILON);
    let metered = since(|times| times.metered).mul_f64(running).min(ran);
    let hypervisor = (since(|times| times.hypervisor) + metered).min(daemon);
    let guests = since(|times| times.guests);
    let user = since(|times| times.guest_user).min(guests);
    let known = daemon + guests;
    let shares = Shares {
        hypervisor: usage.cpus(hypervisor),
        driver: usage.cpus(daemon - hypervisor),
        guest_system: usage.cpus(guests - user),
        guest_user: usage.cpus(user),
        idle: usage.cpus(usage.wall.saturating_sub(known)),
    };
    let others = usage.busy.saturating_sub(known) + usage.steal;
    (shares, usage.cpus(others))
}

/// Buffers on each side, a page apart: as many as a ring has.
const BUFFERS: usize = 256;
const PAGE: usize = 4096;
/// How often all buffers are copied. The median counts.
const TIMES: usize = 51;

/// Nanoseconds of a copy of `bytes` bytes from one page to another, with as many pages in turn as a ring has.
pub fn copy_ns(bytes: u16) -> f64 {
    let (from, mut to) = (vec![1_u8; BUFFERS * PAGE], vec![0_u8; BUFFERS * PAGE]);
    let len = usize::from(bytes).min(PAGE);
    let mut copy_all = || {
        let start = Instant::now();
        for (from, to) in from.chunks(PAGE).zip(to.chunks_mut(PAGE)) {
            to[..len].copy_from_slice(black_box(&from[..len]));
        }
        black_box(&mut to);
        start.elapsed().as_secs_f64() * 1e9 / BUFFERS as f64
    };
    let all: Samples = (0..TIMES).map(|_| copy_all()).collect();
    all.stats().map_or(0.0, |stats| stats.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_daemons_threads_are_the_driver_domains_or_the_hypervisors() {
        let thread = |name: &str, ran, waited| ThreadTime {
            name: name.to_owned(),
            ran: ms(ran),
            waited: ms(waited),
        };
        let threads = [
            thread("worker-0", 300, 100),
            thread("contexts client", 50, 9),
            thread("contexts client", 30, 9),
            thread("nic vectors", 20, 9),
            thread("uplink context", 10, 9),
        ];
        // A quarter of the metered time was not the workers'.
        let times =
            Times { metered: ms(160), guests: ms(400), guest_user: ms(40), ..Times::default() };
        let usage =
            CpuUsage { wall: ms(1000), busy: ms(850), idle: ms(150), ..CpuUsage::default() };
        let (shares, others) = shares(&Times::default(), &times.with_daemon(&threads), &usage);
        let near = |here: f64, there: f64| assert!((here - there).abs() < 1e-9, "{here} {there}");
        near(shares.hypervisor, 0.22);
        near(shares.driver, 0.19);
        near(shares.guest_system, 0.36);
        near(shares.guest_user, 0.04);
        near(shares.idle, 0.19);
        near(others, 0.04);
    }

    #[test]
    fn metered_time_is_at_most_the_workers() {
        let workers = [ms(100), ms(0)];
        let times = Times { daemon: ms(150), workers, metered: ms(900), ..Times::default() };
        let usage = CpuUsage { wall: ms(1000), ..CpuUsage::default() };
        let (shares, _) = shares(&Times::default(), &times, &usage);
        assert!((shares.hypervisor - 0.1).abs() < 1e-9 && (shares.driver - 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_copy_takes_time() {
        assert!(copy_ns(1500) > 0.0);
    }
}
