//! A meter around the hypervisor's services; it measures what Xenoprof's "hypervisor" column
//! showed.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::flip::{FlipPage, GrantTransfer, PageTransfer, TransferStatus};
use crate::{
    CopyStatus, DmaHold, DmaRange, DomId, Error, EventChannel, GrantCopy, GrantMap, GrantRef,
    Hypervisor, MapStatus, MappedPages, Port,
};

/// Counts the hypervisor's operations and their time. It is off until [switched on](Meter::switch).
/// When on, it reads the clock twice per batch.
#[derive(Debug, Default)]
pub struct Meter {
    on: AtomicBool,
    counts: [AtomicU64; Counted::COUNT],
    nanoseconds: AtomicU64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counted {
    /// Hypercalls for frames: batches of grant copies, of mappings and of page transfers, and
    /// events. Work without a grant needs no hypercall.
    Hypercalls,
    /// Batches of copies.
    CopyBatches,
    /// Copies.
    Copies,
    /// Bytes copied by the hypervisor.
    CopiedBytes,
    /// Packet bytes that the driver domain copied itself, into and out of its own buffers. Headers
    /// are not counted: it reads them anyway.
    DriverBytes,
    /// Granted pages mapped into the driver domain.
    Maps,
    /// Places whose granted pages were unmapped.
    Unmaps,
    /// Granted pages that a device fetched from without a mapping.
    DmaMaps,
    /// Pages transferred to a guest.
    Transfers,
    /// Pages zeroed before they were used again.
    PagesZeroed,
    /// Events sent to guests.
    Notifications,
    /// Events not sent, since the guest had not asked for one.
    Suppressed,
    /// Segments cut in software.
    Segments,
    /// Look-ups of a guest's page that found it mapped: persistent grants.
    GrantHits,
    /// Look-ups of a guest's page that did not find it among its persistent grants.
    GrantMisses,
}

impl Counted {
    const COUNT: usize = Self::ALL.len();

    /// Everything that is counted, in the order of the counters.
    pub const ALL: [Self; 15] = [
        Self::Hypercalls,
        Self::CopyBatches,
        Self::Copies,
        Self::CopiedBytes,
        Self::DriverBytes,
        Self::Maps,
        Self::Unmaps,
        Self::DmaMaps,
        Self::Transfers,
        Self::PagesZeroed,
        Self::Notifications,
        Self::Suppressed,
        Self::Segments,
        Self::GrantHits,
        Self::GrantMisses,
    ];

    /// Its name in metrics and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hypercalls => "hypercalls",
            Self::CopyBatches => "copy_batches",
            Self::Copies => "copies",
            Self::CopiedBytes => "copied_bytes",
            Self::DriverBytes => "driver_bytes",
            Self::Maps => "maps",
            Self::Unmaps => "unmaps",
            Self::DmaMaps => "dma_maps",
            Self::Transfers => "transfers",
            Self::PagesZeroed => "pages_zeroed",
            Self::Notifications => "notifications",
            Self::Suppressed => "suppressed",
            Self::Segments => "segments",
            Self::GrantHits => "grant_hits",
            Self::GrantMisses => "grant_misses",
        }
    }
}

impl Meter {
    /// Starts or stops counting.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether it counts.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// How many there were.
    pub fn count(&self, what: Counted) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    /// Time inside grant and event operations, in nanoseconds, summed over threads.
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }

    #[inline]
    fn begin(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    fn end(&self, began: Option<Instant>, counts: &[(Counted, u64)]) {
        if let Some(began) = began {
            self.book(began.elapsed(), counts);
        }
    }

    fn book(&self, spent: Duration, counts: &[(Counted, u64)]) {
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(spent, Ordering::Relaxed);
        for (what, n) in counts {
            self.add(*what, *n);
        }
    }

    /// Counts work of the driver domain's own, while the meter is on.
    #[inline]
    pub fn note(&self, what: Counted, n: u64) {
        if self.is_on() {
            self.add(what, n);
        }
    }

    fn add(&self, what: Counted, n: u64) {
        self.counts[what as usize].fetch_add(n, Ordering::Relaxed);
    }
}

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

    const COPIES_PER_HYPERCALL: usize = H::COPIES_PER_HYPERCALL;

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
    fn copy(&self, batch: &mut [GrantCopy<'_, Self::Peer>]) {
        let began = self.meter.begin();
        self.inner.copy(batch);
        if began.is_some() {
            let done = batch.iter().filter(|op| op.status == CopyStatus::Okay);
            let bytes = done.map(|op| u64::from(op.len)).sum();
            let copies = batch.len() as u64;
            let granted = batch.iter().filter(|op| op.is_granted()).count();
            let hypercalls = granted.div_ceil(H::COPIES_PER_HYPERCALL) as u64;
            use Counted::{CopiedBytes, Copies, CopyBatches, Hypercalls};
            let counts = [
                (Hypercalls, hypercalls),
                (CopyBatches, 1),
                (Copies, copies),
                (CopiedBytes, bytes),
            ];
            self.meter.end(began, &counts);
        }
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
    ) -> Option<DmaHold> {
        let began = self.meter.begin();
        let hold = self.inner.dma_map(peer, mapped, batch);
        if began.is_some() {
            let maps = batch.iter().filter(|range| range.address.is_some()).count() as u64;
            let hypercalls = u64::from(!batch.is_empty());
            let counts = [(Counted::Hypercalls, hypercalls), (Counted::DmaMaps, maps)];
            self.meter.end(began, &counts);
        }
        hold
    }

    fn page_transfer(&self) -> Option<Arc<dyn PageTransfer<Self::Peer>>> {
        let inner = self.inner.page_transfer()?;
        Some(Arc::new(MeteredTransfer { inner, meter: self.meter.clone() }))
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: Port) -> Result<Self::Event, Error> {
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
    use super::*;

    #[test]
    fn only_a_meter_that_is_on_counts() {
        let meter = Meter::default();
        assert!(meter.begin().is_none());
        meter.end(None, &[(Counted::Maps, 3)]);
        meter.switch(true);
        let began = meter.begin();
        meter.end(began, &[(Counted::Maps, 4), (Counted::Unmaps, 1)]);
        meter.switch(false);
        assert!(meter.begin().is_none());
        assert_eq!((meter.count(Counted::Maps), meter.count(Counted::Unmaps)), (4, 1));
    }

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
    fn the_time_of_whoever_is_woken_is_not_the_hypervisors() {
        let meter = Arc::new(Meter::default());
        meter.switch(true);
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let event = MeteredEvent { inner: Preempting(fd), meter: meter.clone() };
        let wall = Instant::now();
        event.notify().unwrap();
        assert_eq!(meter.count(Counted::Notifications), 1);
        assert!(u128::from(meter.nanoseconds()) < wall.elapsed().as_nanos() / 2);
    }

    #[test]
    fn every_name_is_its_own() {
        let names: std::collections::BTreeSet<_> = Counted::ALL.map(Counted::name).into();
        assert_eq!(names.len(), Counted::ALL.len());
        let places = Counted::ALL.map(|what| what as usize);
        assert!(places.into_iter().eq(0..Counted::ALL.len()));
    }
}
