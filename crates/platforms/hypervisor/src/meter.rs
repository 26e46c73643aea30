//! Counters of the hypervisor's operations and their time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts the hypervisor's operations and their time. It is off until [switched on](Meter::switch).
/// When on, it reads the clock twice per batch.
#[derive(Debug, Default)]
pub struct Meter {
    on: AtomicBool,
    counts: [AtomicU64; Counted::COUNT],
    nanoseconds: AtomicU64,
}

named::named! {
    /// What is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub enum Counted {
        /// Hypercalls for frames: batches of grant copies, of mappings (a device's too), of unmappings and
        /// of page transfers, and events. Work without a grant needs no hypercall.
        Hypercalls => "hypercalls",
        /// Batches of copies.
        CopyBatches => "copy_batches",
        /// Copies.
        Copies => "copies",
        /// Bytes copied by the hypervisor.
        CopiedBytes => "copied_bytes",
        /// Packet bytes that the driver domain copied without the hypervisor, into and out of its
        /// buffers. Headers are not counted.
        DriverBytes => "driver_bytes",
        /// Granted pages mapped into the driver domain.
        Maps => "maps",
        /// Places whose granted pages were unmapped.
        Unmaps => "unmaps",
        /// Granted pages that a device fetched from without a mapping.
        DmaMaps => "dma_maps",
        /// Pages transferred to a guest.
        Transfers => "transfers",
        /// Pages zeroed before they were used again.
        PagesZeroed => "pages_zeroed",
        /// Events sent to guests.
        Notifications => "notifications",
        /// Events not sent, because the guest had not asked for one.
        Suppressed => "suppressed",
        /// Segments cut in software.
        Segments => "segments",
        /// Lookups of a guest's page that found it mapped: persistent grants and grant caches.
        GrantHits => "grant_hits",
        /// Lookups of a guest's page that did not find it there.
        GrantMisses => "grant_misses",
        /// Misses that found another page, because the guest had ended the grant meanwhile.
        GrantStale => "grant_stale",
        /// Pages evicted from a grant cache.
        GrantEvictions => "grant_evictions",
        /// Buffers of the driver domain that were granted to guests, for them to copy.
        BuffersGranted => "buffers_granted",
        /// Hypercalls by which guests copied out of such buffers.
        GuestHypercalls => "guest_hypercalls",
        /// Copies that those hypercalls did.
        GuestCopies => "guest_copies",
        /// Bytes that those copies had.
        GuestCopiedBytes => "guest_copied_bytes",
        /// Nanoseconds that those hypercalls took. They are the guest's, not the driver domain's, and
        /// not in [`nanoseconds`](Meter::nanoseconds).
        GuestCopyNanoseconds => "guest_copy_nanoseconds",
        /// Frames whose bodies a device put into buffers that the receiving guest had posted.
        DirectFrames => "direct_frames",
    }
}

impl Counted {
    const COUNT: usize = Self::ALL.len();
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
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    pub(crate) fn end(&self, began: Option<Instant>, counts: &[(Counted, u64)]) {
        if let Some(began) = began {
            self.book(began.elapsed(), counts);
        }
    }

    pub(crate) fn book(&self, spent: Duration, counts: &[(Counted, u64)]) {
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(spent, Ordering::Relaxed);
        for (what, n) in counts {
            self.add(*what, *n);
        }
    }

    /// Counts work of the driver domain, while the meter is on.
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

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = Counted::ALL.map(Counted::name).into();
        assert_eq!(names.len(), Counted::ALL.len());
        let places = Counted::ALL.map(|what| what as usize);
        assert!(places.into_iter().eq(0..Counted::ALL.len()));
    }
}
