//! What an RX queue does with frames.

use std::sync::Arc;

use hypervisor::flip::PageTransfer;
use hypervisor::{GuestCopies, Hypervisor};

/// How frames get into the guest's memory.
pub(crate) enum RxMode<H: Hypervisor> {
    /// They are copied.
    Copy,
    /// They are copied: the guest would copy, but there is too little of this.
    OutOf(&'static str),
    /// In pages that these transfer.
    Flip(Arc<dyn PageTransfer<H::Peer>>),
    /// The guest copies an uplink's frames from these. Others are copied.
    GuestCopy(Arc<dyn GuestCopies>),
    /// The guest copies frames that lie in pages of this pool, which were lent. Others are copied. `resumes`: an
    /// earlier backend left the ring.
    Pool { copies: Arc<dyn GuestCopies>, resumes: bool },
    /// They are copied, unless they lie in buffers that were lent. The frontend takes responses in any order.
    Lend,
}

impl<H: Hypervisor> RxMode<H> {
    /// Where the pages come from, if frames are delivered in pages that change hands.
    #[inline]
    pub(super) fn flips(&self) -> Option<&Arc<dyn PageTransfer<H::Peer>>> {
        match self {
            Self::Flip(flips) => Some(flips),
            _ => None,
        }
    }

    /// Whether merged frames are delivered as others are: copied. Other modes rely on the buffer in which a frame came.
    pub(super) fn copies_merged(&self) -> bool {
        matches!(self, Self::Copy | Self::OutOf(_) | Self::Lend)
    }

    /// Whether each frame is copied to the guest's buffers.
    pub(super) fn copies_all(&self) -> bool {
        matches!(self, Self::Copy | Self::OutOf(_))
    }

    /// The pool that is lent, if there is one.
    pub(super) fn lent_pool(&self) -> Option<&Arc<dyn GuestCopies>> {
        match self {
            Self::Pool { copies, .. } => Some(copies),
            _ => None,
        }
    }

    /// What the guest copies from, if it copies frames that lie in an uplink's own buffers.
    #[inline]
    pub(super) fn guest_copies(&self) -> Option<&Arc<dyn GuestCopies>> {
        match self {
            Self::GuestCopy(copies) => Some(copies),
            _ => None,
        }
    }
}
