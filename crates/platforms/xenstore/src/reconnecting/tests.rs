//! A store that comes and goes, played by threads that know one key and grant every watch.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use super::*;
use crate::wire::{Decoder, Kind, Message, OK, text, watch_event};

/// How long each step may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A store that can be stopped and started again.
#[derive(Default)]
struct FakeServer {
    closed: AtomicBool,
    /// The ends of the connections it has served.
    streams: Mutex<Vec<UnixStream>>,
}

impl FakeServer {
    fn connect(self: &Arc<Self>) -> io::Result<OwnedFd> {
        if self.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = UnixStream::pair()?;
        self.streams.lock().unwrap().push(ours.try_clone()?);
        std::thread::spawn(move || serve(ours));
        Ok(theirs.into())
    }

    fn stop(&self) {
        self.closed.store(true, Ordering::Release);
        for stream in self.streams.lock().unwrap().drain(..) {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }

    fn restart(&self) {
        self.closed.store(false, Ordering::Release);
    }
}

fn serve(mut stream: UnixStream) {
    let mut decoder = Decoder::new();
    let mut bytes = [0; 256];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        decoder.push(&bytes[..count]);
        while let Some(request) = decoder.next_message().unwrap() {
            let kind = request.kind().unwrap();
            let payload = if kind == Kind::Read { b"value".to_vec() } else { OK.to_vec() };
            let reply = Message::new(kind, request.req_id(), 0, payload).unwrap();
            let mut answer = reply.to_bytes();
            if kind == Kind::Watch {
                let [path, token] = text::split(request.payload()).unwrap()[..] else { panic!() };
                answer.extend(watch_event(&event(path, token)).unwrap().to_bytes());
            }
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }
}

fn next(store: &Reconnecting) -> WatchEvent {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(event) = store.event().unwrap() {
            return event;
        }
        let left = deadline.checked_duration_since(Instant::now()).expect("no event came");
        let timeout = Timespec::try_from(left).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(store.event_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).unwrap();
    }
}

fn event(path: &str, token: &str) -> WatchEvent {
    WatchEvent { path: path.to_owned(), token: token.to_owned() }
}

#[test]
fn a_store_that_comes_back_has_all_watches_again() {
    let server = Arc::new(FakeServer::default());
    let (notices, noticed) = mpsc::channel();
    let notice = move |reason: Option<&StoreError>| notices.send(reason.is_some()).unwrap();
    let connect = {
        let server = server.clone();
        move || server.connect()
    };
    let store = Reconnecting::new(Box::new(connect), Box::new(notice)).unwrap();
    store.watch("backend/vif", "backends").unwrap();
    store.watch("old", "old").unwrap();
    assert_eq!(next(&store), event("backend/vif", "backends"));
    assert_eq!(next(&store), event("old", "old"));
    assert_eq!(store.read(None, "key"), Ok("value".to_owned()));

    server.stop();
    assert_eq!(noticed.recv_timeout(TIMEOUT), Ok(true));
    assert!(matches!(store.read(None, "key"), Err(StoreError::Gone(_))));
    store.watch("device/state", "5/0").unwrap();
    assert!(matches!(store.unwatch("old", "old"), Err(StoreError::Gone(_))));
    assert_eq!(store.event(), Ok(None));

    server.restart();
    assert_eq!(noticed.recv_timeout(TIMEOUT), Ok(false));
    assert_eq!(next(&store), event("backend/vif", "backends"));
    assert_eq!(next(&store), event("device/state", "5/0"));
    assert_eq!(store.event(), Ok(None), "what is not watched any more stays so");
    assert_eq!(store.read(None, "key"), Ok("value".to_owned()));
}

#[test]
fn a_store_that_is_not_there_at_first_is_an_error() {
    let refuse = || Err(io::ErrorKind::ConnectionRefused.into());
    let error = Reconnecting::new(Box::new(refuse), Box::new(|_| ())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn dropping_ends_it_whether_the_store_is_there_or_not() {
    for away in [false, true] {
        let server = Arc::new(FakeServer::default());
        let (notices, noticed) = mpsc::channel();
        let notice = move |_: Option<&StoreError>| notices.send(()).unwrap();
        let connect = {
            let server = server.clone();
            move || server.connect()
        };
        let store = Reconnecting::new(Box::new(connect), Box::new(notice)).unwrap();
        if away {
            server.stop();
            noticed.recv_timeout(TIMEOUT).unwrap();
        }
        drop(store);
    }
}
