//! The embedded hypervisor: domains are processes.
//!
//! It does for processes what Xen does for virtual machines, with the same terms and layouts:
//! memory of each domain (a sealed memfd), grants checked at every use (Xen's v1 table, in the
//! guest's memory), page transfers, event channels, and a store. A process [joins](join) over a
//! Unix socket and is a domain until it ends: the kernel closes the socket however the process
//! dies.
//!
//! [`Machine`] is the hypervisor seen from the driver domain, [`MachineGuest`] from a guest.

#![forbid(unsafe_code)]

mod admission;
mod aperture;
mod balloon;
mod coverage;
mod dma;
mod domain;
mod event;
mod exchange;
mod grant_table;
mod guest;
mod guest_copy;
mod hypervisor;
mod join;
mod memory;
mod proto;
mod server;
mod share;
mod socket;
pub mod store;
pub mod toolstack;

pub use admission::{Admitted, Applicant, Session, Token, Toolstack};
pub use aperture::Aperture;
pub use coverage::{AddressSpace, Coverage};
pub use domain::{DRIVER_DOMAIN, Domain};
pub use event::{GuestEvent, HostEvent, channel as event_channel};
pub use exchange::ExchangeCount;
pub use guest::balloon::BalloonError;
pub use guest::grouping::Grouping;
pub use guest::own_pages::OwnPages;
pub use guest::{MachineGuest, SharedPages};
pub use hypervisor::{Machine, Mapping};
pub use join::{ConnectError, join, join_with};
pub use memory::MemorySize;
pub use server::Listener;
pub use share::Share;
pub use socket::{Accepted, Acceptor, listen_at};
