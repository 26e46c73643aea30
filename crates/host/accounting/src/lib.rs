//! What pvnet carried, and whose processor time that took.
//!
//! ```text
//! Status, before and after ──► Carried ──┐
//!                                        ├──► Measured: costs per frame and per gigabyte
//! host::CpuUsage ─────────────► split() ──┘
//! ```
//!
//! Anti-goals: it takes no readings itself, and shows nothing.

#![forbid(unsafe_code)]

mod carried;
mod measured;

pub use carried::Carried;
pub use measured::{Measured, split, stolen};
