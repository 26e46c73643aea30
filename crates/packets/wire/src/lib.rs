//! Wire formats: what lies in packets and ring slots.
//!
//! | layer | modules |
//! | --- | --- |
//! | link | [`ethernet`], [`arp`] |
//! | network | [`ipv4`], [`ipv6`], [`icmp`] |
//! | transport | [`tcp`], [`udp`] |
//! | the datapath's one look at a frame | [`headers`], with [`toeplitz`] for its flow hash |
//! | arithmetic | [`checksum`] |
//! | I/O channels | [`netif`], [`virtio_net`] |
//!
//! A protocol is a view over bytes (`Packet<T>` or `Frame<T>`) and a `Repr` or typed enum of what
//! it says. `new_checked` verifies every length the view relies on; after it no accessor panics,
//! whatever the bytes are. Setters write what they are told: who builds a packet answers for its
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
pub mod netif;
pub mod tcp;
pub mod toeplitz;
pub mod udp;
pub mod virtio_net;

mod bytes;
mod error;

pub use error::{Layer, ParseError};
