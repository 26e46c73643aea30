//! Benchmark rows, statistics, tables and self-contained HTML reports.
//!
//! From the samples to the reader:
//!
//! ```text
//! Samples ──► Stats ──► Row ──► Benchmark (JSON)      what a program reads
//!                         ├───► Table                 what a terminal shows
//!                         └───► html::Report + charts what a person opens
//!
//! Statement, a number from here, Rule ──► Claim with its Verdict: what a paper says, and whether it holds
//! ```
//!
//! Anti-goals: no measuring, no clock but the date of the document, no JavaScript, no external resource in a page.

#![forbid(unsafe_code)]

mod claim;
mod date;
mod document;
mod file;
pub mod html;
mod machine;
mod manual;
mod stats;
mod table;
mod verdict;

pub use claim::{Claim, Statement, claims_table};
pub use date::rfc3339;
pub use document::{Benchmark, CpuSplit, Ratio, Row};
pub use file::{Error, read, write_atomic};
pub use machine::Machine;
pub use manual::{SchemaArgs, json_commands, write_manual};
pub use stats::{Samples, Stats, count, human};
pub use table::{Align, Table, wants_bold};
pub use verdict::{Rule, Sensitivity, Unit, Verdict};
