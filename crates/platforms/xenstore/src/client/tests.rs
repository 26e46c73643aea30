//! The client against a scripted store.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use super::*;
use crate::wire::{OK, watch_event};

/// The store's end of the stream.
struct Peer {
    stream: UnixStream,
    decoder: Decoder,
}

impl Peer {
    fn pair() -> (Client, Self) {
        Self::pair_with_timeout(TIMEOUT)
    }

    fn pair_with_timeout(timeout: Duration) -> (Client, Self) {
        let (ours, stream) = UnixStream::pair().unwrap();
        let client = Client::with_timeout(ours.into(), timeout).unwrap();
        let decoder = Decoder::new();
        (client, Self { stream, decoder })
    }

    fn receive(&mut self) -> Message {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                return message;
            }
            let mut bytes = [0; 64];
            let count = self.stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the client hung up");
            self.decoder.push(&bytes[..count]);
        }
    }

    /// Asserts that the client sends nothing more before it has an answer.
    fn hear_nothing(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let more = self.stream.read(&mut [0]).unwrap_err();
        assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(None).unwrap();
    }

    fn send(&mut self, message: &Message) {
        self.stream.write_all(&message.to_bytes()).unwrap();
    }

    fn answer(&mut self, request: &Message, payload: &[u8]) {
        let kind = request.kind().unwrap();
        self.send(&Message::new(kind, request.req_id(), 0, payload.to_vec()).unwrap());
    }

    fn refuse(&mut self, request: &Message, name: &str) {
        let payload = text::join([name]).unwrap();
        self.send(&Message::new(Kind::Error, request.req_id(), 0, payload).unwrap());
    }
}

fn wait_readable(client: &Client) {
    poll(&mut [PollFd::from_borrowed_fd(client.event_fd(), PollFlags::IN)], None).unwrap();
}

fn event(path: &str, token: &str) -> WatchEvent {
    WatchEvent { path: path.to_owned(), token: token.to_owned() }
}

#[test]
fn a_store_that_does_not_answer_is_given_up() {
    let (client, mut peer) = Peer::pair_with_timeout(Duration::from_millis(40));
    assert!(matches!(client.read(None, "a"), Err(StoreError::Gone(_))));
    let request = peer.receive();
    peer.answer(&request, b"late");
    assert!(matches!(client.read(None, "b"), Err(StoreError::Gone(_))));
    wait_readable(&client);
    assert!(matches!(client.event(), Err(StoreError::Gone(_))));
}

#[test]
fn callers_take_turns_and_each_gets_its_own_answer() {
    let (client, mut peer) = Peer::pair();
    thread::scope(|scope| {
        for path in ["a", "b", "c"] {
            let client = &client;
            scope.spawn(move || assert_eq!(client.read(None, path).unwrap(), path));
        }
        for _ in 0..3 {
            let request = peer.receive();
            peer.hear_nothing();
            let path = text::single(request.payload()).unwrap().to_owned();
            peer.answer(&request, path.as_bytes());
        }
    });
}

#[test]
fn errors_are_about_the_path_asked_for() {
    let (client, mut peer) = Peer::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            for name in ["ENOENT", "ESOMETHINGNEW"] {
                let request = peer.receive();
                peer.refuse(&request, name);
            }
        });
        assert_eq!(client.read(None, "key"), Err(StoreError::NotFound("key".into())));
        assert_eq!(client.mkdir(None, "key"), Err(StoreError::Invalid("key".into())));
    });
}

#[test]
fn what_cannot_be_sent_is_refused_here() {
    let (client, _peer) = Peer::pair();
    let long = "x".repeat(5000);
    assert_eq!(client.write(None, "key", &long), Err(StoreError::Quota("E2BIG")));
    assert_eq!(client.read(None, "a\0b"), Err(StoreError::Invalid("a\0b".into())));
}

#[test]
fn transactions_carry_their_number() {
    let (client, mut peer) = Peer::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = peer.receive();
            peer.answer(&request, b"4294967295\0");
            let request = peer.receive();
            assert_eq!(request.tx_id(), u32::MAX);
            assert_eq!(request.payload(), b"T\0");
            peer.refuse(&request, "EAGAIN");
        });
        let tx = client.begin().unwrap();
        assert_eq!(client.end(tx, true), Err(StoreError::Conflict));
    });
}

#[test]
fn events_wait_apart_from_replies() {
    let (client, mut peer) = Peer::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = peer.receive();
            // Events before the answer, one of them of an unknown watch.
            for event in [event("a/b", "t"), event("a/b", "other")] {
                peer.send(&watch_event(&event).unwrap());
            }
            peer.answer(&request, OK);
            let request = peer.receive();
            peer.answer(&request, OK);
            peer.send(&watch_event(&event("a/b", "t")).unwrap());
            let request = peer.receive();
            peer.answer(&request, b"value");
        });
        client.watch("a", "t").unwrap();
        wait_readable(&client);
        assert_eq!(client.event(), Ok(Some(event("a/b", "t"))));
        assert_eq!(client.event(), Ok(None));
        client.unwatch("a", "t").unwrap();
        assert_eq!(client.read(None, "a").unwrap(), "value");
        assert_eq!(client.event(), Ok(None), "the watch was taken back");
    });
}

#[test]
fn long_lists_come_in_parts_and_start_again_when_they_change() {
    let (client, mut peer) = Peer::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = peer.receive();
            assert_eq!(request.kind(), Some(Kind::Directory));
            peer.refuse(&request, "E2BIG");
            let script: [(&[u8], &[u8]); 4] = [
                (b"dir\x000\0", b"1\0old\0"),
                (b"dir\x004\0", b"2\0b\0\0"),
                (b"dir\x000\0", b"2\0a\0"),
                (b"dir\x002\0", b"2\0b\0\0"),
            ];
            for (asked, part) in script {
                let request = peer.receive();
                assert_eq!(request.payload(), asked);
                peer.answer(&request, part);
            }
        });
        assert_eq!(client.directory(None, "dir").unwrap(), ["a", "b"]);
    });
}

#[test]
fn hang_up_answers_every_waiting_and_later_call() {
    let (client, mut peer) = Peer::pair();
    thread::scope(|scope| {
        let callers = ["a", "b"].map(|path| {
            let client = &client;
            scope.spawn(move || client.read(None, path))
        });
        // One waits for its answer, the other for its turn.
        peer.receive();
        drop(peer);
        for caller in callers {
            assert!(matches!(caller.join().unwrap(), Err(StoreError::Gone(_))));
        }
    });
    wait_readable(&client);
    assert!(matches!(client.event(), Err(StoreError::Gone(_))));
    assert!(matches!(client.begin(), Err(StoreError::Gone(_))));
}

#[test]
fn a_stream_that_makes_no_sense_is_given_up() {
    let (client, mut peer) = Peer::pair();
    peer.stream.write_all(&[0xff; 16]).unwrap();
    wait_readable(&client);
    assert!(matches!(client.event(), Err(StoreError::Gone(_))));
}

#[test]
fn dropping_the_client_hangs_up() {
    let (client, mut peer) = Peer::pair();
    drop(client);
    assert_eq!(peer.stream.read(&mut [0]).unwrap(), 0);
}
