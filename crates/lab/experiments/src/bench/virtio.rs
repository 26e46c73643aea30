//! Guests without virtual machines: memory, rings, and the messages of a vhost-user front-end.

mod crowd;
mod machine;
mod session;

pub(super) use crowd::{Crowd, PAIRS_MAX};
pub(super) use machine::{HEADER, LEN, Machine, PAGE, RX, SIZE, TX, TX_DATA, buffer, parts};
pub(super) use session::{Description, GUEST, connect, eventfds};
