//! A port that does what a test says, and a reader of capture files that knows only what the
//! format's draft says.
#![allow(dead_code, reason = "each test file uses what it needs")]

#[path = "../../../../packets/offload/tests/common/mod.rs"]
pub mod frames;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capture::{Capture, CapturePoint, Options, Totals};
use offload::{Checksum, Gso};
use port::{
    Armed, Body, Broken, Budget, Doorbell, Egress, Event, Frame, HEADER_MAX, Ingress, Offer,
    Outcome, Outcomes, Piece, Queue, Received, WINDOW, Window,
};
use shm::Region;
use wire::headers::Headers;

/// Bytes of the region that each slot's body has.
const BODY: usize = 1 << 16;

/// What a guest sends.
#[derive(Clone, Debug)]
pub struct Sent {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

impl From<Vec<u8>> for Sent {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, checksum: Checksum::Unknown, gso: None }
    }
}

/// The ingress side: takes in what a test has put into `sent`.
pub struct FakeIngress {
    window: Window,
    regions: Arc<[Region]>,
    sent: Arc<Mutex<VecDeque<Sent>>>,
    /// How often the bodies were asked for.
    with_body: Arc<AtomicUsize>,
}

impl Ingress for FakeIngress {
    fn event(&self) -> Arc<dyn Event> {
        Arc::new(Doorbell::new().unwrap())
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, _budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !self.window.is_full() {
            let Some(sent) = self.sent.lock().unwrap().pop_front() else { break };
            let (slot, frame) = self.window.push().unwrap();
            place(frame, &sent, &self.regions[0], slot * BODY);
            received.fresh += 1;
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.with_body.fetch_add(1, Ordering::Relaxed);
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Asleep)
    }
}

/// Makes a frame of `sent`, whose body lies at `offset` in two pieces.
fn place(frame: &mut Frame, sent: &Sent, region: &Region, offset: usize) {
    let (header, body) = sent.bytes.split_at(sent.bytes.len().min(HEADER_MAX));
    *frame = Frame::empty();
    frame.bytes[..header.len()].copy_from_slice(header);
    frame.header_len = u8::try_from(header.len()).unwrap();
    frame.len = u32::try_from(sent.bytes.len()).unwrap();
    frame.headers = Headers::parse(header).unwrap();
    frame.checksum = sent.checksum;
    frame.gso = sent.gso;
    region.copy_in(offset, body).unwrap();
    let (first, second) = body.split_at(body.len() / 3);
    for (start, piece) in [(0, first), (first.len(), second)] {
        if !piece.is_empty() {
            let len = u16::try_from(piece.len()).unwrap();
            frame.pieces.push(Piece::in_region(0, (offset + start) as u64, len));
        }
    }
}

/// The egress side: says what a test has put into `outcomes`, then that frames are delivered.
pub struct FakeEgress {
    outcomes: Arc<Mutex<VecDeque<Outcome>>>,
}

impl Egress for FakeEgress {
    fn deliver(
        &mut self,
        _body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            let outcome = self.outcomes.lock().unwrap().pop_front();
            offer.outcome = outcome.unwrap_or(Outcome::Delivered);
        }
        Ok(())
    }
}

/// A wrapped queue, and a hand on what is behind it.
pub struct Port {
    pub queue: Queue,
    pub sent: Arc<Mutex<VecDeque<Sent>>>,
    pub outcomes: Arc<Mutex<VecDeque<Outcome>>>,
    pub with_body: Arc<AtomicUsize>,
}

impl Port {
    pub fn wrapped(point: &CapturePoint) -> Self {
        let sent = Arc::<Mutex<_>>::default();
        let outcomes = Arc::<Mutex<_>>::default();
        let with_body = Arc::<AtomicUsize>::default();
        let ingress = FakeIngress {
            window: Window::new(),
            regions: Arc::new([Region::anonymous(WINDOW * BODY).unwrap()]),
            sent: Arc::clone(&sent),
            with_body: Arc::clone(&with_body),
        };
        let egress = FakeEgress { outcomes: Arc::clone(&outcomes) };
        let queue = Queue { ingress: Box::new(ingress), egress: Box::new(egress) };
        Self { queue: point.wrap(queue), sent, outcomes, with_body }
    }

    /// Takes frames in; they stay in the window.
    pub fn receive(&mut self, frames: impl IntoIterator<Item = impl Into<Sent>>) {
        self.sent.lock().unwrap().extend(frames.into_iter().map(Into::into));
        let mut received = Received::default();
        self.queue.ingress.receive(&mut Budget::TURN.clone(), &mut received).unwrap();
    }

    /// Says what became of the frames in the window, in their order; nothing of those further on.
    pub fn finish(&mut self, outcomes: &[Outcome]) {
        let mut by_slot = [Outcome::Waiting; WINDOW];
        for (slot, outcome) in self.queue.ingress.window().order().iter().zip(outcomes) {
            by_slot[usize::from(*slot)] = *outcome;
        }
        self.queue.ingress.finish(&by_slot);
    }

    /// Takes frames in and has them delivered.
    pub fn carry(&mut self, frames: impl IntoIterator<Item = impl Into<Sent>>) {
        self.receive(frames);
        self.finish(&[Outcome::Delivered; WINDOW]);
    }

    /// Offers the frames in `from`'s window to this port, which says these outcomes.
    pub fn offer(&mut self, from: &Port, outcomes: &[Outcome]) {
        self.outcomes.lock().unwrap().extend(outcomes);
        let window = from.queue.ingress.window();
        let mut offers: Vec<_> =
            window.order().iter().map(|slot| Offer::new(window.frame(*slot))).collect();
        let egress = &mut self.queue.egress;
        from.queue.ingress.with_body(&mut |body| {
            egress.deliver(body, &mut offers, Duration::ZERO).unwrap();
        });
    }
}

/// A TCP frame whose source port is `number` and whose payload has `len` bytes.
pub fn tcp_frame(number: u16, len: usize) -> Vec<u8> {
    let network = frames::Network { vlan_tags: 0, v6: false, options: 0, ident: 7, addresses: 258 };
    let tcp = frames::Tcp { seq: 1000, flags: 0x18, options: 0 };
    let mut frame = network.tcp_frame(&tcp, &frames::payload(len));
    frame[34..36].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The source port that [`tcp_frame`] was given.
pub fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[34], bytes[35]])
}

pub fn start(point: &CapturePoint, options: &Options) -> Capture {
    point.start(options).unwrap_or_else(|error| panic!("{error}"))
}

/// What the capture has by now, which ends it.
pub fn file_of(capture: Capture) -> (Vec<u8>, Totals) {
    let mut file = Vec::new();
    let totals = capture.run(&mut file, &mut || true).unwrap();
    (file, totals)
}

/// What the capture has by now, taken apart.
pub fn packets_of(capture: Capture) -> Vec<Captured> {
    packets(&file_of(capture).0)
}

/// A packet of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub timestamp: u64,
    pub original_len: u32,
    pub bytes: Vec<u8>,
    pub flags: u32,
    pub comment: Option<String>,
}

impl Captured {
    /// 1 is inbound, 2 outbound.
    pub fn direction(&self) -> u32 {
        self.flags & 3
    }
}

/// The blocks of a capture file: type and content.
pub fn blocks(file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut blocks = Vec::new();
    let mut rest = file;
    while !rest.is_empty() {
        let len = u32_at(rest, 4) as usize;
        assert!(len.is_multiple_of(4) && len <= rest.len());
        assert_eq!(u32_at(rest, len - 4) as usize, len, "both lengths");
        blocks.push((u32_at(rest, 0), &rest[8..len - 4]));
        rest = &rest[len..];
    }
    blocks
}

/// The packets of a capture file.
pub fn packets(file: &[u8]) -> Vec<Captured> {
    let enhanced = blocks(file).into_iter().filter(|(kind, _)| *kind == 6);
    enhanced.map(|(_, block)| packet(block)).collect()
}

fn packet(block: &[u8]) -> Captured {
    let len = u32_at(block, 12) as usize;
    let mut packet = Captured {
        timestamp: u64::from(u32_at(block, 4)) << 32 | u64::from(u32_at(block, 8)),
        original_len: u32_at(block, 16),
        bytes: block[20..20 + len].to_vec(),
        flags: 0,
        comment: None,
    };
    for (code, value) in options(&block[20 + len.next_multiple_of(4)..]) {
        match code {
            1 => packet.comment = Some(String::from_utf8(value.to_vec()).unwrap()),
            2 => packet.flags = u32_at(value, 0),
            _ => panic!("option {code}"),
        }
    }
    packet
}

/// The options at the end of a block: code and value.
pub fn options(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut options = Vec::new();
    loop {
        let word = |at: usize| u16::from_le_bytes([rest[at], rest[at + 1]]);
        let (code, len) = (word(0), usize::from(word(2)));
        if code == 0 {
            assert_eq!(rest, [0; 4], "the end of the options is the end of the block");
            return options;
        }
        options.push((code, &rest[4..4 + len]));
        rest = &rest[4 + len.next_multiple_of(4)..];
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
