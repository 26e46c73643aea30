//! The hypervisor's services, as traits.
//!
//! A driver domain and a guest need two services: pages that another domain may use
//! ([grants](grant)) and a doorbell ([event channels](EventChannel)). Each platform (`machine`, `xen`)
//! implements these traits once. `netback` and `netfront` are generic over them and do not know
//! which platform they run on. Domains find each other through
//! the store, which is crate `xenstore`.

#![forbid(unsafe_code)]

mod copies;
pub mod dma;
mod error;
pub mod flip;
pub mod foreign;
pub mod grant;
mod guest;
pub mod guest_copy;
mod hypervisor;
mod id;
mod meter;
pub mod metered;
mod pages;
pub mod references;

pub use copies::{COPIES_MAX, Copies, PlainCopies, Tally, copy_all};
pub use dma::{DmaHold, DmaMemory, DmaRange};
pub use error::Error;
pub use foreign::{CopyOut, GrantedMemory, PeerMemory, Target};
pub use grant::{CopyStatus, Dest, GrantCopy, GrantMap, MapStatus, MappedGrants, Source};
pub use guest::Guest;
pub use guest_copy::{CopyForm, GuestCopies, GuestCopyCounts};
pub use hypervisor::EventChannel;
pub use hypervisor::Hypervisor;
pub use id::{DomId, EvtchnPort, FrameNumber, GrantRef};
pub use meter::{Counted, Meter};
pub use metered::Metered;
pub use pages::{Granted, MappedAt, MappedPages, PAGE_SIZE};
pub use references::{LockedReferences, PageOwner, PageReferences, PageUser};
