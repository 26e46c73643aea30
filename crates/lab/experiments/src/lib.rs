//! The experiments behind `pvnet-lab bench`, `pvnet-lab repro` and `pvnet-lab demo`, and the benchmark program `pvnet-lab load`.
//!
//! ```text
//!            bench: rows to compare      repro: a paper's figures      demo: two guests talk
//!                     └──────────────────────────┼──────────────────────────┘
//!                 testbed: daemons and guests as processes, transfers, measurements
//!                                                │
//!        control-socket: status and meter     lab: namespaces, traffic     report: tables, pages
//! ```
//!
//! A daemon or a guest under test is a process of the program `pvnet`.
//!
//! Anti-goals: the daemon uses nothing from here, and nothing of the daemon is imported.

#![forbid(unsafe_code)]

pub mod bench;
pub mod demo;
mod error;
pub mod load;
mod output;
pub mod repro;
mod testbed;

use document::Kind;

pub use error::{Error, Result};

/// The options of a command line without a program, for tests.
#[cfg(test)]
fn options<A: clap::Args>(words: &[&str]) -> std::result::Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("options").no_binary_name(true));
    A::from_arg_matches(&command.try_get_matches_from(words)?)
}

/// The documents that these commands write with `--json`.
pub const DOCUMENTS: &[Kind] = &[
    Kind::of::<report::Benchmark>(
        "bench",
        &[
            "bench stream",
            "bench pps",
            "bench latency",
            "bench queues",
            "bench reuse",
            "bench middleware",
            "bench nic",
            "bench idle",
            "bench isolation",
            "bench restart",
            "bench sandbox",
            "bench uplink",
            "bench scale",
            "bench vhost",
            "demo",
        ],
    ),
    Kind::of::<load::Outcome>("load", &["load client"]),
    Kind::of::<load::Sent>("load-source", &["load source"]),
    Kind::of::<load::Arrived>("load-sink", &["load sink"]),
    Kind::of::<repro::Menon06>("repro-menon06", &["repro menon06"]),
    Kind::of::<repro::Willmann07>("repro-willmann07", &["repro willmann07"]),
    Kind::of::<repro::Xenserver7>("repro-xenserver7", &["repro xenserver7"]),
    Kind::of::<repro::Santos08>("repro-santos08", &["repro santos08"]),
];
