//! The backend of a virtual machine's network device, over vhost-user.
//!
//! ```text
//!  QEMU, or another front-end ── messages ──► Session ──► ready: Queue { GuestTx, GuestRx } for each pair of rings
//!    │ memory (descriptors of files)             │        stopped: the port goes, and the rings' positions stay
//!    ▼                                            ▼
//!  GuestMemory ◄── virtqueue::Queue ──► GuestTx: Ingress, frames that the guest sends
//!                                   └─► GuestRx: Egress, frames for the guest
//! ```
//!
//! A [`Session`] serves one connection of a front-end. It maps the guest's memory, follows the state of each ring, and
//! tells its [`Device`] when the rings can be served and when they must not be touched any more. Frames never pass a
//! session: workers own the queues while they are served.
//!
//! The guest writes rings and frames at any time, see crate `virtqueue`. The front-end is another process: what it sends
//! is checked here, and a message that cannot be ends its session and nothing else.
//!
//! [`shared`] is what both sides of vhost-user need; the other one is crate `virtio-user`.

#![forbid(unsafe_code)]

mod budget;
mod channel;
mod config_space;
mod connection;
mod doorbells;
mod extension;
mod features;
mod guest_rx;
mod guest_tx;
mod handler;
mod header;
mod inflight;
mod listener;
mod memory;
mod paces;
mod processes;
mod requests;
mod session;
mod singles;
mod vring;
mod watchdog;
mod writer;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use budget::{LOGS, MAPPINGS_MAX, MemoryBudget, OverBudget, ProcessBudget};
pub use config_space::Link;
pub use connection::Ended;
pub use doorbells::{Call, DoorbellError, Kick};
pub use features::{DeviceOptions, Negotiated};
pub use guest_rx::GuestRx;
pub use guest_tx::GuestTx;
pub use listener::{Mode, Socket};
pub use memory::{MapError, MemoryFiles};
pub use paces::{Paces, session_pace};
pub use processes::{Alarm, Processes, REFUSED_MAX};
pub use session::renewal::Renewal;
pub use session::watch::Condition;
pub use session::{Device, Session};
pub use vring::Position;

/// What the back-end's and the front-end's side of vhost-user share.
pub mod shared {
    pub use crate::channel::{Channel, ChannelError, Message};
    pub use crate::features::bit;
    pub use crate::header::{FrameHeader, accept, describe};
    pub use crate::processes::Alarm;
    pub use crate::singles::write;
    pub use crate::watchdog::watch;
}

/// Locks it, also after a panic of whoever had it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
