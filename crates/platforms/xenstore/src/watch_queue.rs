//! Watch events on their way to a slow reader.
//!
//! A domain that may write a watched key decides how often the watch fires, and the watcher decides
//! how often it reads. The events in between take memory, so the queue is bounded. XSA-349: a guest
//! exhausted the backend's memory by rewriting a watched key. XSA-326: a guest exhausted the
//! store's memory by not reading.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::store::{PAYLOAD_MAX, StoreError, WatchEvent};

/// Most events that wait at one time. One more per watch can come on top.
pub const PENDING_MAX: usize = 1024;

/// A queue of watch events, and a descriptor that is readable while there is one.
///
/// An event only says "look again". So an event equal to one that waits is dropped. When too many
/// wait, the watch fires with its own path instead of the key's: "look at everything below". No
/// change is lost, and the writer cannot make the queue grow.
#[derive(Debug)]
pub struct WatchQueue {
    fd: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Path and token of each event, oldest first.
    events: VecDeque<Arc<(String, String)>>,
    /// The same, to find an equal event fast.
    waiting: HashSet<Arc<(String, String)>>,
    /// Why no more events come.
    closed: Option<String>,
}

impl WatchQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::default();
        Ok(Self { fd, state })
    }

    /// Queues an event. `watched` is the path of the watch that fired.
    pub fn push(&self, event: WatchEvent, watched: &str) {
        let mut state = self.lock();
        if state.closed.is_some() {
            return;
        }
        // An event that does not fit into one message could not be sent.
        let too_long = event.path.len() + event.token.len() + 2 > PAYLOAD_MAX;
        let collapses = too_long || state.events.len() >= PENDING_MAX;
        let path = if collapses { watched.to_owned() } else { event.path };
        let event = Arc::new((path, event.token));
        if state.waiting.insert(Arc::clone(&event)) {
            state.events.push_back(event);
            self.signal();
        }
    }

    /// The oldest event, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Gone`] once the queue is closed and empty.
    pub fn pop(&self) -> Result<Option<WatchEvent>, StoreError> {
        let mut state = self.lock();
        let Some(event) = state.events.pop_front() else {
            return match &state.closed {
                Some(reason) => Err(StoreError::Gone(reason.clone())),
                None => Ok(None),
            };
        };
        state.waiting.remove(&event);
        // Under the lock, so that no event arrives between the check and the reset.
        if state.events.is_empty() && state.closed.is_none() {
            self.reset();
        }
        let (path, token) = Arc::unwrap_or_clone(event);
        Ok(Some(WatchEvent { path, token }))
    }

    /// Drops all events that wait.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.events.clear();
        state.waiting.clear();
        if state.closed.is_none() {
            self.reset();
        }
    }

    /// Accepts no more events. The descriptor stays readable from now on, so that a waiting reader
    /// wakes and finds the error.
    pub fn close(&self, reason: &str) {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| reason.to_owned());
        self.signal();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails only on overflow, when the descriptor is readable anyway.
    fn signal(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Fails only if it is reset already.
    fn reset(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for WatchQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn event(path: &str) -> WatchEvent {
        WatchEvent { path: path.to_owned(), token: "t".to_owned() }
    }

    fn readable(queue: &WatchQueue) -> bool {
        let mut fds = [PollFd::new(queue, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn readable_exactly_while_events_wait() {
        let queue = WatchQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(event("a"), "a");
        queue.push(event("b"), "b");
        assert_eq!(queue.pop(), Ok(Some(event("a"))));
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Ok(Some(event("b"))));
        assert!(!readable(&queue));
        assert_eq!(queue.pop(), Ok(None));
        queue.push(event("c"), "c");
        queue.clear();
        assert!(!readable(&queue));
    }

    #[test]
    fn equal_events_wait_once() {
        let queue = WatchQueue::new().unwrap();
        for path in ["a", "b", "a"] {
            queue.push(event(path), "a");
        }
        assert_eq!(queue.pop(), Ok(Some(event("a"))));
        assert_eq!(queue.pop(), Ok(Some(event("b"))));
        assert_eq!(queue.pop(), Ok(None));
    }

    #[test]
    fn a_flood_collapses_into_the_watch_itself() {
        let queue = WatchQueue::new().unwrap();
        for n in 0..PENDING_MAX * 3 {
            queue.push(event(&format!("dir/{n}")), "dir");
        }
        let mut last = None;
        for _ in 0..=PENDING_MAX {
            last = queue.pop().unwrap();
        }
        assert_eq!(last, Some(event("dir")));
        assert_eq!(queue.pop(), Ok(None));
    }

    #[test]
    fn an_event_too_long_to_send_becomes_the_watch_itself() {
        let queue = WatchQueue::new().unwrap();
        queue.push(event(&format!("dir/{}", "x".repeat(PAYLOAD_MAX))), "dir");
        assert_eq!(queue.pop(), Ok(Some(event("dir"))));
    }

    #[test]
    fn a_closed_queue_stays_readable() {
        let queue = WatchQueue::new().unwrap();
        queue.push(event("a"), "a");
        queue.close("hung up");
        queue.close("later reason");
        queue.push(event("b"), "b");
        assert_eq!(queue.pop(), Ok(Some(event("a"))));
        assert_eq!(queue.pop(), Err(StoreError::Gone("hung up".into())));
        assert!(readable(&queue));
    }
}
