//! xenstore: the tree of keys where domains find each other.
//!
//! [`Store`] is one domain's connection. Three types implement it: [`Client`] speaks the
//! [wire protocol](wire) over a socket or a device, [`Reconnecting`] is a client that survives
//! a restart of the store, and the embedded machine has a local one. [`VifNodes`] is what a toolstack
//! writes for an interface, [`XenbusState`] the handshake between its two ends.

#![forbid(unsafe_code)]

mod client;
mod reconnecting;
mod store;
mod toolstack;
mod watch_queue;
pub mod wire;
mod xenbus;

pub use client::Client;
pub use reconnecting::{Connect, Notice, Reconnecting};
pub use store::{
    ABS_PATH_MAX, Access, PAYLOAD_MAX, Permissions, REL_PATH_MAX, Store, StoreError, TransactionId,
    WatchEvent, in_transaction,
};
pub use toolstack::VifNodes;
pub use watch_queue::{PENDING_MAX, WatchQueue};
pub use xenbus::XenbusState;
