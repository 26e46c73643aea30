//! A mirror, for whoever owns the ports.

use std::io;
use std::sync::Arc;

use port::Queue;

use crate::buffer::{Buffer, MirrorCounts};
use crate::queue::{MirrorIngress, Nothing};

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

    /// The queue of the port that sends the copies. There must be one of it. It takes no frames.
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
