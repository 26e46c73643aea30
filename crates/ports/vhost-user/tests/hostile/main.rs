//! A guest or a front-end that means harm loses its own frames, or its own port, and nothing else.

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod eventfds;
mod frames;
mod messages;
mod sparse;
mod udp;
