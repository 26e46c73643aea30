//! Rings between a driver and the device: honest, hostile, killed.

mod common;

mod burst;
mod driver;
mod hostile;
mod inflight;
mod killed;
