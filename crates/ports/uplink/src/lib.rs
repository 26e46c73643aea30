//! A tap device or a NIC as a port: the way to the outside network.
//!
//! [`tap`] opens a tap, [`Macvtap`] and [`packet`] a NIC whose frames are read and written as a tap's. [`TapIngress`] makes frames of what the Linux stack behind it sends,
//! in [`Buffers`]. [`TapEgress`] writes frames to the device, and does in software the offloads
//! that the device lacks. [`DirectIngress`] reads a guest's frames into buffers that the guest posted; with [`Xdp`] the kernel
//! puts them there. [`XdpNic`] is a NIC whose frames cross in memory that it shares with the kernel, or with the NIC itself. A [`GuestTap`] is a guest's interface on the host.

#![deny(unsafe_code)]

mod buffers;
mod direct;
mod egress;
mod guest_queue;
mod guest_tap;
mod ingress;
mod kept;
mod loans;
pub mod packet;
mod packet_ring;
mod steering;
mod sys;
mod sysfs;
pub mod tap;
mod xdp;

pub use buffers::{BufferOptions, Buffers};
pub use direct::DirectIngress;
pub use egress::{TapEgress, has_rings, open_rings, try_ring};
pub use guest_queue::{Copied, GuestQueue, QueueCounts};
pub use guest_tap::GuestTap;
pub use ingress::TapIngress;
pub use steering::{Steering, SteeringError};
pub use tap::Macvtap;
pub use xdp::{
    Xdp, XdpCounts, XdpError, XdpIngress, XdpNic, XdpNicEgress, XdpNicError, XdpNicIngress,
    XdpNicQueue, XdpNicReceiver, XdpNicSender, XdpNicSocket, XdpNicWatch, XdpSocket,
    XdpSocketError,
};

#[cfg(test)]
mod tests;
