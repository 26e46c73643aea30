//! A tap device as a port: the way to the outside network.
//!
//! [`tap`] opens the device. [`TapIngress`] makes frames of what the Linux stack behind it sends,
//! in [`Buffers`]. [`TapEgress`] writes frames to the device, and does in software the offloads
//! that the device lacks.

#![deny(unsafe_code)]

pub mod tap;

mod buffers;
mod direct;
mod egress;
mod guest_queue;
mod ingress;
mod kept;
mod macvtap;
pub mod packet;
mod steering;
mod sys;
mod sysfs;
mod xdp;

pub use buffers::{BufferOptions, Buffers};
pub use direct::DirectIngress;
pub use egress::TapEgress;
pub use guest_queue::{Copied, GuestQueue, QueueCounts};
pub use ingress::TapIngress;
pub use macvtap::Macvtap;
pub use steering::{Steering, SteeringError};
pub use xdp::{Xdp, XdpCounts, XdpError, XdpIngress, XdpSocket, XdpSocketError};

#[cfg(test)]
mod tests;
