//! A tap device as a port: the way to the outside network.
//!
//! [`tap`] opens the device. [`TapIngress`] makes frames of what the Linux stack behind it sends,
//! in [`Buffers`]. [`TapEgress`] writes frames to the device, and does in software the offloads
//! that the device lacks.

#![deny(unsafe_code)]

pub mod tap;

mod buffers;
mod egress;
mod ingress;
mod kept;
mod sys;

pub use buffers::{BufferOptions, Buffers};
pub use egress::TapEgress;
pub use ingress::TapIngress;

#[cfg(test)]
mod tests;
