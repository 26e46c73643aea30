//! Copies the frames of some ports to another port.
//!
//! ```text
//!   port A ──► finish ──► Mirrored ─┐
//!                                   ├─► Mirror: a buffer ─► MirrorIngress ─► datapath ─► target
//!   port A ◄── deliver ◄─ Mirrored ─┘    bounded, lossy      the mirror's port
//! ```
//!
//! # What is copied
//! - **Ingress**, from the port into the switch: each frame once, when its outcome is final and its memory could be read; also frames that a
//!   guard or a limit has dropped.
//! - **Egress**, from the switch out of the port: each frame that the port has taken.
//!
//! A copy keeps the offload metadata of its frame, so a target that takes unsegmented frames gets it unsegmented. A copy that was cut has none.
//!
//! # What it costs
//! Copying takes the time of the mirrored port's worker, for [`COPY_BYTES`] at a time. A buffer of [`COPIES_MAX`] frames lies between it and the
//! target; what does not fit is counted as lost, and no original waits. A port that is not mirrored has no wrapper.

#![forbid(unsafe_code)]

mod buffer;
mod queue;
mod wrapper;

use std::io;
use std::sync::Arc;

use buffer::Buffer;
use port::Queue;
use queue::{MirrorIngress, Nothing};

pub use buffer::{COPIES_MAX, COPY_BYTES, MirrorCounts};
pub use wrapper::MirrorLayer;

/// The copies on their way from some ports to one.
#[derive(Clone, Debug)]
pub struct Mirror(pub(crate) Arc<Buffer>);

impl Mirror {
    /// A mirror that copies at most `snaplen` bytes of a frame; 0 for all.
    ///
    /// # Errors
    /// The system gives no memory or no descriptor.
    pub fn new(snaplen: u32) -> io::Result<Self> {
        Buffer::new(snaplen).map(|buffer| Self(Arc::new(buffer)))
    }

    /// The queue of the port that sends the copies. There must be only one. It takes no frames.
    #[must_use]
    pub fn queue(&self) -> Queue {
        let ingress = Box::new(MirrorIngress::new(Arc::clone(&self.0)));
        Queue { ingress, egress: Box::new(Nothing) }
    }

    /// What became of the frames.
    #[must_use]
    pub fn counts(&self) -> MirrorCounts {
        self.0.counts()
    }
}

impl PartialEq for Mirror {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Mirror {}
