//! Machines that have booted, in files: a second recording of the same machine does not boot again.
//!
//! ```text
//!  boot ── the plugin holds the machine before its first mark ── stop, save ──► Snapshot ──► load ──► first mark, recording
//!                                                                     Store ◄──────┘ known by what boots
//! ```
//!
//! The plugin waits when QEMU translates the first mark, which is before the machine executes it. So the machine can be stopped
//! there without any help of the guest, and a loaded one reaches the mark as one that has booted does. What was saved is loaded
//! at once, so that the first recording is the same as the next one.

mod identity;
mod list;
mod start;
mod store;

pub use identity::Identity;
pub use list::{SnapshotsArgs, SnapshotsData, run};
pub use start::{Running, STEPS, SnapshotArgs, StartableMachine};
pub use store::Snapshot;
