//! Which CPUs a process may use, where they are, and how far they are from each other.
//!
//! A [`CpuList`] is what an operator writes. [`Available`] says which CPUs of it this process may use, and [`bind`] has a thread run on some.
//! [`node_of`], [`node_of_nic`] and [`distance`] describe the machine.

#![forbid(unsafe_code)]

mod affinity;
mod available;
mod distance;
mod list;

pub use affinity::{bind, bound, node_of, node_of_nic};
pub use available::{Available, NotAvailable};
pub use distance::{Distances, are_neighbours, distance, distances};
pub use list::{CpuList, ListError};
