//! The learning switch: which port a destination lives on.
//!
//! A worker calls [`MacTable::learn`] with each frame's source, asks [`forward`] where the frame goes, and adds
//! what it did to [`PortCounters`] once per batch. [`StormControl`] bounds what a port floods, and [`multicast`] says who
//! gets the frames of a group. Nothing here locks, allocates or blocks per frame; messages of IGMP and MLD take a lock.
//!
//! Ingress and egress are the switch's: *ingress* is from a port into the switch, *egress* from the switch out of
//! a port.

#![forbid(unsafe_code)]

mod bucket;
mod counters;
mod entry;
mod forward;
mod hash;
mod learning;
mod membership;
mod moves;
pub mod multicast;
mod ports;
mod storm;
mod table;

pub use counters::{PortCounters, PortSnapshot, add_alone};
pub use forward::{Verdict, forward};
pub use learning::{Learning, LearningCounts};
pub use membership::{Membership, NO_VLAN, TagChange, Tagging, VlanId, VlanSet};
pub use moves::Move;
pub use ports::{PortId, PortSet};
pub use storm::{FLOOD_COPIES, StormControl};
pub use table::{DEFAULT_CAPACITY, Limits, MacEntry, MacTable, TeachError};
pub use wire::ethernet::MacAddr;
