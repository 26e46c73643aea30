//! The way out: a tap device as a port.
//!
//! [`tap`] opens the device. [`Ingress`] makes frames of what the Linux stack behind it sends,
//! [`Egress`] hands it frames. [`vnet`] translates their offload metadata.

#![deny(unsafe_code)]

pub mod tap;
pub mod vnet;

mod egress;
mod ingress;
mod sys;

pub use egress::Egress;
pub use ingress::Ingress;
