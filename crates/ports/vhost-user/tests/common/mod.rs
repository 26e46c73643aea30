//! A virtual machine in a test: a front-end, and a driver in the guest's memory.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

mod front_end;
mod protocol;
mod served;
mod vm;

pub use front_end::*;
pub use port_testing::{tcp, tcp_v6, udp, udp_v6};
pub use protocol::*;
pub use served::*;
pub use vm::*;
