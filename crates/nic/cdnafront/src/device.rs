//! A context as a guest's stack uses it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use cdna::{Enable, Mailbox, Status};
use netdev::{Buffer, Burst, Device, Gone, Metadata, Refused};
use offload::Features;
use port::Event;
use shm::Iovec;
use wire::ethernet::MacAddr;

use crate::Fault;
use crate::pages::{Memory, Pages, Wake};
use crate::rx::{ReceivedFrame, RxRing};
use crate::tx::TxRing;

/// How long the card may take to be quiet when an interface is dropped and not closed.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// Gives a context back, and returns when the card is quiet or this time is over.
pub type Release = Box<dyn FnOnce(Duration) + Send>;

/// The interface of a context.
pub struct Interface {
    pub(crate) mac: MacAddr,
    pub(crate) features: Features,
    pub(crate) pages: Arc<Pages>,
    pub(crate) changed: Arc<dyn Event>,
    /// None once it was given back.
    pub(crate) release: Option<Release>,
    /// The buffers, which are not used for anything else before the card is quiet.
    pub(crate) _memory: [Memory; 2],
}

impl Interface {
    /// The context's state; none if the card wrote something else.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.pages.status()
    }

    /// Gives the context back, unless that was done.
    fn give_back(&mut self, timeout: Duration) {
        if let Some(release) = self.release.take() {
            self.pages.post([(Mailbox::Enable, Enable::default().0)], Wake::IfAsleep);
            release(timeout);
        }
    }
}

/// An interface that was not closed gives its context back too: its buffers are free afterwards, and the card must not write to them.
impl Drop for Interface {
    fn drop(&mut self) {
        self.give_back(DROP_TIMEOUT);
    }
}

impl Device for Interface {
    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn features(&self) -> Features {
        self.features
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    fn take_changes(&self) {
        self.changed.take();
    }

    fn is_open(&self) -> bool {
        self.status() == Some(Status::Up)
    }

    fn close(mut self: Box<Self>, timeout: Duration) {
        self.give_back(timeout);
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mac, features, .. } = self;
        let mut debug = f.debug_struct("Interface");
        debug.field("mac", mac).field("features", features).finish_non_exhaustive()
    }
}

/// A context's rings, as one thread of a guest drives them.
pub struct CardQueue {
    pub(crate) tx: TxRing,
    pub(crate) rx: RxRing,
    pub(crate) interrupt: Arc<dyn Event>,
}

impl netdev::Queue for CardQueue {
    type Frame = ReceivedFrame;
    type Fault = Fault;

    fn burst(&self) -> Burst {
        self.tx.burst()
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.tx.has_room()
    }

    #[inline]
    fn buffers(&self) -> impl Iterator<Item = Buffer<'_>> {
        self.tx.buffers()
    }

    #[inline]
    fn submit(&mut self, frame: Metadata) -> Result<(), Refused> {
        self.tx.submit(frame)
    }

    #[inline]
    fn kick(&mut self) {
        self.tx.announce();
    }

    #[inline]
    fn reclaim(&mut self) -> Result<(), Fault> {
        self.tx.reclaim()
    }

    #[inline]
    fn receive(&mut self, frame: &mut ReceivedFrame) -> Result<Option<Metadata>, Fault> {
        if !self.rx.take(frame)? {
            return Ok(None);
        }
        // The pages are not posted again before `give_back`.
        self.rx.release(frame.parts().iter().map(|part| part.page));
        Ok(Some(frame.metadata()))
    }

    #[inline]
    fn fragments<'a>(&'a self, frame: &'a ReceivedFrame) -> impl Iterator<Item = Iovec<'a>> {
        self.rx.fragments(frame)
    }

    #[inline]
    fn give_back(&mut self) {
        self.rx.refill();
    }

    fn arm(&mut self, for_room: bool) -> Result<bool, Fault> {
        Ok(self.rx.arm() || (for_room && self.tx.arm(self.tx.enough())))
    }

    fn events(&self) -> [BorrowedFd<'_>; 2] {
        [self.interrupt.as_fd(), self.interrupt.as_fd()]
    }

    fn clear(&self, rung: [bool; 2]) -> Result<(), Gone> {
        if rung.contains(&true) {
            self.interrupt.take();
        }
        Ok(())
    }
}

impl fmt::Debug for CardQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CardQueue").finish_non_exhaustive()
    }
}
