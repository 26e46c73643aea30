//! What a card with a protected context for every guest does (concurrent direct network access,
//! Willmann et al. 2007).
//!
//! ```text
//! ContextPages, Bus                                                              Wire
//!     │                                                                            │
//!     │─▶ events: which mailboxes were written                                     │
//!     │─▶ fetch ─▶ gather ─▶ schedule ─┬─▶ finish ─▶ rate ────────────────────────▶│
//!     │                                │ to other contexts                         │
//!     │◀─ context: RX buffers ◀─ finish ◀─ contexts: MAC table, groups ◀─ rate ◀───│
//!     │◀─ completions, consumer indices
//!     └◀─ coalesce ─▶ interrupts: vectors for the hypervisor
//! ```
//!
//! [`Card::step`] does a bounded amount of all that. There are no threads, no system calls and, per frame, no
//! allocations: the caller waits and interrupts. The card reaches memory only through [`Bus`], [`ContextPages`] and
//! [`VectorPage`], and the network only through [`Wire`].
//!
//! A guest may write anything to its context page, to its rings if they are its own, and into its buffers. Descriptors
//! are copied once. An error is a fault of that context alone, which is stopped and reported.

#![forbid(unsafe_code)]

mod bus;
mod card;
mod coalesce;
mod context;
mod contexts;
mod fetch;
mod finish;
mod gather;
mod interrupts;
mod line_rate;
mod receive;
pub mod regions;
mod schedule;
mod stations;
mod transmit;

pub use bus::{Bus, BusFault, ContextPages, Metadata, Sent, VectorPage, Wire};
pub use card::{Card, Config, Counters, Next, Step};
