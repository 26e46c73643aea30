//! The way out: a tap device as a port.
//!
//! [`tap`] opens the device. [`Ingress`] makes frames of what the Linux stack behind it sends, in
//! [`Buffers`] of its own. [`Egress`] hands it frames, and does what the device is not trusted
//! with. [`vnet`] translates their offload metadata.

#![deny(unsafe_code)]

pub mod tap;
pub mod vnet;

mod buffers;
mod egress;
mod ingress;
mod scatter;
mod sys;

pub use buffers::{BufferOptions, Buffers};
pub use egress::Egress;
pub use ingress::Ingress;

#[cfg(test)]
mod tests;
