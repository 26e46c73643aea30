//! The attacks of a process guest, which uses netif.

mod attacker;
pub mod floods;
pub mod frames;
pub mod memory;

pub use attacker::Attacker;
