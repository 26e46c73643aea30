//! The ingress side of one queue of a port.

use std::os::fd::{AsFd, BorrowedFd};

use frame::{Body, Outcome, WINDOW, Window};
use hypervisor::{EventChannel, Hypervisor};

/// The ingress side of one queue of a port.
#[expect(clippy::large_enum_variant, reason = "one a queue, and never moved once it is owned")]
pub enum Ingress<H: Hypervisor> {
    /// From a guest.
    Netback(netback::TxQueue<H>),
    /// From the world outside.
    Uplink(uplink::Ingress<H>),
}

impl<H: Hypervisor> Ingress<H> {
    #[inline]
    pub(crate) fn window(&self) -> &Window {
        match self {
            Self::Netback(queue) => queue.window(),
            Self::Uplink(queue) => queue.window(),
        }
    }

    /// Does `work`, the delivery of a batch, with the memory that the frames lie in.
    #[inline]
    pub(crate) fn with_body<R>(&self, work: impl FnOnce(Body<'_, H::Peer>) -> R) -> R {
        match self {
            Self::Netback(queue) => queue.with_body(work),
            Self::Uplink(queue) => work(queue.body()),
        }
    }

    /// Takes new frames; the text is the reason the queue is of no use any more.
    #[inline]
    pub(crate) fn receive(&mut self) -> Result<usize, String> {
        match self {
            Self::Netback(queue) => queue.receive().map_err(|fault| fault.to_string()),
            Self::Uplink(queue) => queue.receive().map_err(|error| error.to_string()),
        }
    }

    #[inline]
    pub(crate) fn finish(&mut self, outcomes: &[Outcome; WINDOW]) {
        match self {
            Self::Netback(queue) => queue.finish(outcomes),
            Self::Uplink(queue) => queue.finish(outcomes),
        }
    }

    /// Publishes answers that no frame's end publishes: to packets refused on receipt.
    pub(crate) fn publish(&mut self) {
        match self {
            Self::Netback(queue) => queue.publish(),
            Self::Uplink(_) => {}
        }
    }

    /// Frames refused on receipt since the last call.
    #[inline]
    pub(crate) fn take_refused(&mut self) -> u64 {
        match self {
            Self::Netback(queue) => queue.take_refused(),
            Self::Uplink(queue) => queue.take_malformed(),
        }
    }

    /// Asks for an event at the next frame; answers whether there is one already.
    pub(crate) fn arm(&mut self) -> Result<bool, String> {
        match self {
            Self::Netback(queue) => queue.arm().map_err(|fault| fault.to_string()),
            // A tap is waited for edge-triggered and was read until it had nothing.
            Self::Uplink(_) => Ok(false),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Netback(queue) => queue.event().as_fd(),
            Self::Uplink(queue) => queue.tap().as_fd(),
        }
    }

    pub(crate) fn take_event(&self) {
        if let Self::Netback(queue) = self {
            // A guest that is gone sends nothing more; its end is learnt of elsewhere.
            let _ = queue.event().take();
        }
    }
}
