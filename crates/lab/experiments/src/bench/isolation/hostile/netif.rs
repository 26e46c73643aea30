//! A process guest, which speaks netif.

mod attacker;
pub mod floods;
pub mod frames;
pub mod memory;

pub use attacker::Attacker;
