//! A connection to a store that may go away and come back.
//!
//! A driver domain outlives its store: an upgrade restarts xenstored, or xenstored runs in a
//! separate domain. Meanwhile every call fails with [`StoreError::Gone`]. Once the store is back,
//! every watch is registered again and fires, so its owner reads everything that may have
//! changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::client::Client;
use crate::store::{Permissions, Store, StoreError, TransactionId, WatchEvent};
use crate::watch_queue::WatchQueue;

/// Time between two attempts to reach the store.
const RETRY: Duration = Duration::from_millis(200);

/// Opens a connection to the store.
pub type Connect = Box<dyn Fn() -> io::Result<OwnedFd> + Send>;

/// Called when the store has gone, with the reason, and with none when it is back.
pub type Notice = Box<dyn Fn(Option<&StoreError>) + Send>;

/// A connection to the store that is opened again whenever it breaks. Dropping it ends its thread.
#[derive(Debug)]
pub struct Reconnecting {
    shared: Arc<Shared>,
    /// Readable when the thread must end.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    events: WatchQueue,
}

#[derive(Debug, Default)]
struct State {
    /// None while the store is away.
    client: Option<Arc<Client>>,
    /// Watches registered, path and token.
    watches: Vec<(String, String)>,
}

impl Reconnecting {
    /// Connects, and calls `connect` again whenever the connection breaks.
    ///
    /// # Errors
    /// When the first connection fails, or the process is out of descriptors or threads.
    pub fn new(connect: Connect, notice: Notice) -> io::Result<Self> {
        let client = Arc::new(Client::new(connect()?)?);
        let state = State { client: Some(client), watches: Vec::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), events: WatchQueue::new()? });
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let worker = Worker { shared: shared.clone(), stop: stop.clone(), connect, notice };
        let builder = std::thread::Builder::new().name("xenstore".to_owned());
        let thread = builder.spawn(move || worker.run())?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    fn client(&self) -> Result<Arc<Client>, StoreError> {
        self.shared.state().client.clone().ok_or_else(disconnected)
    }
}

fn disconnected() -> StoreError {
    StoreError::Gone("not connected; trying again".to_owned())
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of the watch with this token.
    fn watched(&self, token: &str) -> String {
        let state = self.state();
        let watch = state.watches.iter().find(|(_, own)| own == token);
        watch.map(|(path, _)| path.clone()).unwrap_or_default()
    }

    fn forget(&self, watch: &(String, String)) {
        let mut state = self.state();
        if let Some(index) = state.watches.iter().position(|own| own == watch) {
            state.watches.swap_remove(index);
        }
    }
}

/// What the thread works with.
struct Worker {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    connect: Connect,
    notice: Notice,
}

impl Worker {
    fn run(self) {
        loop {
            let Some(client) = self.shared.state().client.clone() else { return };
            let Some(reason) = self.pass_on(&client) else { return };
            self.shared.state().client = None;
            (self.notice)(Some(&reason));
            while !self.reconnect() {
                if self.is_stopped(RETRY) {
                    return;
                }
            }
            (self.notice)(None);
        }
    }

    /// Passes events on until the connection breaks, and returns why; none when the thread must
    /// end.
    fn pass_on(&self, client: &Client) -> Option<StoreError> {
        loop {
            match client.event() {
                Ok(Some(event)) => {
                    let watched = self.shared.watched(&event.token);
                    self.shared.events.push(event, &watched);
                }
                Ok(None) => {
                    let mut fds = [
                        PollFd::from_borrowed_fd(client.event_fd(), PollFlags::IN),
                        PollFd::new(&*self.stop, PollFlags::IN),
                    ];
                    // An interrupted wait starts again.
                    let _ = poll(&mut fds, None);
                    if !fds[1].revents().is_empty() {
                        return None;
                    }
                }
                Err(reason) => return Some(reason),
            }
        }
    }

    /// Tries once to get the store back, with all watches.
    fn reconnect(&self) -> bool {
        let Ok(Ok(client)) = (self.connect)().map(Client::new) else { return false };
        // Under the lock, so that no watch set meanwhile is lost.
        let mut state = self.shared.state();
        let set = |(path, token): &(String, String)| client.watch(path, token).is_ok();
        if !state.watches.iter().all(set) {
            return false;
        }
        state.client = Some(Arc::new(client));
        true
    }

    /// Waits for `timeout`, or until the thread must end; returns whether it must.
    fn is_stopped(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        let _ = poll(&mut fds, timeout.as_ref());
        !fds[0].revents().is_empty()
    }
}

impl Store for Reconnecting {
    fn read(&self, tx: Option<TransactionId>, path: &str) -> Result<String, StoreError> {
        self.client()?.read(tx, path)
    }

    fn write(&self, tx: Option<TransactionId>, path: &str, value: &str) -> Result<(), StoreError> {
        self.client()?.write(tx, path, value)
    }

    fn mkdir(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        self.client()?.mkdir(tx, path)
    }

    fn remove(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        self.client()?.remove(tx, path)
    }

    fn directory(&self, tx: Option<TransactionId>, path: &str) -> Result<Vec<String>, StoreError> {
        self.client()?.directory(tx, path)
    }

    fn permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
    ) -> Result<Permissions, StoreError> {
        self.client()?.permissions(tx, path)
    }

    fn set_permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
        permissions: &Permissions,
    ) -> Result<(), StoreError> {
        self.client()?.set_permissions(tx, path, permissions)
    }

    fn begin(&self) -> Result<TransactionId, StoreError> {
        self.client()?.begin()
    }

    fn end(&self, tx: TransactionId, commit: bool) -> Result<(), StoreError> {
        self.client()?.end(tx, commit)
    }

    /// A watch set while the store is away fires when the store is back.
    fn watch(&self, path: &str, token: &str) -> Result<(), StoreError> {
        let watch = (path.to_owned(), token.to_owned());
        let client = {
            let mut state = self.shared.state();
            state.watches.push(watch.clone());
            state.client.clone()
        };
        match client.map_or(Ok(()), |client| client.watch(path, token)) {
            // The thread sets the watch again once the store is back.
            Ok(()) | Err(StoreError::Gone(_)) => Ok(()),
            Err(error) => {
                self.shared.forget(&watch);
                Err(error)
            }
        }
    }

    fn unwatch(&self, path: &str, token: &str) -> Result<(), StoreError> {
        self.shared.forget(&(path.to_owned(), token.to_owned()));
        self.client()?.unwatch(path, token)
    }

    fn event(&self) -> Result<Option<WatchEvent>, StoreError> {
        self.shared.events.pop()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.events.as_fd()
    }
}

impl Drop for Reconnecting {
    fn drop(&mut self) {
        // Cannot fail: the counter starts at 0, and this is the only write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread has reported its panic, if any.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
