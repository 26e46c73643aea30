//! Fake ports, packets and a worker's calls, for tests of the datapath, of ports and of wrappers.
//!
//! A test sends frames through a [`Sender`], and the ingress queue behind it takes them as a real port does: a private
//! header, and a body in mapped memory. [`supply`] is an ingress queue whose frames come from an iterator. A
//! [`FakeEgress`] answers each frame as the test says, and logs the calls. [`tcp`] and [`udp`] make frames, [`segments`] cuts one.
//! [`receive`], [`deliver`] and [`pass`] are a worker's calls.
//!
//! Anti-goals: no threads, no clock, no other platform's memory. Functions panic where a test has to fail.

#![forbid(unsafe_code)]

mod egress;
mod ingress;
mod packets;
mod turn;

pub use egress::{FakeEgress, Log};
pub use ingress::{Layout, Sender, supply};
pub use packets::{Sent, frame, merged, segments, tcp, tcp_v6, transport_sum, udp, udp_v6};
pub use turn::{deliver, offer, pass, receive, whole, with_body};
