//! The captures and recordings that run at one port.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use crate::sink::Sink;

/// Most captures that run at one port at the same time. Recordings do not count.
pub const CAPTURES_MAX: usize = 4;

/// A sink of a port's packets.
pub(crate) struct PortSink {
    pub(crate) sink: Arc<Sink>,
    /// The port's number in the sink.
    pub(crate) interface: u32,
}

/// The sinks of a port's captures and recordings.
#[derive(Default)]
pub(crate) struct Sinks {
    /// Whether there are any. While there are none, a batch checks nothing else.
    active: AtomicBool,
    list: RwLock<Vec<PortSink>>,
    /// How many sides have a buffer's number.
    sides: AtomicUsize,
}

impl Sinks {
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// The sinks. None while the list changes: workers do not wait for that, so a capture may miss a
    /// batch while another one starts or ends.
    pub(crate) fn get(&self) -> Option<RwLockReadGuard<'_, Vec<PortSink>>> {
        match self.list.try_read() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Adds a sink. Returns false if it is a capture's, and the port has [`CAPTURES_MAX`] already.
    pub(crate) fn add(&self, entry: PortSink) -> bool {
        self.change(|list| {
            let captures = list.iter().filter(|other| !other.sink.is_recording).count();
            let has_place = entry.sink.is_recording || captures < CAPTURES_MAX;
            if has_place {
                list.push(entry);
            }
            has_place
        })
    }

    /// Removes a sink. No worker uses it after this call.
    pub(crate) fn remove(&self, sink: &Arc<Sink>) {
        self.change(|list| list.retain(|other| !Arc::ptr_eq(&other.sink, sink)));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<PortSink>) -> T) -> T {
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
