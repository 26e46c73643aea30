//! The cards of the configuration: the hypervisor's part of a card with a protected context for every guest
//! (Willmann et al. 2007).
//!
//! ```text
//!  pvnet nic ── nic.sock ── server: a thread per card ─┐
//!      │                                               ├── NicCard: the slots, one per guest's context ── contexts
//!      └─ vectors, interrupt ── vectors: a thread ─────┤                                                 (references,
//!                                                      │                                                  enqueue, tables)
//!  pvnet guest ── channel: a thread per guest ─────────┘
//!                 requests, call pages
//! ```
//!
//! A slot goes from free to prepared (the card has mapped the files), to serving (the guest has mapped them), and back when the
//! card has confirmed the revocation, has stopped the context for a fault, or has ended.

mod assignment;
mod card;
mod cards;
mod channel;
mod queues;
mod server;
mod slot;
mod status;
mod uplink;
mod vectors;

pub(super) use cards::Nics;
pub(super) use queues::CardQueues;
pub(super) use server::Server;
pub(super) use uplink::serve_uplink;
