//! The backend of a Xen virtual interface (`public/io/netif.h`).
//!
//! A [`Vif`] is the interface in the store: it offers features, waits for the frontend and
//! connects its queues. A [`VifQueue`] is a ring each way. [`TxQueue`] takes packets off the TX
//! ring, checks them and makes frames of them, whose bodies stay in the guest's memory;
//! [`RxQueue`] copies frames into the buffers that the guest posted, transfers pages with the
//! frames to the guest, grants an uplink's frames to the guest, which copies them, or lends the buffers to the device. A
//! [`ControlRing`] serves requests of the frontend to keep pages mapped between packets, [`PersistentGrants`], and to
//! spread its flows over its queues by a hash of its choice.
//! With [`GrantReuse::OnDemand`] the backend keeps them mapped without asking, in a cache that is checked at each use.
//!
//! A backend that is killed and started again continues the connected interfaces: the rings are
//! live, and [`Ledgers`] hold the responses that were being published.
//!
//! The frontend is not trusted. A violation of the protocol is a [`Fault`]: the owner of the queue
//! drops it and reports why, and no other interface is affected.

#![forbid(unsafe_code)]

mod buffers;
mod channel;
mod completions;
mod connect;
mod control;
mod grant_cache;
mod grant_use;
mod hash;
mod headers;
mod index;
mod ledger;
mod multicast;
mod offered;
mod persistent;
mod remap;
mod request;
mod rx;
mod tx;
mod vif;

use std::sync::Arc;

use hypervisor::Hypervisor;
use ring::{BackRing, RegionPage, Slots};

pub use channel::{GrantReuse, RxChannel, TxChannel};
pub use connect::{COPY_LIMIT, ConnectError, Connection, VifQueue};
pub use control::ControlRing;
pub use grant_use::{DirectionUsage, GrantUsage, GrantUse};
pub use ledger::{Anonymous, Files, Ledgers, RingKind};
pub use offered::Offered;
pub use persistent::PersistentGrants;
pub use request::Fault;
pub use rx::RxQueue;
pub use tx::TxQueue;
pub use vif::{CLOSED_FOR, Vif, VifChange, VifError, remove_closed};

/// A ring, and the event channel beside it.
pub(crate) struct EventRing<S: Slots, H: Hypervisor> {
    pub(crate) ring: BackRing<S, RegionPage<H::Mapping>>,
    pub(crate) event: Arc<H::Event>,
}
