//! A network device of a guest, as the guest's own TCP/IP stack uses it.
//!
//! ```text
//!            readv                  submit, kick
//!   stack ─▶ tap ─▶ buffers()   ─▶ ┌──────────────┐
//!                                  │ Queue        │ ─▶ rings
//!   stack ◀─ tap ◀─ fragments() ◀─ └──────────────┘
//!            writev                 receive, give_back
//! ```
//!
//! A [`Device`] is an interface. Its [`Queue`]s come with it when it is opened; one thread drives each.
//! A batch is: [`receive`](Queue::receive) until there is no frame, [`give_back`](Queue::give_back),
//! [`reclaim`](Queue::reclaim), [`submit`](Queue::submit) while the stack has frames,
//! [`kick`](Queue::kick). Before the thread sleeps, it [arms](Queue::arm) the queue.
//!
//! The other end is not trusted: an implementation checks what it says, and returns an error instead of
//! panicking.

#![forbid(unsafe_code)]

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use offload::{Checksum, Features, Gso};
use shm::{Iovec, Region};
use wire::ethernet::MacAddr;

/// Bytes that the first of a frame's [buffers](Queue::buffers) has at least, so that all headers that
/// the pump parses are in it.
pub const HEADER_MAX: usize = 128;

/// An interface. Nothing here is called per frame or per batch.
pub trait Device {
    /// Its MAC address.
    fn mac(&self) -> MacAddr;

    /// The offloads that it does on transmit.
    fn features(&self) -> Features;

    /// Becomes readable when [`is_open`](Self::is_open) may have changed. Several devices may share it.
    fn changes(&self) -> BorrowedFd<'_>;

    /// Makes [`changes`](Self::changes) unreadable until the next change. Call it for all devices before
    /// asking the first whether it is open: a change in between would be lost.
    fn take_changes(&self);

    /// Whether it carries frames.
    fn is_open(&self) -> bool;

    /// Asks the other end to keep pages mapped, if that is agreed. It may take a while; frames can be on their way meanwhile.
    fn keep_mapped(&mut self) {}

    /// Frees pages that its queue number `queue` has [set aside](Queue::set_aside), once the other end
    /// has confirmed that it does not use them any more. It may take `timeout` for that.
    ///
    /// # Errors
    /// Some pages are not free: the queue must have them again.
    fn free_pages(
        &mut self,
        queue: usize,
        pages: &[u16],
        timeout: Duration,
    ) -> Result<(), NotFreed> {
        let _ = (queue, timeout);
        Err(NotFreed { pages: pages.to_vec(), reason: "the device cannot free pages".to_owned() })
    }

    /// Closes it in an orderly way. The other end may take `timeout` for that; one that has gone does
    /// not answer.
    fn close(self: Box<Self>, timeout: Duration);
}

/// Pages that a device could not free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} pages of the interface are not free: {reason}", pages.len())]
pub struct NotFreed {
    /// Their numbers.
    pub pages: Vec<u16>,
    /// Why not.
    pub reason: String,
}

/// What is known of a frame besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes of the whole frame.
    pub len: usize,
    /// The state of the transport checksum.
    pub checksum: Checksum,
    /// Set for an unsegmented frame.
    pub gso: Option<Gso>,
}

/// A frame that was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// What is known of it besides its bytes.
    pub metadata: Metadata,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Free memory of the guest, for a part of the next frame.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// The memory.
    pub region: &'a Region,
    /// The first byte's offset.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// How much is submitted before a [kick](Queue::kick) although the stack has more. When the stack has no more, what was
/// submitted is handed over in any case, so a lone frame never waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Frames, after which the other direction has its turn.
    pub frames: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Burst {
    /// For a device whose kick costs little: the other end processes some frames while the next are read.
    pub const SHORT: Self = Self { frames: 32, bytes: 16 * 1024 };
}

/// Copies that a guest had its hypervisor do, of frames that it received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Copies.
    pub copies: u64,
    /// Hypercalls for them.
    pub hypercalls: u64,
}

/// The frame does not fit: it is too long for the device, or there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame does not fit")]
pub struct Refused;

/// The other end is gone, as the device itself will report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end is gone")]
pub struct Gone;

/// A queue of a device: one ring in each direction.
pub trait Queue: Send + 'static {
    /// Where the bytes of a received frame are. One value is used for all frames.
    type Frame: Default + Send;
    /// How the other end broke the protocol. The queue must not be used after it.
    type Fault: Error + Send + Sync + 'static;

    /// How much it wants per kick. It stays the same.
    fn burst(&self) -> Burst {
        Burst::SHORT
    }

    /// Whether the longest frame fits on the transmit ring.
    fn has_room(&self) -> bool;

    /// The memory for the next frame's bytes, in order. The first buffer has [`HEADER_MAX`] bytes or
    /// more. Empty if the ring is full.
    fn buffers(&self) -> impl Iterator<Item = Buffer<'_>>;

    /// Sends the frame that the caller has put into [`buffers`](Self::buffers), each full except the
    /// last. The next [`kick`](Self::kick) hands it over.
    ///
    /// # Errors
    /// The device cannot carry the frame. Nothing was sent.
    fn submit(&mut self, frame: Metadata) -> Result<(), Refused>;

    /// Hands all submitted frames over, and notifies the other end if it waits.
    fn kick(&mut self);

    /// Frees the memory of the frames that were sent.
    ///
    /// # Errors
    /// The other end broke the protocol.
    fn reclaim(&mut self) -> Result<(), Self::Fault>;

    /// Takes the next received frame, if there is one. Its bytes stay where they are until
    /// [`give_back`](Self::give_back).
    ///
    /// # Errors
    /// The other end broke the protocol.
    fn receive(&mut self, frame: &mut Self::Frame) -> Result<Option<Metadata>, Self::Fault>;

    /// Whether frames that came with an error, which [`receive`](Self::receive) skips, have used memory since it
    /// was last given back.
    fn has_failed_frames(&self) -> bool {
        false
    }

    /// The bytes of a received frame, in order.
    fn fragments<'a>(&'a self, frame: &'a Self::Frame) -> impl Iterator<Item = Iovec<'a>>;

    /// Gives back the memory of all frames received so far, and of those that failed.
    fn give_back(&mut self);

    /// Asks for an event at the next received frame and, if `for_room`, when there is room again.
    /// Returns whether there is work already.
    ///
    /// # Errors
    /// The other end broke the protocol.
    fn arm(&mut self, for_room: bool) -> Result<bool, Self::Fault>;

    /// Descriptors that become readable with an event: for received frames, and for room. They may be
    /// the same.
    fn events(&self) -> [BorrowedFd<'_>; 2];

    /// Takes at most `count` pages out of use that no frame is in, and returns their numbers. The queue
    /// keeps what it needs. For [`Device::free_pages`].
    fn set_aside(&mut self, count: usize) -> Vec<u16> {
        let _ = count;
        Vec::new()
    }

    /// Uses pages again that were set aside and not freed.
    fn put_back(&mut self, pages: &[u16]) {
        let _ = pages;
    }

    /// What this guest has copied itself so far, out of the other end's memory.
    fn copied(&self) -> Copied {
        Copied::default()
    }

    /// The frames that were submitted and that the other end has not confirmed, in order. If it has gone, nobody carries
    /// them any more; some it may have carried.
    fn unconfirmed(&mut self) -> Vec<SentFrame> {
        Vec::new()
    }

    /// Clears those events that are `rung`. Call it before checking the rings, never after: an
    /// event in between would be lost.
    ///
    /// # Errors
    /// The other end is gone.
    fn clear(&self, rung: [bool; 2]) -> Result<(), Gone>;
}
