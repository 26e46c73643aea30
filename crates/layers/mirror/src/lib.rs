//! Copies the frames of some ports to another port.
//!
//! ```text
//!   port A ──► finish ──► Mirrored ─┐
//!                                   ├─► Mirror: a buffer ─► MirrorIngress ─► datapath ─► target
//!   port A ◄── deliver ◄─ Mirrored ─┘    bounded, lossy      the mirror's port
//! ```
//!
//! # What is copied
//! - **Ingress**, from the port into the switch: each frame once, when its outcome is final and its memory could be read; also what a guard or a limit
//!   has dropped.
//! - **Egress**, from the switch out of the port: each frame that the port has taken.
//!
//! A copy keeps the offload metadata of its frame, so the target gets it unsegmented if it can take it so. A copy that is cut to a length has none.
//!
//! # What it costs
//! Copying takes the time of the mirrored port's worker, for [`COPY_BYTES`] at a time. A buffer of [`COPIES_MAX`] frames lies between it and the target; what does not fit is counted as
//! lost, and no original waits. A port that is not mirrored has no wrapper.

#![forbid(unsafe_code)]

mod buffer;
mod mirror;
mod queue;
mod wrapper;

pub use buffer::{COPIES_MAX, COPY_BYTES, MirrorCounts};
pub use mirror::Mirror;
pub use wrapper::MirrorLayer;
