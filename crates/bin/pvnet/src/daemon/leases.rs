//! Leases of the meter, which is on while anybody holds one.

use std::sync::Arc;

use hypervisor::Meter;
use parking_lot::Mutex;

/// The leases of a meter.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    meter: Arc<Meter>,
    /// How many are taken. The meter is switched under this lock.
    taken: Arc<Mutex<usize>>,
}

impl Leases {
    /// No leases yet: the meter is off.
    pub(super) fn new(meter: Arc<Meter>) -> Self {
        meter.switch(false);
        Self { meter, taken: Arc::default() }
    }

    /// Switches the meter on; it stays on at least until the lease is dropped.
    pub(super) fn take(&self) -> Lease {
        self.change(|taken| taken + 1);
        Lease(self.clone())
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut taken = self.taken.lock();
        *taken = change(*taken);
        self.meter.switch(*taken > 0);
    }
}

/// A reason for the meter to be on. The last one that is dropped switches it off.
#[derive(Debug)]
pub(super) struct Lease(Leases);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.change(|taken| taken - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meter_is_on_while_anybody_holds_a_lease() {
        let leases = Leases::new(Arc::default());
        let on = || leases.meter.is_on();
        assert!(!on());
        let first = leases.take();
        let second = leases.take();
        assert!(on());
        drop(first);
        assert!(on(), "the second lease is still held");
        drop(second);
        assert!(!on());
        let third = leases.take();
        assert!(on());
        drop(third);
        assert!(!on());
    }
}
