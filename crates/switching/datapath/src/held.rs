//! Notifications that egress queues hold back for further frames.

use std::sync::Arc;
use std::time::Duration;

use switch::PortId;

use crate::activity::Activity;
use crate::port::Port;

/// The egress queues that hold back a notification since this worker delivered to them. It flushes them when they are due, and when it
/// has nothing else to do.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    port: Arc<Port>,
    queue: usize,
    due: Duration,
}

impl Held {
    /// After a delivery: the queue holds back a notification until it is due, or none any more.
    #[inline]
    pub(crate) fn note(&mut self, port: &Arc<Port>, queue: usize, due: Option<Duration>) {
        let is_its = |entry: &Entry| Arc::ptr_eq(&entry.port, port) && entry.queue == queue;
        match (self.0.iter().position(is_its), due) {
            (Some(place), Some(due)) => self.0[place].due = due,
            (Some(place), None) => drop(self.0.swap_remove(place)),
            (None, Some(due)) => self.0.push(Entry { port: Arc::clone(port), queue, due }),
            (None, None) => {}
        }
    }

    /// Has notifications sent that are due, or all that need not wait for more frames if the worker `is_idle`. Returns whether there
    /// was any such queue.
    #[inline]
    pub(crate) fn flush(&mut self, activity: &Activity, now: Duration, is_idle: bool) -> bool {
        let mut has_flushed = false;
        self.0.retain_mut(|entry| {
            if !is_idle && now < entry.due {
                return true;
            }
            has_flushed = true;
            activity.serve(entry.port.serial());
            let due = entry.port.egress(entry.queue).flush(now, is_idle);
            entry.due = due.unwrap_or(entry.due);
            due.is_some()
        });
        has_flushed
    }

    /// When the first of them is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.0.iter().map(|entry| entry.due).min()
    }

    /// The port is being removed.
    pub(crate) fn forget(&mut self, port: PortId) {
        self.0.retain(|entry| entry.port.id() != port);
    }
}
