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
    /// Packet bytes that the driver domain copied without the hypervisor, into and out of its
    /// buffers. Headers are not counted.
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
    /// Events not sent, because the guest had not asked for one.
    Suppressed,
    /// Segments cut in software.
    Segments,
    /// Look-ups of a guest's page that found it mapped: persistent grants.
    GrantHits,
    /// Look-ups of a guest's page that did not find it among its persistent grants.
    GrantMisses,
    /// Buffers of the driver domain that were granted to guests, for them to copy.
    BuffersGranted,
    /// Hypercalls by which guests copied out of such buffers.
    GuestHypercalls,
    /// Copies that those hypercalls did.
    GuestCopies,
    /// Bytes that those copies had.
    GuestCopiedBytes,
    /// Nanoseconds that those hypercalls took. They are the guest's, not the driver domain's, and
    /// not in [`nanoseconds`](Meter::nanoseconds).
    GuestCopyNanoseconds,
}

impl Counted {
    const COUNT: usize = Self::ALL.len();

    /// Everything that is counted, in the order of the counters.
    pub const ALL: [Self; 20] = [
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
        Self::BuffersGranted,
        Self::GuestHypercalls,
        Self::GuestCopies,
        Self::GuestCopiedBytes,
        Self::GuestCopyNanoseconds,
    ];

    /// The name in metrics and in JSON.
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
            Self::BuffersGranted => "buffers_granted",
            Self::GuestHypercalls => "guest_hypercalls",
            Self::GuestCopies => "guest_copies",
            Self::GuestCopiedBytes => "guest_copied_bytes",
            Self::GuestCopyNanoseconds => "guest_copy_nanoseconds",
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
