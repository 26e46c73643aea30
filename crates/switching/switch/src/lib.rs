//! The learning switch: which port a destination lives on.
//!
//! A worker calls [`MacTable::learn`] with each frame's source, [`forward`] with its destination, and adds
//! what it did to [`PortCounters`] once per batch. Nothing here locks, allocates or blocks per frame.

#![forbid(unsafe_code)]

mod counters;
mod entry;
mod forward;
mod hash;
mod table;

pub use counters::{PortCounters, PortSnapshot};
pub use forward::{Verdict, forward};
pub use table::{DEFAULT_CAPACITY, Entry, Limits, MacTable};

/// A port of the switch: an index that the owner of the ports hands out.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug, Hash)]
pub struct PortId(pub u16);
