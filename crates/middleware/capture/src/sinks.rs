//! The captures that run at one port.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use crate::sink::Sink;

/// Most captures that run at one port at the same time.
pub const CAPTURES_MAX: usize = 4;

/// The sinks of a port's captures.
#[derive(Default)]
pub(crate) struct Sinks {
    /// Whether there are any. While there are none, a batch looks at nothing else.
    active: AtomicBool,
    list: RwLock<Vec<Arc<Sink>>>,
    /// How many sides have a buffer's number.
    sides: AtomicUsize,
}

impl Sinks {
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// The sinks, or none while the list changes: workers do not wait for that, so a batch may be
    /// missing where another capture starts or ends.
    pub(crate) fn get(&self) -> Option<RwLockReadGuard<'_, Vec<Arc<Sink>>>> {
        match self.list.try_read() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Adds a sink. Returns false if the port has [`CAPTURES_MAX`] already.
    pub(crate) fn add(&self, sink: Arc<Sink>) -> bool {
        self.change(|list| {
            let has_place = list.len() < CAPTURES_MAX;
            if has_place {
                list.push(sink);
            }
            has_place
        })
    }

    /// Removes a sink. No worker uses it after this call.
    pub(crate) fn remove(&self, sink: &Arc<Sink>) {
        self.change(|list| list.retain(|other| !Arc::ptr_eq(other, sink)));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<Sink>>) -> T) -> T {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut list);
        self.active.store(!list.is_empty(), Ordering::Relaxed);
        result
    }

    /// Which of each sink's buffers the next side of a queue fills.
    pub(crate) fn next_buffer(&self) -> usize {
        self.sides.fetch_add(1, Ordering::Relaxed)
    }
}
