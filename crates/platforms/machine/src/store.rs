//! The embedded store: a xenstore in the daemon.
//!
//! ```text
//!   driver domain                 guest process
//!   LocalStore (0)           xenstore::Client
//!        |                            | socket, xenstore's wire protocol
//!        |                        serve(): LocalStore (n)
//!        |                            |
//!   StoreHub: tree, connections (watches, transactions), behind one lock
//! ```
//!
//! Keys, permissions, transactions and watches are those of xenstored, so both ends of a device run
//! the same handshake as on Xen. Domain 0 is privileged: it may do anything and has no quota.
//! `quota` bounds a guest: it can fill its share, but not the daemon's memory (XSA-326).
//!
//! Not served: CONTROL, RESUME and SET_TARGET (answered ENOSYS), and reconnecting a ring.

mod hub;
mod local;
mod quota;
mod serve;
mod transaction;
mod tree;
mod watch;

#[cfg(test)]
mod tests;

pub use hub::StoreHub;
pub use local::LocalStore;
pub use serve::serve;
