//! The hypervisor's services on Xen, for a process in dom0 or any other domain.
//!
//! Linux offers a process the same services as a driver in the kernel, as devices: [`Xen`] maps and
//! copies granted pages through `/dev/xen/gntdev` and has events from `/dev/xen/evtchn`.
//! [`XenGuest`] grants pages through `/dev/xen/gntalloc`. [`store::connect`] finds the store, whose
//! protocol `xenstore::Client` speaks. No C library is needed.
//!
//! A driver domain grants pages too: to guests that copy received frames themselves
//! ([`Xen::with_guest_copies`]), and to itself, so that copies pin none ([`Xen::grant_own_pages`]).
//!
//! Two services are missing. No device offers `GNTTABOP_transfer`, so there is no page flipping:
//! use `rx = "copy"`. And a process cannot give a device the address of a page that it has not
//! mapped.

#![deny(unsafe_code)]

mod copier;
mod copy;
mod device;
mod event;
mod grant;
mod guest;
mod hypervisor;
mod own_pages;
mod peer;
mod pool;
mod shared_pages;
pub mod store;
mod sys;

pub use copy::XenCopies;
pub use device::OpenError;
pub use event::XenEvent;
pub use grant::{Aperture, Mapping};
pub use guest::XenGuest;
pub use hypervisor::{OwnPagesError, Xen};
pub use own_pages::{OWN_PAGES_OF_A_QUEUE, OwnPageCounts};
pub use peer::Peer;
pub use shared_pages::SharedPages;
