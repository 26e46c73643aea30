//! Namespaces, traffic tools and CPU accounting for demos, benchmarks and tests.
//!
//! Everything that the crate makes on a machine (a [`Namespace`], a [`Process`]) is removed
//! when its value is dropped, on success, on error and, once [`Interrupt::install`] was called, on Ctrl-C: every wait
//! in this crate then ends with [`Error::Interrupted`], and the stack unwinds through the drops.
//!
//! Nothing touches the host's own network: links are created inside namespaces, never moved into them.
//!
//! Anti-goals: no private network stack, no measurement of the program from inside, no shell.

#![forbid(unsafe_code)]

mod affinity;
mod cpu;
mod deadline;
mod error;
mod exit;
mod fuzz;
mod hung_disk;
mod interrupt;
mod iperf;
mod memory;
mod namespace;
mod needs;
mod offloads;
mod outage;
mod ping;
mod process;
mod progress;
mod random;
mod rtt;
mod steering;
mod sysctl;
mod temp_dir;
mod threads;
mod tools;
mod transfer;
mod veth;

pub use affinity::{cpus, on_cpu, share_a_core};
pub use cpu::{Children, CpuMeter, CpuUsage};
pub use error::{Error, Result};
pub use exit::exit_code;
pub use fuzz::FuzzRounds;
pub use hung_disk::HungDisk;
pub use interrupt::Interrupt;
pub use iperf::{Iperf, RunningIperf, Throughput, Traffic};
pub use memory::Rss;
pub use namespace::Namespace;
pub use needs::{able, needed};
pub use offloads::Offloads;
pub use outage::{Outage, OutageProbe};
pub use ping::{Ping, RoundTrip, ping};
pub use process::{Process, run};
pub use progress::Progress;
pub use rtt::RttProbe;
pub use steering::steer_receive;
pub use sysctl::Sysctl;
pub use temp_dir::TempDir;
pub use threads::{ThreadTime, thread_times, user_time};
pub use tools::{command, preflight};
pub use transfer::{Transfer, transfer_file, transfer_translated_file};
pub use veth::{Endpoint, VethBridge};
