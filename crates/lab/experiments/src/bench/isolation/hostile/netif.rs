//! A process guest, which speaks netif.

mod attacker;
pub mod control;
pub mod events;
pub mod frames;
pub mod memory;
pub mod receiver;
pub mod segments;
pub mod sessions;
pub mod store;

pub use attacker::Attacker;
