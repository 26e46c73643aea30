//! Wire formats: what lies in packets and ring slots.
//!
//! | layer | modules |
//! | --- | --- |
//! | link | [`ethernet`], [`arp`] |
//! | network | [`ipv4`], [`ipv6`], [`icmp`], [`ndp`] |
//! | transport | [`tcp`], [`udp`] |
//! | the datapath's one parse of a frame | [`headers`], with [`toeplitz`] for its flow hash |
//! | arithmetic | [`checksum`] |
//! | I/O channels | [`netif`], [`virtio_net`] |
//!
//! A protocol is a view over bytes (`Packet<T>` or `Frame<T>`) and a `Repr` or typed enum of its
//! content. `new_checked` verifies every length the view relies on. After it no accessor panics,
//! for any bytes. Setters do not check their values: the builder of a packet is responsible for its
//! consistency. Nothing here allocates.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod headers;
pub mod icmp;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod netif;
pub mod tcp;
pub mod toeplitz;
pub mod udp;
pub mod virtio_net;

mod bytes;
mod error;

pub use error::{Layer, ParseError};
