//! Notifications under loom: every interleaving of the two ends (up to a bound on preemptions), and every reordering that
//! the memory model allows, of the production code of the device.
//!
//! Shown: no notification is lost (loom reports the deadlock when a side sleeps for ever while work waits for it). The
//! control tests remove a barrier or a second look and must fail.
//!
//! Run with `make loom`.
#![cfg(loom)]

mod packed;
mod split;
