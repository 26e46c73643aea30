//! Traffic between namespaces, and what it costs: for the demo, benchmarks, labs and tests.
//!
//! Namespaces, processes and whatever else is not traffic come from crate [`host`], and are re-exported here.
//!
//! Anti-goals: no private network stack, no measurement of the program from inside, no shell.

#![forbid(unsafe_code)]

mod affinity;
mod browser;
pub mod documents;
mod fuzz;
mod iperf;
mod memory;
mod offloads;
mod outage;
mod ping;
mod progress;
mod rtt;
mod slow_close;
mod slow_disk;
mod slow_swap;
mod sysctl;
mod transfer;
mod veth;

pub use host::{
    Children, CpuMeter, CpuUsage, Error, Interrupt, Namespace, Process, Result, TempDir,
    ThreadTime, able, command, exit_code, needed, preflight, requires, run, thread_times,
    user_time,
};

pub use affinity::{cpus, on_cpu, share_a_core, steer_receive};
pub use browser::Browser;
pub use fuzz::FuzzRounds;
pub use iperf::{Iperf, RunningIperf, Throughput, Traffic};
pub use memory::Rss;
pub use offloads::Offloads;
pub use outage::{Outage, OutageProbe, enlarge_receive_buffer};
pub use ping::{Ping, RoundTrip, ping};
pub use progress::Progress;
pub use rtt::RttProbe;
pub use slow_close::SlowClose;
pub use slow_disk::{HungDisk, SlowDisk};
pub use slow_swap::{SlowSwap, Wish};
pub use sysctl::Sysctl;
pub use transfer::{
    Random, RunningTransfer, Transfer, hexadecimal, transfer_file, transfer_translated_file,
};
pub use veth::{Endpoint, VethBridge};
