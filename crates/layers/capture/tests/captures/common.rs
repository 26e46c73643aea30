//! A port that does what a test says, and a reader of capture files that knows only what the
//! format's draft says.
#[allow(dead_code, reason = "tests of offloads use the rest")]
#[path = "../../../../packets/offload/tests/segments/common.rs"]
pub mod frames;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capture::{Capture, CapturePoint, Options, Totals};
use offload::{Checksum, Gso, GsoKind};
use port::{Budget, Offer, Outcome, Queue, Received, Rewrap, WINDOW};
use port_testing::{FakeEgress, Sender, Sent};

/// A wrapped queue, and what is behind it.
pub struct Port {
    pub queue: Queue,
    pub sender: Sender,
    /// The answers to the next frames offered; then they are delivered.
    outcomes: Arc<Mutex<VecDeque<Outcome>>>,
}

impl Port {
    pub fn wrapped(point: &CapturePoint) -> Self {
        let outcomes = Arc::<Mutex<VecDeque<_>>>::default();
        let (sender, ingress) = Sender::new();
        let answers = Arc::clone(&outcomes);
        let egress = FakeEgress::new(move |_, _| {
            Ok(answers.lock().unwrap().pop_front().unwrap_or(Outcome::Delivered))
        });
        let queue = point.wrap(Queue { ingress, egress: Box::new(egress) });
        Self { queue, sender, outcomes }
    }

    /// Wraps the queue anew.
    pub fn rewrap(&mut self, rewrap: &dyn Rewrap) {
        let bare = || Queue {
            ingress: Sender::new().1,
            egress: Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered))),
        };
        let Queue { ingress, egress } = std::mem::replace(&mut self.queue, bare());
        self.queue = Queue { ingress: rewrap.ingress(ingress), egress: rewrap.egress(egress) };
    }

    /// Takes frames in; they stay in the window.
    pub fn receive(&mut self, frames: impl IntoIterator<Item = impl Into<Sent>>) {
        frames.into_iter().for_each(|frame| self.sender.send(frame));
        let mut received = Received::default();
        self.queue.ingress.receive(&mut Budget::TURN.clone(), &mut received).unwrap();
    }

    /// Finishes the frames in the window, in their order, with these outcomes. Later ones go on waiting.
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

    /// Offers the frames in `from`'s window to this port, which answers with these outcomes.
    pub fn offer(&mut self, from: &Port, outcomes: &[Outcome]) {
        *self.outcomes.lock().unwrap() = outcomes.to_vec().into();
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

/// The frame with number 1, to be cut into segments of 1000 bytes of payload.
pub fn gso_frame(len: usize) -> Sent {
    let mut sent = Sent::from(tcp_frame(1, len));
    sent.frame.checksum = Checksum::Partial;
    sent.frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000 });
    sent
}

/// The source port that [`tcp_frame`] was given.
pub fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[34], bytes[35]])
}

pub fn start(point: &CapturePoint, options: &Options) -> Capture {
    point.start(options).unwrap_or_else(|error| panic!("{error}"))
}

/// Ends the capture. Returns what it has by now.
pub fn file_of(capture: Capture) -> (Vec<u8>, Totals) {
    let mut file = Vec::new();
    let totals = capture.run(&mut file, &mut || true).unwrap();
    (file, totals)
}

/// Ends the capture. Returns the packets that it has by now.
pub fn packets_of(capture: Capture) -> Vec<Captured> {
    packets(&file_of(capture).0)
}

/// A packet of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub interface: u32,
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

pub fn packets(file: &[u8]) -> Vec<Captured> {
    let enhanced = blocks(file).into_iter().filter(|(kind, _)| *kind == 6);
    enhanced.map(|(_, block)| packet(block)).collect()
}

fn packet(block: &[u8]) -> Captured {
    let len = u32_at(block, 12) as usize;
    let mut packet = Captured {
        interface: u32_at(block, 0),
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
