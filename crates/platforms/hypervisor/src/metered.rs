//! The hypervisor's services with a meter, which measures the "hypervisor" column of Xenoprof.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::copies::{Copies as _, Tally};
use crate::dma::{DmaHold, DmaRange};
use crate::error::Error;
use crate::flip::{FlipPage, GrantTransfer, PageTransfer, TransferStatus};
use crate::grant::{GrantMap, MapStatus};
use crate::guest_copy::{CopyForm, GuestCopies};
use crate::hypervisor::{EventChannel, Hypervisor};
use crate::id::{DomId, EvtchnPort, FrameNumber, GrantRef};
use crate::meter::{Counted, Meter};
use crate::pages::MappedPages;

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A hypervisor with a meter.
#[derive(Clone, Debug)]
pub struct Metered<H> {
    inner: H,
    meter: Arc<Meter>,
}

impl<H> Metered<H> {
    /// Adds a meter to `inner`.
    pub fn new(inner: H) -> Self {
        Self { inner, meter: Arc::default() }
    }

    /// The meter.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }
}

impl<H> Deref for Metered<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.inner
    }
}

/// An event channel with a meter.
#[derive(Debug)]
pub struct MeteredEvent<E> {
    inner: E,
    meter: Arc<Meter>,
}

impl<E: EventChannel> AsFd for MeteredEvent<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<E: EventChannel> EventChannel for MeteredEvent<E> {
    fn notify(&self) -> Result<(), Error> {
        if !self.meter.is_on() {
            return self.inner.notify();
        }
        // The event wakes its receiver, which may preempt this thread. The receiver's time is not
        // the hypervisor's, so this measures the thread's processor time. That clock costs a system
        // call, but not per packet.
        let began = thread_time();
        let result = self.inner.notify();
        let counts = [(Counted::Hypercalls, 1), (Counted::Notifications, 1)];
        self.meter.book(thread_time().saturating_sub(began), &counts);
        result
    }

    fn take(&self) -> Result<(), Error> {
        self.inner.take()
    }
}

impl<H: Hypervisor> Hypervisor for Metered<H> {
    type Peer = H::Peer;
    type Mapping = H::Mapping;
    type Aperture = H::Aperture;
    type Event = MeteredEvent<H::Event>;
    type Copies<'a> = H::Copies<'a>;

    const COPIES_PER_HYPERCALL: usize = H::COPIES_PER_HYPERCALL;
    const UNPINNED_MAPPINGS: bool = H::UNPINNED_MAPPINGS;
    const DMA_REACHES_UNMAPPED: bool = H::DMA_REACHES_UNMAPPED;
    const RESUMES_GUEST_COPIES: bool = H::RESUMES_GUEST_COPIES;

    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error> {
        self.inner.peer(domain)
    }

    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error> {
        let began = self.meter.begin();
        let result = self.inner.map(peer, grefs);
        self.meter.end(began, &[(Counted::Maps, grefs.len() as u64)]);
        result
    }

    #[inline]
    fn perform(&self, batch: &mut Self::Copies<'_>) -> bool {
        let began = self.meter.begin();
        let all_done = self.inner.perform(batch);
        if began.is_some() {
            let Tally { granted, bytes } = batch.tally();
            let hypercalls = granted.div_ceil(H::COPIES_PER_HYPERCALL) as u64;
            use Counted::{CopiedBytes, Copies, CopyBatches, Hypercalls};
            let counts = [
                (Hypercalls, hypercalls),
                (CopyBatches, 1),
                (Copies, batch.len() as u64),
                (CopiedBytes, bytes),
            ];
            self.meter.end(began, &counts);
        }
        all_done
    }

    fn buffer_memory(&self, len: usize) -> std::io::Result<shm::Region> {
        self.inner.buffer_memory(len)
    }

    fn aperture(&self, peer: &Self::Peer, places: u32) -> Result<Self::Aperture, Error> {
        self.inner.aperture(peer, places)
    }

    fn map_at(&self, aperture: &mut Self::Aperture, batch: &mut [GrantMap]) {
        let began = self.meter.begin();
        self.inner.map_at(aperture, batch);
        if began.is_some() {
            let maps = batch.iter().filter(|op| op.status == MapStatus::Okay).count();
            self.meter.end(began, &[(Counted::Hypercalls, 1), (Counted::Maps, maps as u64)]);
        }
    }

    #[inline]
    fn is_current(
        &self,
        peer: &Self::Peer,
        gref: GrantRef,
        frame: FrameNumber,
        writable: bool,
    ) -> bool {
        self.inner.is_current(peer, gref, frame, writable)
    }

    fn unmap(&self, aperture: &mut Self::Aperture, places: std::ops::Range<u32>) {
        let began = self.meter.begin();
        let pages = places.len() as u64;
        self.inner.unmap(aperture, places);
        self.meter.end(began, &[(Counted::Hypercalls, 1), (Counted::Unmaps, pages)]);
    }

    fn dma_map<'a>(
        &self,
        peer: &'a Self::Peer,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) {
        let began = self.meter.begin();
        self.inner.dma_map(peer, mapped, batch);
        if began.is_some() {
            let maps = batch.iter().filter(|range| range.address.is_some()).count() as u64;
            let hypercalls = u64::from(!batch.is_empty());
            let counts = [(Counted::Hypercalls, hypercalls), (Counted::DmaMaps, maps)];
            self.meter.end(began, &counts);
        }
    }

    fn dma_hold(&self, peer: &Self::Peer) -> Option<DmaHold> {
        self.inner.dma_hold(peer)
    }

    fn dma_region(&self, peer: &Self::Peer) -> Option<shm::Region> {
        self.inner.dma_region(peer)
    }

    #[inline]
    fn dma_page(&self, peer: &Self::Peer, gref: GrantRef) -> Option<u64> {
        let page = self.inner.dma_page(peer, gref);
        if page.is_some() {
            self.meter.note(Counted::DmaMaps, 1);
        }
        page
    }

    fn page_transfer(&self) -> Option<Arc<dyn PageTransfer<Self::Peer>>> {
        let inner = self.inner.page_transfer()?;
        Some(Arc::new(MeteredTransfer { inner, meter: self.meter.clone() }))
    }

    fn guest_copies(
        &self,
        peer: &Self::Peer,
        form: CopyForm,
    ) -> Result<Arc<dyn GuestCopies>, Error> {
        let copies = self.inner.guest_copies(peer, form)?;
        copies.count_by(self.meter.clone());
        Ok(copies)
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: EvtchnPort) -> Result<Self::Event, Error> {
        let inner = self.inner.bind_interdomain(peer, port)?;
        Ok(MeteredEvent { inner, meter: self.meter.clone() })
    }

    fn notify_on_unmap(&self, mapping: &Self::Mapping, event: &Self::Event) {
        self.inner.notify_on_unmap(mapping, &event.inner);
    }

    #[inline]
    fn note(&self, what: Counted, n: u64) {
        self.meter.note(what, n);
    }
}

/// Page flipping with a meter.
struct MeteredTransfer<P> {
    inner: Arc<dyn PageTransfer<P>>,
    meter: Arc<Meter>,
}

impl<P> PageTransfer<P> for MeteredTransfer<P> {
    fn take_page(&self, peer: &P) -> Result<Box<dyn FlipPage>, Error> {
        let began = self.meter.begin();
        let result = self.inner.take_page(peer);
        self.meter.end(began, &[(Counted::PagesZeroed, u64::from(result.is_ok()))]);
        result
    }

    fn transfer(&self, batch: &mut [GrantTransfer<'_, P>]) {
        let began = self.meter.begin();
        self.inner.transfer(batch);
        if began.is_some() {
            let done = batch.iter().filter(|op| op.status == TransferStatus::Okay).count();
            self.meter.end(began, &[(Counted::Hypercalls, 1), (Counted::Transfers, done as u64)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// An event whose receiver runs before its sender goes on.
    struct Preempting(std::os::fd::OwnedFd);

    impl AsFd for Preempting {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl EventChannel for Preempting {
        fn notify(&self) -> Result<(), Error> {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        }

        fn take(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn the_time_of_the_woken_thread_is_not_the_hypervisors() {
        let meter = Arc::new(Meter::default());
        meter.switch(true);
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let event = MeteredEvent { inner: Preempting(fd), meter: meter.clone() };
        let wall = Instant::now();
        event.notify().unwrap();
        assert_eq!(meter.count(Counted::Notifications), 1);
        assert!(u128::from(meter.nanoseconds()) < wall.elapsed().as_nanos() / 2);
    }
}
