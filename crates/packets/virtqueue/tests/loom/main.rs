//! Rings under loom: every interleaving of the two ends (up to a bound on preemptions), and every reordering that the memory
//! model allows, of the production code of the device and of the driver of bursts. They run over loom's atomics, with the orders
//! and barriers that they have in production.
//!
//! Shown: no notification is lost (loom reports the deadlock when a side sleeps for ever while work waits for it), and what
//! a side sees of a chain was written whole. The control tests remove a barrier or a second look and must fail.
//!
//! Run with `make loom`.
#![cfg(loom)]

mod burst;
mod ends;
mod memory;
mod packed;
mod split;
