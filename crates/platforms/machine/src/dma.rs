//! Devices' holds on a domain's memory, and waiting until they end. References that a card keeps for longer are counted for
//! each [page](pages).
//!
//! A hold ([`hypervisor::DmaHold`]) counts as a reader of one of two phases. Whoever takes pages
//! away first makes sure that no new hold can reach them, then turns the phase and waits until the
//! old one has no readers. New holds count in the new phase, so that the wait ends however busy
//! the devices are (the grace period of read-copy-update, McKenney and Slingwine 1998).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

mod memory;
pub(crate) mod pages;

/// How long a domain waits for devices before it must keep its pages.
const GRACE: Duration = Duration::from_secs(1);
/// The pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// The holds on one domain's memory.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// The phase in which new holds count, in its lowest bit.
    phase: AtomicU32,
    /// Holds of each phase.
    readers: [AtomicU32; 2],
}

impl Holds {
    pub(crate) fn begin(&self) -> u8 {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let index = (phase & 1) as u8;
            let readers = &self.readers[usize::from(index)];
            readers.fetch_add(1, Ordering::SeqCst);
            // If the phase has turned meanwhile, a waiter may already have seen this one without readers.
            if self.phase.load(Ordering::SeqCst) == phase {
                return index;
            }
            readers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn end(&self, index: u8) {
        if let Some(readers) = self.readers.get(usize::from(index)) {
            readers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits until all holds have ended that were there when this was called. Returns whether they
    /// did in time. For one caller at a time.
    pub(crate) fn wait(&self) -> bool {
        let deadline = Instant::now() + GRACE;
        let quiet = |index: u32| {
            let readers = &self.readers[index as usize];
            while readers.load(Ordering::SeqCst) > 0 {
                if Instant::now() > deadline {
                    return false;
                }
                std::thread::sleep(CHECK_INTERVAL);
            }
            true
        };
        // The other phase first: it may still have readers that an earlier wait gave up on.
        let phase = self.phase.load(Ordering::SeqCst);
        quiet(phase & 1 ^ 1) && {
            self.phase.fetch_add(1, Ordering::SeqCst);
            quiet(phase & 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_waits_only_for_earlier_holds() {
        let holds = Holds::default();
        assert!(holds.wait(), "nobody holds anything");
        let old = holds.begin();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| holds.wait());
            while holds.phase.load(Ordering::SeqCst) == 1 {
                std::thread::yield_now();
            }
            let new = holds.begin();
            assert_ne!(old, new);
            assert!(!waiting.is_finished());
            holds.end(old);
            assert!(waiting.join().unwrap(), "the new hold is not waited for");
            holds.end(new);
        });
    }
}
