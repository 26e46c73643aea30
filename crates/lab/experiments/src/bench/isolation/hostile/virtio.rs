//! The attacks of a virtual machine with a vhost-user port, and of its front-end.

mod attacker;
pub mod frames;
pub mod memory;
pub mod rings;
pub mod sessions;

pub use attacker::Attacker;
