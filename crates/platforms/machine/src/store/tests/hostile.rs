//! Guests that do not keep to the protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hypervisor::DomId;
use proptest::prelude::*;
use xenstore::wire::{Decoder, HEADER_LEN, Kind, Message, OK};
use xenstore::{Store, StoreError};

use super::super::serve::{self, serve};
use super::super::{StoreHub, quota};
use super::{GUEST, events, machine};

/// A socket without a client behind it.
struct Raw {
    stream: UnixStream,
    decoder: Decoder,
    server: JoinHandle<()>,
}

impl Raw {
    fn connect(hub: &StoreHub, domid: DomId) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        Self {
            stream,
            decoder: Decoder::new(),
            server: serve(hub.clone(), domid, theirs.into()).unwrap(),
        }
    }

    /// Sends one message and returns its reply; skips events.
    fn ask(&mut self, kind: u32, tx_id: u32, payload: &[u8]) -> Message {
        self.stream.write_all(&raw(kind, tx_id, payload)).unwrap();
        loop {
            match self.decoder.next_message().unwrap() {
                Some(event) if event.kind() == Some(Kind::WatchEvent) => {}
                Some(reply) => return reply,
                None => self.read_more(),
            }
        }
    }

    fn read_more(&mut self) {
        let mut bytes = [0; 4096];
        let count = self.stream.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "the server hung up");
        self.decoder.push(&bytes[..count]);
    }

    fn is_alive(&mut self) -> bool {
        self.ask(Kind::GetDomainPath.number(), 0, b"5\0").payload() == b"/local/domain/5\0"
    }
}

fn raw(kind: u32, tx_id: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    let words = [kind, 1, tx_id, len];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn malformed_requests_are_refused_and_the_connection_lives() {
    let (hub, ..) = machine();
    let mut guest = Raw::connect(&hub, GUEST);
    let refused: [(u32, &[u8], &[u8]); 12] = [
        (0, b"", b"ENOSYS\0"),
        (15, b"a\0b\0", b"ENOSYS\0"),
        (20, b"", b"ENOSYS\0"),
        (0xffff, b"a\0", b"ENOSYS\0"),
        (Kind::SetTarget.number(), b"5\x006\0", b"ENOSYS\0"),
        (Kind::Read.number(), b"a", b"EINVAL\0"),
        (Kind::Read.number(), b"\xff\0", b"EINVAL\0"),
        (Kind::Write.number(), b"a\0\xff", b"EINVAL\0"),
        (Kind::Introduce.number(), b"6\x001\x001\0", b"EACCES\0"),
        (Kind::Release.number(), b"6\0", b"EACCES\0"),
        (Kind::IsDomainIntroduced.number(), b"6\0", b"EACCES\0"),
        (Kind::TransactionEnd.number(), b"T\0", b"ENOENT\0"),
    ];
    for (kind, payload, name) in refused {
        let reply = guest.ask(kind, 0, payload);
        assert_eq!(reply.kind(), Some(Kind::Error), "{kind} {payload:?}");
        assert_eq!(reply.payload(), name, "{kind} {payload:?}");
        assert_eq!((reply.req_id(), reply.tx_id()), (1, 0));
    }
    let nested = guest.ask(Kind::TransactionStart.number(), 9, b"\0");
    assert_eq!(nested.payload(), b"EBUSY\0");
    assert!(guest.is_alive());
}

#[test]
fn an_oversized_request_closes_only_its_connection() {
    let (hub, ..) = machine();
    let mut neighbour = Raw::connect(&hub, GUEST);
    let mut guest = Raw::connect(&hub, GUEST);
    let mut header = raw(Kind::Read.number(), 0, b"");
    header[12..HEADER_LEN].copy_from_slice(&u32::MAX.to_le_bytes());
    guest.stream.write_all(&header).unwrap();
    assert_eq!(guest.stream.read(&mut [0]).unwrap(), 0);
    guest.server.join().unwrap();
    assert!(neighbour.is_alive());
}

/// XSA-326: answers nobody reads must not pile up.
#[test]
fn a_guest_that_does_not_read_is_disconnected() {
    let (hub, _dom0, local, _other) = machine();
    local.write(None, "big", &"v".repeat(quota::VALUE)).unwrap();
    let mut guest = Raw::connect(&hub, GUEST);
    let request = raw(Kind::Read.number(), 0, b"big\0");
    while guest.stream.write_all(&request).is_ok() {}
    guest.server.join().unwrap();
    assert_eq!(local.read(None, "big").unwrap().len(), quota::VALUE);
}

/// Events nobody reads are bounded too, and harm neither the writer nor the connection.
#[test]
fn a_guest_that_reads_late_finds_its_events() {
    let (hub, dom0, ..) = machine();
    let mut guest = Raw::connect(&hub, GUEST);
    assert_eq!(guest.ask(Kind::Watch.number(), 0, b"dir\0token\0").payload(), OK);
    for n in 0..20_000 {
        let path = format!("/local/domain/5/dir/{n}");
        dom0.write(None, &path, "").unwrap();
        dom0.remove(None, &path).unwrap();
    }
    assert!(guest.is_alive());
}

/// The server's thread must end even if the guest keeps its end open and reads nothing.
#[test]
fn a_forgotten_guest_that_does_not_read_is_disconnected() {
    let (hub, dom0, ..) = machine();
    let mut guest = Raw::connect(&hub, GUEST);
    let token = "t".repeat(2000);
    let watch = format!("dir\0{token}\0");
    assert_eq!(guest.ask(Kind::Watch.number(), 0, watch.as_bytes()).payload(), OK);
    for n in 0..600 {
        dom0.write(None, &format!("/local/domain/5/dir/{n}"), "").unwrap();
    }
    hub.forget(GUEST);
    guest.server.join().unwrap();
    drop(guest.stream);
}

#[test]
fn reset_drops_watches_and_transactions() {
    let (hub, ..) = machine();
    let mut guest = Raw::connect(&hub, GUEST);
    guest.ask(Kind::Watch.number(), 0, b"a\0t\0");
    let tx = guest.ask(Kind::TransactionStart.number(), 0, b"\0");
    let tx: u32 = xenstore::wire::text::single(tx.payload()).unwrap().parse().unwrap();
    assert_eq!(guest.ask(Kind::ResetWatches.number(), 0, b"\0").payload(), OK);
    assert_eq!(guest.ask(Kind::Unwatch.number(), 0, b"a\0t\0").payload(), b"ENOENT\0");
    assert_eq!(guest.ask(Kind::Read.number(), tx, b"a\0").payload(), b"ENOENT\0");
}

#[test]
fn domain_0_introduces_a_domain_over_the_wire() {
    let (hub, dom0, ..) = machine();
    dom0.watch("@introduceDomain", "t").unwrap();
    dom0.watch("@releaseDomain", "t").unwrap();
    events(&dom0);
    let mut toolstack = Raw::connect(&hub, DomId(0));
    assert_eq!(toolstack.ask(Kind::Introduce.number(), 0, b"5\x001\x001\0").payload(), OK);
    assert!(hub.is_introduced(GUEST));
    let known = Kind::IsDomainIntroduced.number();
    assert_eq!(toolstack.ask(known, 0, b"5\0").payload(), b"T\0");
    assert_eq!(toolstack.ask(Kind::Release.number(), 0, b"5\0").payload(), OK);
    assert_eq!(toolstack.ask(known, 0, b"5\0").payload(), b"F\0");
    assert_eq!(events(&dom0).len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing that a guest sends changes its neighbours or the keys outside its home.
    #[test]
    fn garbage_harms_only_its_sender(
        messages in prop::collection::vec(
            (0u32..24, 0u32..3, prop::collection::vec(
                prop_oneof![prop::sample::select(b"\0\0/a@localdomin56Trnb01".to_vec()), any::<u8>()],
                0..40,
            )),
            0..20,
        ),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let (hub, dom0, _local, other) = machine();
        other.write(None, "key", "value").unwrap();
        let mut guest = Raw::connect(&hub, GUEST);
        for (kind, tx_id, payload) in &messages {
            guest.ask(*kind, *tx_id, payload);
        }
        // The server may have closed already, on an earlier byte of the tail.
        let _ = guest.stream.write_all(&tail);
        drop(guest.stream);
        guest.server.join().unwrap();
        prop_assert_eq!(other.read(None, "key"), Ok("value".to_owned()));
        prop_assert_eq!(other.event(), Ok::<_, StoreError>(None));
        prop_assert_eq!(dom0.directory(None, "/").unwrap(), ["local"]);
        prop_assert_eq!(dom0.directory(None, "/local/domain").unwrap(), ["5", "6"]);
    }
}

#[test]
fn a_guest_that_floods_the_store_waits_alone() {
    const BEYOND: u32 = 300;
    let (hub, ..) = machine();
    let mut flooder = Raw::connect(&hub, GUEST);
    let start = Instant::now();
    let flood = std::thread::spawn(move || {
        for _ in 0..serve::REQUESTS + BEYOND {
            assert!(flooder.is_alive());
        }
        flooder
    });
    // Another guest is not asked to wait, however long the first one does.
    let mut other = Raw::connect(&hub, DomId(77));
    for _ in 0..100 {
        assert!(other.is_alive());
    }
    flood.join().unwrap();
    let least = Duration::from_secs(1) * BEYOND / serve::REQUESTS_PER_SECOND;
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}
