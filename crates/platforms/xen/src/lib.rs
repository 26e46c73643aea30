//! The hypervisor's services on Xen, for a process in dom0 or any other domain.
//!
//! Linux gives a process what a driver in the kernel has, as devices: [`Xen`] maps and copies pages
//! that other domains grant over `/dev/xen/gntdev`, and is rung over `/dev/xen/evtchn`.
//! [`XenGuest`] grants pages of its own over `/dev/xen/gntalloc`. [`store::connect`] finds the
//! store, whose protocol `xenstore::Client` speaks. No C library is needed.
//!
//! Not here: pages that change hands. `GNTTABOP_transfer` has no device, so frames are received by
//! copies, `rx = "copy"`. Nor has a process a way to tell a device of a page it has not mapped.

#![deny(unsafe_code)]

mod copy;
mod device;
mod event;
mod grant;
mod guest;
mod hypervisor;
mod peer;
pub mod store;
mod sys;

pub use device::OpenError;
pub use event::XenEvent;
pub use grant::{Aperture, Mapping};
pub use guest::{SharedPages, XenGuest};
pub use hypervisor::Xen;
pub use peer::Peer;
