//! A client of xenstore over a stream.
//!
//! The stream is a socket to xenstored, `/dev/xen/xenbus`, or the socket of an embedded guest. A
//! thread reads it: a reply goes to the caller that waits for it, a watch event into a queue. Any
//! number of threads may call at the same time; they take turns.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::store::{Permissions, Store, StoreError, TransactionId, WatchEvent};
use crate::watch_queue::WatchQueue;
use crate::wire::{
    Decoder, DirectoryPart, ErrorCode, Kind, Message, Request, WireError, parse_watch_event, path,
    permissions, text,
};

/// How long the store may take to answer. Then the connection fails: a caller could not be stopped
/// while it waits.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often a list of children is read again because it changed meanwhile.
const DIRECTORY_TRIES: usize = 16;

/// A connection to xenstore. Dropping it closes the stream and ends its thread.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    /// Readable when the reader must end: `/dev/xen/xenbus` is not a socket, so it cannot be shut
    /// down.
    stop: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Shared {
    stream: OwnedFd,
    /// How long an answer may take.
    timeout: Duration,
    /// Held from a request to its answer. Linux's `/dev/xen/xenbus` has one buffer for requests and
    /// may take the next one while it still sends: two at a time would mix.
    turn: Mutex<()>,
    calls: Mutex<Calls>,
    events: WatchQueue,
}

#[derive(Debug, Default)]
struct Calls {
    /// The last request's number.
    req_id: u32,
    /// Where the answer to each request goes. A dropped sender means that none comes.
    waiting: HashMap<u32, SyncSender<Message>>,
    /// Watches registered, path and token.
    watches: Vec<(String, String)>,
    /// Why the stream ended.
    gone: Option<String>,
}

impl Calls {
    /// The path of the watch that an event is for; none if the watch was removed meanwhile.
    fn watched(&self, event: &WatchEvent) -> Option<&str> {
        let above = |watched: &str| path::is_at_or_below(&event.path, watched);
        // Some stores report absolute paths for a relative watch.
        let by_token = || self.watches.iter().filter(|(_, token)| *token == event.token);
        by_token()
            .find(|(watched, _)| above(watched))
            .or_else(|| by_token().next())
            .map(|(watched, _)| watched.as_str())
    }
}

impl Client {
    /// Speaks to the store at the other end of `stream`.
    ///
    /// # Errors
    /// When the process is out of descriptors or threads.
    pub fn new(stream: OwnedFd) -> io::Result<Self> {
        Self::with_timeout(stream, TIMEOUT)
    }

    fn with_timeout(stream: OwnedFd, timeout: Duration) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let shared = Arc::new(Shared {
            stream,
            timeout,
            turn: Mutex::default(),
            calls: Mutex::default(),
            events: WatchQueue::new()?,
        });
        let reader = std::thread::Builder::new().name("xenstore".to_owned()).spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || {
                let reason = shared.read_until_end(&stop);
                shared.fail(&reason);
            }
        })?;
        Ok(Self { shared, reader: Some(reader), stop })
    }

    /// Asks, and waits for the payload of the answer.
    fn call(
        &self,
        tx: Option<TransactionId>,
        request: &Request<'_>,
    ) -> Result<Vec<u8>, StoreError> {
        let reply = self.shared.exchange(tx, request)?;
        let malformed = || StoreError::Gone(format!("no answer to {:?}", request.kind()));
        match reply.kind() {
            Some(Kind::Error) => {
                let name = text::single(reply.payload()).map_err(|_| malformed())?;
                let code = ErrorCode::from_name(name).unwrap_or(ErrorCode::Einval);
                Err(code.about(request.subject()))
            }
            Some(kind) if kind == request.kind() => Ok(reply.into_payload()),
            _ => Err(malformed()),
        }
    }

    /// The children of a node whose list takes several messages.
    fn directory_in_parts(
        &self,
        tx: Option<TransactionId>,
        path: &str,
    ) -> Result<Vec<String>, StoreError> {
        'again: for _ in 0..DIRECTORY_TRIES {
            let mut names = Vec::new();
            let mut generation = None;
            let mut offset = 0;
            loop {
                let payload = self.call(tx, &Request::DirectoryPart { path, offset })?;
                let part = DirectoryPart::parse(&payload).map_err(|code| code.about(path))?;
                if *generation.get_or_insert(part.generation) != part.generation {
                    continue 'again;
                }
                offset += part.bytes();
                names.extend(part.names);
                if part.last {
                    return Ok(names);
                }
            }
        }
        Err(StoreError::Conflict)
    }
}

impl Store for Client {
    fn read(&self, tx: Option<TransactionId>, path: &str) -> Result<String, StoreError> {
        let payload = self.call(tx, &Request::Read { path })?;
        String::from_utf8(payload).map_err(|_| StoreError::Invalid(path.to_owned()))
    }

    fn write(&self, tx: Option<TransactionId>, path: &str, value: &str) -> Result<(), StoreError> {
        let value = value.as_bytes();
        self.call(tx, &Request::Write { path, value }).map(drop)
    }

    fn mkdir(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        self.call(tx, &Request::Mkdir { path }).map(drop)
    }

    fn remove(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        self.call(tx, &Request::Rm { path }).map(drop)
    }

    fn directory(&self, tx: Option<TransactionId>, path: &str) -> Result<Vec<String>, StoreError> {
        match self.call(tx, &Request::Directory { path }) {
            Ok(payload) => {
                let names = text::split(&payload).map_err(|code| code.about(path))?;
                Ok(names.into_iter().map(str::to_owned).collect())
            }
            Err(too_long) if too_long == ErrorCode::E2big.about(path) => {
                self.directory_in_parts(tx, path)
            }
            Err(error) => Err(error),
        }
    }

    fn permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
    ) -> Result<Permissions, StoreError> {
        let payload = self.call(tx, &Request::GetPerms { path })?;
        text::split(&payload)
            .and_then(|texts| permissions::from_texts(&texts))
            .map_err(|code| code.about(path))
    }

    fn set_permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
        permissions: &Permissions,
    ) -> Result<(), StoreError> {
        let permissions = permissions.clone();
        self.call(tx, &Request::SetPerms { path, permissions }).map(drop)
    }

    fn begin(&self) -> Result<TransactionId, StoreError> {
        let request = Request::TransactionStart;
        let payload = self.call(None, &request)?;
        text::single(&payload)
            .and_then(text::number)
            .map(TransactionId)
            .map_err(|code| code.about(request.subject()))
    }

    fn end(&self, tx: TransactionId, commit: bool) -> Result<(), StoreError> {
        self.call(Some(tx), &Request::TransactionEnd { commit }).map(drop)
    }

    fn watch(&self, path: &str, token: &str) -> Result<(), StoreError> {
        // Registered here before the call: the first event may overtake the answer.
        let watch = (path.to_owned(), token.to_owned());
        self.shared.calls().watches.push(watch);
        let result = self.call(None, &Request::Watch { path, token });
        if result.is_err() {
            self.shared.forget_watch(path, token);
        }
        result.map(drop)
    }

    /// Events that already wait are still delivered.
    fn unwatch(&self, path: &str, token: &str) -> Result<(), StoreError> {
        // Removed here before the call: events that fire meanwhile are unwanted. The store refuses
        // only a watch that does not exist.
        self.shared.forget_watch(path, token);
        self.call(None, &Request::Unwatch { path, token }).map(drop)
    }

    fn event(&self) -> Result<Option<WatchEvent>, StoreError> {
        self.shared.events.pop()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.events.as_fd()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Cannot fail: the counter starts at 0, and this is the only write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(reader) = self.reader.take() {
            // The reader's thread has reported its panic, if any.
            let _ = reader.join();
        }
    }
}

impl Shared {
    fn exchange(
        &self,
        tx: Option<TransactionId>,
        request: &Request<'_>,
    ) -> Result<Message, StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (req_id, answer) = self.expect_answer()?;
        let sent = request
            .message(req_id, tx.map_or(0, |tx| tx.0))
            .map_err(|error| match error {
                WireError::TooLong(_) => ErrorCode::E2big.about(request.subject()),
                WireError::Nul => ErrorCode::Einval.about(request.subject()),
            })
            .and_then(|message| self.send(&message));
        if let Err(error) = sent {
            self.calls().waiting.remove(&req_id);
            return Err(error);
        }
        self.wait(&answer)
    }

    fn wait(&self, answer: &Receiver<Message>) -> Result<Message, StoreError> {
        let timely = answer.recv_timeout(self.timeout).or_else(|error| match error {
            // The answer may have come while this process was stopped or its domain was saved.
            RecvTimeoutError::Timeout => answer.recv_timeout(self.timeout / 20),
            RecvTimeoutError::Disconnected => Err(error),
        });
        timely.map_err(|error| {
            if error == RecvTimeoutError::Timeout {
                // A late answer would be taken for the answer to another request.
                self.fail(&format!("no answer for {} s", self.timeout.as_secs()));
            }
            self.gone()
        })
    }

    /// Takes a number that no other waiting request has.
    fn expect_answer(&self) -> Result<(u32, Receiver<Message>), StoreError> {
        let mut calls = self.calls();
        if let Some(reason) = &calls.gone {
            return Err(StoreError::Gone(reason.clone()));
        }
        let mut req_id = calls.req_id.wrapping_add(1);
        // 0 is what watch events carry.
        while req_id == 0 || calls.waiting.contains_key(&req_id) {
            req_id = req_id.wrapping_add(1);
        }
        calls.req_id = req_id;
        let (sender, answer) = sync_channel(1);
        calls.waiting.insert(req_id, sender);
        Ok((req_id, answer))
    }

    fn send(&self, message: &Message) -> Result<(), StoreError> {
        write_all(&self.stream, &message.to_bytes()).map_err(|error| {
            // A part of the message may be sent already, so the stream cannot be used any more.
            self.fail(&error.to_string());
            self.gone()
        })
    }

    /// Reads until the stream ends, and returns why it ended.
    fn read_until_end(&self, stop: &OwnedFd) -> String {
        let mut decoder = Decoder::new();
        let mut bytes = [0; 4096];
        loop {
            let count = match read_or_stop(&self.stream, stop, &mut bytes) {
                Ok(Some(0)) => return "the other end hung up".to_owned(),
                Ok(Some(count)) => count,
                Ok(None) => return "closed".to_owned(),
                Err(error) => return error.to_string(),
            };
            decoder.push(&bytes[..count]);
            loop {
                match decoder.next_message() {
                    Ok(Some(message)) => self.sort(message),
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                }
            }
        }
    }

    /// Delivers a message to its caller or to the queue. Other messages are dropped.
    fn sort(&self, message: Message) {
        let mut calls = self.calls();
        if message.kind() == Some(Kind::WatchEvent) {
            let Ok(event) = parse_watch_event(message.payload()) else {
                return;
            };
            if let Some(watched) = calls.watched(&event) {
                self.events.push(event, watched);
            }
        } else if let Some(waiting) = calls.waiting.remove(&message.req_id()) {
            // Fails only when the caller has given up.
            let _ = waiting.send(message);
        }
    }

    /// Ends the stream: every waiting and every later call fails.
    fn fail(&self, reason: &str) {
        let mut calls = self.calls();
        calls.gone.get_or_insert_with(|| reason.to_owned());
        calls.waiting.clear();
        drop(calls);
        self.events.close(reason);
    }

    fn gone(&self) -> StoreError {
        let reason = self.calls().gone.clone();
        StoreError::Gone(reason.unwrap_or_else(|| "no answer".to_owned()))
    }

    fn forget_watch(&self, path: &str, token: &str) {
        let mut calls = self.calls();
        let mut watches = calls.watches.iter();
        if let Some(index) = watches.position(|watch| (&*watch.0, &*watch.1) == (path, token)) {
            calls.watches.swap_remove(index);
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for bytes and reads them; none when `stop` becomes readable first.
fn read_or_stop(stream: &OwnedFd, stop: &OwnedFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return Ok(None),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match rustix::io::read(stream, &mut *bytes) {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes all bytes, also to a non-blocking stream.
fn write_all(stream: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::new(stream, PollFlags::OUT)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
