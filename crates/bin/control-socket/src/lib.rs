//! The control socket of the daemon: one line with a [`Request`], one answer. It is JSON,
//! except for the frames of a capture.
//!
//! ```text
//! client                                   daemon
//!   status ──────────────────────────────►
//!          ◄────────────────────────────── Status, then the end of the stream
//!   balloon GUEST MIB ───────────────────►
//!          ◄────────────────────────────── nothing, or a Refusal
//!   revoke CARD GUEST ───────────────────►
//!          ◄────────────────────────────── nothing, or a Refusal
//!   change {"change":{"reload":{}}} ─────►
//!          ◄────────────────────────────── a ChangeReport, or a Refusal
//!   meter ───────────────────────────────►
//!          ◄────────────────────────────── METERED; the meter is on until the client closes
//!   capture {"port":"red"} ──────────────►
//!          ◄────────────────────────────── a Refusal, or a pcapng stream
//!   the end of the client's side ────────►
//!          ◄────────────────────────────── the stream's last packets and statistics
//! ```
//!
//! Anti-goals: it serves no sockets, and makes no text for people except by `Display`.

#![forbid(unsafe_code)]

mod batches;
mod change;
mod client;
mod counts;
mod guest;
mod memory;
mod nic;
mod port;
mod protocol;
mod status;
mod toolstack;
mod worker;

pub use batches::{BatchStatus, Histogram};
pub use capture::RecordingStatus;
pub use change::{Change, ChangeAction, ChangeReport, ChangeRequest, ChangeStep, TableKind};
pub use client::{
    DIRECTORY, capture, change, command, control_socket, join_socket, meter, nic_socket, status,
    worker,
};
pub use counts::{Counts, Drops, Key, Operations};
pub use gro::GroStatus;
pub use guard::GuardStatus;
pub use guest::{GuestReport, InterfaceReport, QueueReport};
pub use limit::{LimitStatus, LimitedPackets, Rates};
pub use memory::{KeptPages, MappedMemory, MemoryStatus, PersistentStatus, View};
pub use nic::{ContextState, ContextStatus, FaultStatus, NicStatus};
pub use port::{
    DeviceDrops, GuestCopyStatus, GuestQueueStatus, LastDisabled, Learning, LockWaits, PortKind,
    PortState, PortStatus, Reason, Traffic, VlanStatus, XdpQueueStatus,
};
pub use protocol::{CHANGE_TIMEOUT, METERED, REQUEST_MAX, Refusal, Request, TIMEOUT};
pub use status::{
    Address, CpuStatus, LogEvent, MeterStatus, MirrorStatus, MulticastStatus, OwnPagesStatus,
    Status,
};
pub use toolstack::{IgnoredKey, ToolstackStatus};
pub use worker::{
    MoveReason, MoveReport, MoveStatus, QueueKind, QueueStatus, WorkerRequest, WorkerShares,
    WorkerStatus,
};
