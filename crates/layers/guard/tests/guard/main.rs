//! What the guard refuses and what it passes.

mod attacks;
mod hidden;
mod packets;
mod property;
mod wrapper;
