//! Guests that exchange frames through real rings, grants, events and the switch.

#[path = "../common/mod.rs"]
mod common;

mod coalescing;
mod copy_pool;
mod invalidation;
mod persistent;
mod restart;
mod two_guests;
