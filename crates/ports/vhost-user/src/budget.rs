//! How much memory front-ends may have mapped in this process.
//!
//! A front-end's memory is a file of any length, which need not have a page. A mapping of it costs this process address space at once, and
//! page tables when it is touched: 8 bytes for each page of 4 KiB, which is 1/512 of what is mapped. So bytes are counted before they are
//! mapped, and until they are unmapped: those of a front-end, and those of all front-ends together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use virtqueue::GuestMemory;

/// Bytes that a front-end may have mapped beside its guest's memory: the log of a migration has a bit for each 4 KiB of guest addresses, so
/// this is enough up to address 2 TiB; that of descriptors in flight has less.
pub const LOGS: u64 = 64 << 20;

/// The most mappings of a front-end: the ranges of its guest's memory, and both logs.
pub const MAPPINGS_MAX: usize = GuestMemory::RANGES_MAX + 2;

const MIB: u64 = 1 << 20;

/// Memory that must not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// It is more than the port's.
    #[error(
        "{} MiB to be mapped beside {} MiB, which is more than the port's memory_mib and {} MiB for logs (together {} MiB)",
        wanted.div_ceil(MIB), held / MIB, LOGS / MIB, max / MIB
    )]
    Port {
        /// Bytes that were to be mapped.
        wanted: u64,
        /// Bytes that the front-end has.
        held: u64,
        /// Bytes that it may have.
        max: u64,
    },
    /// It is more than this process can map.
    #[error(
        "{} MiB to be mapped beside {} MiB of all front-ends, which is more than {} MiB, their part of this process's address space; give \
         ports a lower memory_mib",
        wanted.div_ceil(MIB), held / MIB, max / MIB
    )]
    Process {
        /// Bytes that were to be mapped.
        wanted: u64,
        /// Bytes that all front-ends have.
        held: u64,
        /// Bytes that all of them may have.
        max: u64,
    },
}

/// Bytes that are mapped, and how many may be.
#[derive(Debug)]
struct Tally {
    held: AtomicU64,
    max: AtomicU64,
}

impl Tally {
    fn new(max: u64) -> Self {
        Self { held: AtomicU64::new(0), max: AtomicU64::new(max) }
    }

    /// Counts bytes. If they are too many: how many there are, and may be.
    fn add(&self, bytes: u64) -> Result<(), (u64, u64)> {
        let max = self.max.load(Ordering::Relaxed);
        let sum = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= max);
        let added = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        added.map(drop).map_err(|held| (held, max))
    }

    fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What all front-ends of this process may have mapped.
#[derive(Debug)]
pub struct ProcessBudget(Tally);

impl ProcessBudget {
    /// All front-ends may have `max` bytes together.
    #[must_use]
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self(Tally::new(max)))
    }

    /// Bytes that they may have.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.0.max.load(Ordering::Relaxed)
    }

    /// Bytes that they have.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }
}

/// What the front-end of a port may have mapped.
#[derive(Debug)]
pub struct MemoryBudget {
    own: Tally,
    all: Arc<ProcessBudget>,
}

impl MemoryBudget {
    /// A front-end whose guest has `guest` bytes of memory, and logs beside them. It counts in `all`.
    #[must_use]
    pub fn new(guest: u64, all: Arc<ProcessBudget>) -> Arc<Self> {
        Arc::new(Self { own: Tally::new(guest.saturating_add(LOGS)), all })
    }

    /// No bound: for one front-end that is part of this program.
    #[must_use]
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX, ProcessBudget::new(u64::MAX))
    }

    /// The guest may have other memory. What is mapped stays.
    pub fn set_guest(&self, guest: u64) {
        self.own.max.store(guest.saturating_add(LOGS), Ordering::Relaxed);
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.own.held.load(Ordering::Relaxed)
    }

    /// Bytes that may be.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.own.max.load(Ordering::Relaxed)
    }

    /// Counts bytes that are mapped in the place of others, which are counted until their last user is done, however many that are.
    pub(crate) fn take_again(self: &Arc<Self>, bytes: u64) -> Mapped {
        for tally in [&self.own, &self.all.0] {
            tally.held.fetch_add(bytes, Ordering::Relaxed);
        }
        Mapped { budget: self.clone(), bytes }
    }

    /// Counts bytes that are about to be mapped, until the result is dropped.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Mapped, OverBudget> {
        self.own.add(bytes).map_err(|(held, max)| OverBudget::Port { wanted: bytes, held, max })?;
        if let Err((held, max)) = self.all.0.add(bytes) {
            self.own.give_back(bytes);
            return Err(OverBudget::Process { wanted: bytes, held, max });
        }
        Ok(Mapped { budget: self.clone(), bytes })
    }
}

/// Bytes that are counted as mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.budget.own.give_back(self.bytes);
        self.budget.all.0.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take { port: usize, bytes: u64 },
        GiveBack { which: usize },
        SetGuest { port: usize, guest: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = prop_oneof![0..(200 * MIB), Just(u64::MAX), Just(u64::MAX - LOGS)];
        prop_oneof![
            4 => (0..3usize, bytes).prop_map(|(port, bytes)| Step::Take { port, bytes }),
            3 => any::<usize>().prop_map(|which| Step::GiveBack { which }),
            1 => (0..3usize, 0..(300 * MIB)).prop_map(|(port, guest)| Step::SetGuest { port, guest }),
        ]
    }

    proptest! {
        /// After any steps what is counted is what is held, of each port and of all; nothing is granted beyond a bound, and nothing is
        /// refused that fits both.
        #[test]
        fn the_sum_of_what_is_mapped_is_counted_and_bounded(steps in prop::collection::vec(step(), 0..200)) {
            let all = ProcessBudget::new(500 * MIB);
            let ports = [0; 3].map(|_| MemoryBudget::new(200 * MIB, all.clone()));
            let mut held: Vec<(usize, Mapped)> = Vec::new();
            for step in steps {
                let sum = |held: &[(usize, Mapped)], port: Option<usize>| -> u64 {
                    let of = held.iter().filter(|(owner, _)| port.is_none_or(|port| port == *owner));
                    of.map(|(_, mapped)| mapped.bytes).sum()
                };
                match step {
                    Step::Take { port, bytes } => {
                        let fits_port = sum(&held, Some(port)).checked_add(bytes).is_some_and(|sum| sum <= ports[port].max());
                        let fits_all = sum(&held, None).checked_add(bytes).is_some_and(|sum| sum <= all.max());
                        match ports[port].take(bytes) {
                            Ok(mapped) => {
                                prop_assert!(fits_port && fits_all);
                                held.push((port, mapped));
                            }
                            Err(OverBudget::Port { .. }) => prop_assert!(!fits_port),
                            Err(OverBudget::Process { .. }) => prop_assert!(fits_port && !fits_all),
                        }
                    }
                    Step::GiveBack { .. } if held.is_empty() => {}
                    Step::GiveBack { which } => drop(held.swap_remove(which % held.len())),
                    Step::SetGuest { port, guest } => ports[port].set_guest(guest),
                }
                for (port, budget) in ports.iter().enumerate() {
                    prop_assert_eq!(budget.held(), sum(&held, Some(port)));
                }
                prop_assert_eq!(all.held(), sum(&held, None));
            }
        }
    }

    #[test]
    fn a_refusal_says_how_much_is_too_much() {
        let all = ProcessBudget::new(100 * MIB);
        let port = MemoryBudget::new(64 * MIB, all.clone());
        let _held = port.take(80 * MIB).unwrap();
        let why = port.take(49 * MIB).unwrap_err().to_string();
        assert!(
            ["49 MiB", "80 MiB", "memory_mib", "128 MiB"].iter().all(|part| why.contains(part)),
            "{why}"
        );
        let other = MemoryBudget::new(64 * MIB, all);
        let why = other.take(21 * MIB - 1).unwrap_err().to_string();
        assert!(
            ["21 MiB", "80 MiB", "100 MiB", "address space"].iter().all(|part| why.contains(part)),
            "{why}"
        );
        assert!(other.take(20 * MIB).is_ok());
    }
}
