//! A card, driven through its contexts' rings.

#[path = "../common/mod.rs"]
mod common;

mod fairness;
mod hostile;
mod interrupts;
mod model;
mod revocation;
mod traffic;
