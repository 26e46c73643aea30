//! The experiments behind `pvnet bench`, `pvnet repro` and `pvnet demo`, and the benchmark program `pvnet load`.
//!
//! ```text
//!            bench: rows to compare      repro: a paper's figures      demo: two guests talk
//!                     └──────────────────────────┼──────────────────────────┘
//!                 testbed: daemons and guests as processes, transfers, measurements
//!                                                │
//!        control-socket: status and meter     lab: namespaces, traffic     report: tables, pages
//! ```
//!
//! A daemon or a guest under test is another process of the calling program, `pvnet`.
//!
//! Anti-goals: nothing here is used while frames are carried, and nothing of the daemon is imported.

#![forbid(unsafe_code)]

pub mod bench;
pub mod demo;
mod error;
mod fairness;
pub mod load;
mod output;
pub mod repro;
mod testbed;

pub use error::{Error, Result};
