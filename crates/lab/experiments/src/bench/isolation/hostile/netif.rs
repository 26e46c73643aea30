//! A process guest, which speaks netif.

mod attacker;
pub mod floods;
pub mod frames;
pub mod memory;
pub mod receiver;
pub mod segments;
pub mod sessions;

pub use attacker::Attacker;
