//! Virtual machines without machines: memory, rings, and what a vhost-user front-end says of them.

mod crowd;
mod machine;
mod session;

pub(super) use crowd::{Crowd, PAIRS_MAX};
pub(super) use machine::{HEADER, LEN, Machine, PAGE, RX, SIZE, TX, TX_DATA, buffer, parts};
pub(super) use session::{Description, GUEST, connect, eventfds};
