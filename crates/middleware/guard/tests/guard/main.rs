//! What the guard refuses and what it passes.

mod attacks;
mod packets;
mod property;
mod wrapper;
