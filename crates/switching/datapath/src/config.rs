//! How a datapath is set up.

use std::time::Duration;

use switch::Limits;

/// How workers behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many workers.
    pub workers: usize,
    /// The CPU of each of them, by number; a worker without one runs where the scheduler puts it.
    pub cpus: Vec<usize>,
    /// How long a worker without work polls at most before it sleeps, while round trips are under way.
    pub poll: Duration,
    /// Workers that have queues never sleep.
    pub always_poll: bool,
    /// Bounds of the switch's table.
    pub limits: Limits,
    /// Addresses that the table can hold.
    pub capacity: usize,
    /// Copies of flooded frames that one port may cause per second; zero for no limit.
    pub flood_copies: u32,
    /// Whether MAC addresses are part of the hash that spreads flows over a port's queues.
    pub hash_macs: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            cpus: Vec::new(),
            poll: poller::POLL,
            always_poll: false,
            limits: Limits::default(),
            capacity: switch::DEFAULT_CAPACITY,
            flood_copies: switch::FLOOD_COPIES,
            hash_macs: false,
        }
    }
}
