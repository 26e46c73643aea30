//! A queue as a guest's stack uses it, and its pages.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hypervisor::guest_copy::CopierCounts;
use hypervisor::{EventChannel, GrantRef, Guest};
use netdev::{Buffer, Copied, Gone, HEADER_MAX, Metadata, Queue, Refused, SentFrame};
use shm::Iovec;
use wire::netif::GrefMapping;
use wire::netif::header_channel::HEADER_LEN;

use crate::{Fault, Received, RxQueue, TxBuffer, TxQueue};

// The first buffer of a frame is a place of the header channel, or a page.
const _: () = assert!(HEADER_LEN as usize >= HEADER_MAX);

/// One queue: a ring for each direction.
pub struct FrontendQueue<G: Guest> {
    /// To the backend.
    pub tx: TxQueue<G>,
    /// From the backend.
    pub rx: RxQueue<G>,
}

impl<G: Guest> Queue for FrontendQueue<G> {
    type Frame = Received;
    type Fault = Fault;

    #[inline]
    fn has_room(&self) -> bool {
        self.tx.has_room()
    }

    #[inline]
    fn buffers(&self) -> impl Iterator<Item = Buffer<'_>> {
        let buffers = self.tx.buffers();
        buffers.map(|TxBuffer { region, offset, len }| Buffer { region, offset, len })
    }

    #[inline]
    fn submit(&mut self, frame: Metadata) -> Result<(), Refused> {
        // The longest packet of netif is one of u16::MAX bytes.
        let len = u16::try_from(frame.len).map_err(|_| Refused)?;
        self.tx.send(len, frame.checksum, frame.gso).map_err(|_| Refused)
    }

    #[inline]
    fn kick(&mut self) {
        self.tx.publish();
    }

    #[inline]
    fn reclaim(&mut self) -> Result<(), Fault> {
        self.tx.reclaim().map(drop)
    }

    #[inline]
    fn receive(&mut self, frame: &mut Received) -> Result<Option<Metadata>, Fault> {
        let received = self.rx.receive(frame)?;
        let Received { len, checksum, gso, .. } = *frame;
        Ok(received.then_some(Metadata { len, checksum, gso }))
    }

    #[inline]
    fn has_failed_frames(&self) -> bool {
        self.rx.has_failed_frames()
    }

    #[inline]
    fn fragments<'a>(&'a self, frame: &'a Received) -> impl Iterator<Item = Iovec<'a>> {
        self.rx.fragments(frame)
    }

    #[inline]
    fn give_back(&mut self) {
        self.rx.publish();
    }

    fn arm(&mut self, for_room: bool) -> Result<bool, Fault> {
        Ok(self.rx.arm()? || (for_room && self.tx.arm()?))
    }

    fn events(&self) -> [BorrowedFd<'_>; 2] {
        [self.rx.event().as_fd(), self.tx.event().as_fd()]
    }

    fn set_aside(&mut self, count: usize) -> Vec<u16> {
        self.tx.set_aside(count)
    }

    fn put_back(&mut self, pages: &[u16]) {
        self.tx.put_back(pages);
    }

    fn copied(&self) -> Copied {
        let CopierCounts { copies, hypercalls } = self.rx.copied();
        Copied { copies, hypercalls }
    }

    fn unconfirmed(&mut self) -> Vec<SentFrame> {
        // A backend that broke the protocol has confirmed nothing more.
        let _ = self.tx.reclaim();
        self.tx.unanswered()
    }

    fn clear(&self, [rx, tx]: [bool; 2]) -> Result<(), Gone> {
        if rx {
            self.rx.event().take().map_err(|_| Gone)?;
        }
        if tx {
            self.tx.event().take().map_err(|_| Gone)?;
        }
        Ok(())
    }
}

/// The pages that a queue sends from.
pub(crate) struct TxPages<G: Guest> {
    pub(crate) pages: Arc<G::Pages>,
    pub(crate) grefs: Arc<[GrantRef]>,
}

impl<G: Guest> TxPages<G> {
    pub(crate) fn of(queue: &FrontendQueue<G>) -> Self {
        let (pages, grefs) = queue.tx.pages();
        Self { pages: pages.clone(), grefs: grefs.clone() }
    }
}

/// The pages of a queue that the backend may keep mapped, the most important first.
pub(crate) fn wanted<G: Guest>(queue: &FrontendQueue<G>) -> Vec<GrefMapping> {
    // A backend that maps each packet anew has places for buffers only. It only reads TX pages.
    let sent = queue.tx.grefs().iter().map(|gref| (gref, GrefMapping::READ_ONLY));
    let received = queue.rx.grefs().iter().map(|gref| (gref, 0));
    let entry = |(gref, flags): (&GrantRef, _)| GrefMapping { gref: gref.0, flags, status: 0 };
    received.chain(sent).map(entry).collect()
}
