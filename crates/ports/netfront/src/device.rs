//! The interface and its queues as a guest's stack uses them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use hypervisor::guest_copy::CopierCounts;
use hypervisor::{EventChannel, Guest};
use netdev::{Buffer, Copied, Device, Gone, HEADER_MAX, Metadata, NotFreed, Refused, SentFrame};
use offload::Features;
use shm::Piece;
use wire::ethernet::MacAddr;
use wire::netif::header_channel::HEADER_LEN;
use xenstore::XenbusState;

use crate::{Fault, Frontend, Received, RxQueue, TxBuffer, TxQueue};

// The first buffer of a frame is a place of the header channel, or a page.
const _: () = assert!(HEADER_LEN as usize >= HEADER_MAX);

impl<G: Guest> Device for Frontend<G> {
    fn mac(&self) -> MacAddr {
        self.mac()
    }

    fn features(&self) -> Features {
        self.features()
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.store().event_fd()
    }

    fn take_changes(&self) {
        // If the store is gone, the device is not open.
        while let Ok(Some(_)) = self.store().event() {}
    }

    fn is_open(&self) -> bool {
        self.backend_state().is_ok_and(|state| state == Some(XenbusState::Connected))
    }

    fn keep_mapped(&mut self) {
        // Without it frames cost more.
        let _ = Frontend::keep_mapped(self);
    }

    fn free_pages(
        &mut self,
        queue: usize,
        pages: &[u16],
        timeout: Duration,
    ) -> Result<(), NotFreed> {
        Frontend::free_pages(self, queue, pages, timeout)
    }

    fn close(mut self: Box<Self>, timeout: Duration) {
        // This times out if the backend has gone first.
        let _ = Frontend::close(&mut self, timeout);
    }
}

impl<G: Guest> netdev::Queue for FrontendQueue<G> {
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
    fn pieces<'a>(&'a self, frame: &'a Received) -> impl Iterator<Item = Piece<'a>> {
        self.rx.pieces(frame)
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

/// One queue: a ring for each direction.
pub struct FrontendQueue<G: Guest> {
    /// To the backend.
    pub tx: TxQueue<G>,
    /// From the backend.
    pub rx: RxQueue<G>,
}
