//! Receive buffers that are lent to an ingress queue, against a naive model.

#![allow(clippy::cast_possible_truncation, reason = "lengths and counts of a test")]

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use machine::Machine;
use netback::{RxChannel, TxChannel, VifQueue};
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Egress, Fragment, Frame, Lent, LentBuffer, LentMemory, Outcome, Wanted};
use port_testing::offer;
use proptest::prelude::*;
use shm::Region;
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::{RxRequest, rx_flags};

use crate::common::guest::{DATA, PAGE, PAGES, REQ_PROD, RSP_PROD, RX_RING, Raw};

/// A guest, its backend's RX queue, and what a correct backend may do with its requests.
struct World {
    raw: Raw,
    queue: VifQueue<Machine>,
    memory: LentMemory,
    posted: u32,
    taken: u32,
    /// The ids of requests that are not answered, and the others.
    open: BTreeSet<u16>,
    free: BTreeSet<u16>,
    /// Requests whose grants are bad.
    bad: HashSet<u16>,
    lent: Vec<LentBuffer>,
    ended: Vec<u32>,
    tokens: HashSet<u32>,
}

/// What came with a response: the id, and the bytes of data or an error.
type Answer = (u16, Result<Vec<u8>, i16>);

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let raw = Raw::new(&machine);
        raw.key("request-rx-any-order", 1);
        let mut vif = raw.announce_by(machine, TxChannel::Header, RxChannel::Direct);
        let queue = raw.connect(&mut vif, Features::ALL);
        let memory = queue.rx.lent_memory().unwrap();
        let (open, bad, lent, ended, tokens) = Default::default();
        let (posted, taken) = (0, 0);
        let free = (0..256).collect();
        Self { raw, queue, memory, posted, taken, open, free, bad, lent, ended, tokens }
    }

    /// Posts a request with an id that is not in use.
    fn post(&mut self, is_bad: bool) {
        let Some(id) = self.free.pop_first() else { return };
        let gref = if is_bad { 3 } else { page_of(id) };
        self.raw.write(
            RX_RING,
            Raw::slot::<RxRequest>(self.posted),
            RxRequest { id, pad: 0, gref },
        );
        self.posted += 1;
        self.raw.write(RX_RING, REQ_PROD, self.posted);
        self.open.insert(id);
        if is_bad {
            self.bad.insert(id);
        }
    }

    /// Takes the answers. Each is to a request that was open.
    fn answers(&mut self) -> Vec<Answer> {
        let end: u32 = self.raw.read(RX_RING, RSP_PROD);
        let mut answers = Vec::new();
        let mut is_extra = false;
        for n in self.taken..end {
            let response = self.raw.response(n);
            let (id, answer) = if std::mem::take(&mut is_extra) {
                let info: ExtraInfo = zerocopy::transmute!(response);
                let Ok(Extra::Gso { features, .. }) = Extra::decode(&info) else { panic!() };
                (features, Ok(Vec::new()))
            } else {
                is_extra = response.flags & rx_flags::EXTRA_INFO != 0;
                let answer = match response.status {
                    1.. => Ok(self.raw.received(page_of(response.id), response)),
                    error => Err(error),
                };
                (response.id, answer)
            };
            assert!(self.open.remove(&id), "request {id} is answered twice");
            self.free.insert(id);
            self.bad.remove(&id);
            answers.push((id, answer));
        }
        self.taken = end;
        answers
    }

    fn lend(&mut self, buffers: usize) {
        let mut lent = Vec::new();
        self.queue.rx.lend(Wanted { buffers, held: true }, &mut lent).unwrap();
        assert!(lent.len() <= buffers);
        for (_, answer) in self.answers() {
            assert!(answer.is_err(), "only bad grants are answered");
        }
        for buffer in &lent {
            assert!(self.tokens.insert(buffer.token), "a token is given twice");
        }
        self.lent.extend(lent);
    }

    /// Delivers a frame that was copied.
    fn deliver(&mut self, len: u32) {
        let region: Arc<[Region]> = [Region::anonymous(70_000).unwrap()].into();
        let (mut frame, bytes) = frame(len);
        frame.fragments.push(Fragment::in_region(0, 0, (len - 64) as u16));
        region[0].copy_in(0, &bytes[64..]).unwrap();
        let body = Body::Regions(&region);
        let outcome = offer(&mut self.queue.rx, body, &frame, Duration::ZERO);
        let answers = self.answers();
        if outcome.unwrap() == Outcome::Delivered {
            let got: Vec<u8> = answers.iter().flat_map(|(_, data)| data.clone().unwrap()).collect();
            // A page may be in several requests.
            let pages: HashSet<_> = answers.iter().map(|(id, _)| page_of(*id)).collect();
            assert!(pages.len() < answers.len() || got == bytes, "a frame came changed");
        }
    }

    /// Fills lent buffers as a device does, and delivers the frame.
    fn deliver_lent(&mut self, len: u32, gso: bool) {
        let pages = len.div_ceil(PAGE as u32) as usize;
        let count = pages + usize::from(gso);
        if self.lent.len() < count {
            return;
        }
        let buffers: Vec<_> = self.lent.drain(..count).collect();
        let (mut frame, bytes) = frame(len);
        if gso {
            frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000 });
            frame.checksum = Checksum::Partial;
        }
        let tokens = buffers.iter().map(|buffer| buffer.token).collect();
        frame.lent = Lent { lender: self.memory.lender, tokens, has_header: false, offset: 0 };
        for (n, chunk) in bytes.chunks(PAGE).enumerate() {
            let skip = if n == 0 { 64 } else { 0 };
            let at = buffers[n].offset as usize + skip;
            self.memory.region.copy_in(at, &chunk[skip..]).unwrap();
            frame.fragments.push(Fragment::in_region(0, at as u64, (chunk.len() - skip) as u16));
        }
        let regions: Arc<[Region]> = [self.memory.region.share().unwrap()].into();
        let body = Body::Regions(&regions);
        let outcome = offer(&mut self.queue.rx, body, &frame, Duration::ZERO);
        assert_eq!(outcome, Ok(Outcome::Delivered));
        let distinct: HashSet<_> = buffers.iter().map(|buffer| buffer.offset).collect();
        let expected: Vec<_> = buffers.iter().map(|buffer| buffer.offset / PAGE as u64).collect();
        let answers = self.answers();
        assert_eq!(answers.len(), count, "each buffer is handed over");
        let seen: HashSet<_> = answers.iter().map(|(id, _)| u64::from(page_of(*id))).collect();
        assert_eq!(seen, expected.into_iter().collect());
        let got: Vec<u8> = answers.iter().flat_map(|(_, data)| data.clone().unwrap()).collect();
        if distinct.len() == count {
            assert!(got == bytes, "a frame came changed");
        }
        self.ended.extend(buffers.iter().map(|buffer| buffer.token));
    }

    fn take_back(&mut self, count: usize) {
        let count = count.min(self.lent.len());
        let tokens: Vec<_> = self.lent.drain(..count).map(|buffer| buffer.token).collect();
        self.queue.rx.take_back(&tokens);
        self.ended.extend(tokens);
    }
}

/// The page of a request's buffer.
fn page_of(id: u16) -> u32 {
    DATA + u32::from(id) % (PAGES - DATA)
}

/// A TCP frame of `len` bytes, of which 64 are its header; and its bytes.
fn frame(len: u32) -> (Frame, Vec<u8>) {
    let mut bytes: Vec<u8> = (0..len).map(|n| (n * 7 + n / 251 + len) as u8).collect();
    bytes[..54].fill(0);
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    bytes[14] = 0x45;
    let total = u16::try_from(len - 14).unwrap();
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    (bytes[22], bytes[23]) = (64, 6);
    bytes[46] = 0x50;
    let mut frame = Frame::empty();
    frame.set_header(&bytes[..64]).unwrap();
    frame.headers = wire::headers::Headers::parse_start(&bytes[..64], len as usize).unwrap();
    frame.len = len;
    (frame, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each request is answered exactly once, lent or not, and none is lost.
    #[test]
    fn every_request_is_answered_once(
        steps in prop::collection::vec((0u8..9, 1u32..60_000), 1..300),
    ) {
        let mut world = World::new();
        for (step, n) in steps {
            match step {
                0..=2 => (0..n % 64).for_each(|_| world.post(false)),
                3 => world.post(true),
                4 => world.lend(n as usize % 40),
                5 => world.deliver(65 + n % 9000),
                6 => world.deliver_lent(65 + n % 20_000, n % 3 == 0),
                7 => world.take_back(n as usize % 20),
                // Loans that have ended, and some that never were.
                _ => {
                    let mut tokens = world.ended.clone();
                    tokens.extend([n, u32::MAX]);
                    let lent: HashSet<_> = world.lent.iter().map(|lent| lent.token).collect();
                    tokens.retain(|token| !lent.contains(token));
                    world.queue.rx.take_back(&tokens);
                }
            }
        }
        world.take_back(usize::MAX);
        // All requests can still be used.
        for _ in 0..600 {
            if world.open.is_empty() {
                break;
            }
            world.deliver(65);
        }
        prop_assert!(world.open.is_empty(), "{} requests are lost", world.open.len());
    }
}

/// A guest that posts too few buffers lends none, and keeps them for what others send.
#[test]
fn a_guest_with_few_buffers_lends_none() {
    let mut world = World::new();
    (0..32).for_each(|_| world.post(false));
    world.lend(100);
    assert!(world.lent.is_empty());
    (0..10).for_each(|_| world.post(false));
    world.lend(100);
    assert_eq!(world.lent.len(), 10);
    world.deliver(1000);
    world.deliver_lent(1000, false);
    assert_eq!(world.open.len(), 40);
}

/// Buffers whose grants are bad, read-only or of pages that do not exist are answered with errors.
#[test]
fn bad_buffers_are_not_lent() {
    let mut world = World::new();
    (0..40).for_each(|n| world.post(n < 8));
    world.raw.grant(3, 5, 0, DATA);
    world.lend(8);
    assert!(world.lent.is_empty() && world.bad.is_empty());
    assert_eq!(world.open.len(), 32);
}

/// A frontend that does not know the feature gets its responses in order, and lends nothing.
#[test]
fn a_stock_frontend_lends_nothing() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce_by(machine, TxChannel::Header, RxChannel::Direct);
    let queue = raw.connect(&mut vif, Features::ALL);
    assert!(queue.rx.lent_memory().is_none());
}
