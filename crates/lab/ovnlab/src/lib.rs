//! Hosts whose guests' interfaces are ports of OVN's logical switches, in network namespaces of one machine.
//!
//! ```text
//!  central: northd, two databases         one router r, two switches s1 and s2
//!      │
//!  ════╪══════════════ underlay, 1500 bytes ═══════════╪════════
//!      │                                               │
//!  host a: ovn-controller, ovs-vswitchd, pvnet     host b: the same
//!      br-int ── vif11 ═ guest p11 (s1)                br-int ── vif12 ═ guest p12 (s1), vif21 ═ guest p21 (s2)
//! ```
//!
//! At the end two hosts join. Host c's guest p13 (s1) is behind a vhost-user port of an Open vSwitch with DPDK. Host d has a virtual
//! machine p22 and a card's guest p23 (s2). Guests red, p22 and p23 get their addresses from OVN. The outside network is in the underlay.
//!
//! [`Programs`] are OVN and Open vSwitch from Debian's packages, unpacked below a cache and never installed. A [`Testbed`] has everything
//! that runs. [`run`] does the steps. [`cost`] measures.
//!
//! Everything that runs ends when its value is dropped, and on Ctrl-C once [`lab::Interrupt::install`] was called.
//!
//! Anti-goals: no kernel module, no absolute speeds.

#![forbid(unsafe_code)]

mod central;
pub mod command;
pub mod cost;
mod dhcp;
mod guest;
mod host;
mod kinds;
mod network;
mod node;
mod plan;
mod programs;
mod scripts;
mod steps;
mod testbed;
mod vhost_user;

pub use programs::{Form, Programs};
pub use steps::{STEPS, run};
pub use testbed::Testbed;
pub use xenlab::{Error, Result};
