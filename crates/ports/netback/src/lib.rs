//! The backend of a Xen virtual interface (`public/io/netif.h`).
//!
//! A [`Vif`] is the interface in the store: it offers features, waits for the frontend and
//! connects its queues. A [`Queue`] is a ring each way. [`TxQueue`] takes packets off the TX
//! ring, checks them and makes frames of them, whose bodies stay in the guest's memory;
//! [`RxQueue`] copies frames from wherever they lie into the buffers the guest posted, or hands
//! them over in pages that become the guest's. A [`ControlRing`] beside them serves a frontend
//! that wants pages to stay mapped between packets: [`PersistentGrants`].
//!
//! A backend that is killed and started again goes on with the interfaces that it finds: the rings
//! are live, and what was being answered lies in [`Ledgers`].
//!
//! The frontend is hostile until shown otherwise. What it can break is a [`Fault`]: the owner
//! of the queue drops it and says why; no other interface notices.

#![forbid(unsafe_code)]

mod channel;
mod connect;
mod control;
mod headers;
mod ledger;
mod offered;
mod persistent;
mod remap;
mod request;
mod rx;
mod tx;
mod vif;

pub use channel::{RxChannel, TxChannel};
pub use connect::{ConnectError, Connection, Queue};
pub use control::ControlRing;
pub use ledger::{Anonymous, Files, Ledgers, RingKind};
pub use offered::Offered;
pub use persistent::PersistentGrants;
pub use request::Fault;
pub use rx::RxQueue;
pub use tx::TxQueue;
pub use vif::{Change, Vif, VifError};
