//! Offloads beside packets that etherparse builds, and as tshark sees them.

mod common;

mod checksum;
mod segment;
mod tshark;
mod udp;
