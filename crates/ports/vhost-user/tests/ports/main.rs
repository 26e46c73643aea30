//! Ports of virtual machines, driven by a front-end and a driver of virtqueues.

#[path = "../common/mod.rs"]
mod common;

mod device;
mod elsewhere;
mod few_buffers;
mod frames;
mod inflight;
mod migration;
mod renewal;
mod session;
mod small;
mod udp;
mod uplinks;
mod watch;
