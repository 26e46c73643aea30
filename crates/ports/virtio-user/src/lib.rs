//! The driver of a vhost-user back-end's port, as an uplink: OVS-DPDK, VPP, DPDK's testpmd, or another pvnet.
//!
//! ```text
//!  switch ──► Sender: Egress ──► copy ──► buffers and rings ──► back-end: its switch, its NIC
//!         ◄── Receiver: Ingress ◄── in place ──┘ one file in memory, which nothing else is in
//!
//!  Session ── messages ──► back-end: features, the file, the rings
//! ```
//!
//! [`connect`] describes one file in memory to the back-end: rings, and buffers that belong to this crate. That file is all
//! that the back-end ever sees. Frames are copied to it from where their senders have them, and from it to where their receivers
//! want them, so no back-end reaches a guest's memory. Nothing outlives a connection: the next one has a new file and new rings.
//!
//! The back-end is another process, and is not trusted with more than the frames. Rings are checked by
//! [`virtqueue::burst`], metadata of frames as that of guests; messages have limits of time; a write to its eventfds is watched, as
//! those to front-ends' are. Any violation ends the connection, and touches no other port.

#![forbid(unsafe_code)]

mod error;
mod messages;
mod options;
mod receiver;
mod sender;
mod session;
mod shared_memory;

pub use error::Error;
pub use options::{Agreed, Options};
pub use receiver::Receiver;
pub use sender::Sender;
pub use session::{Session, connect};
