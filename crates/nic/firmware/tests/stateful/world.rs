//! Two honest guests and a hostile one on one card, and the steps of an input.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use cdna::context::MAILBOXES;
use cdna::message::Permissions;
use cdna::{ContextId, Descriptor, Direction, Enable, Flags, Mailbox};
use firmware::{Config, Metadata, Next};
use offload::{Checksum, Gso};
use wire::ethernet::MacAddr;
use wire::netif::GsoKind;

use crate::common::guest::{Guest, MEMORY_LEN, mac, usual};
use crate::common::{Host, PEER, frame};

/// The honest guests' contexts, and the hostile one's.
const HONEST: [u8; 2] = [1, 2];
const HOSTILE: u8 = 3;

/// What the hostile guest writes.
#[derive(Clone, Debug)]
enum Write {
    /// A mailbox; its event is raised or not.
    Mailbox { number: u8, value: u32, is_raised: bool },
    /// A producer index, this far from the last one.
    Producer { direction: Direction, by: u16 },
    /// The event word.
    Events(u32),
    /// A descriptor at the producer index, which moves on: one that is nearly right.
    Post { direction: Direction, place: u8, len: u8, flags: u8 },
    /// A descriptor at a slot: with the right sequence number or another one.
    Descriptor { direction: Direction, slot: u8, ahead: u8, addr: u32, len: u16, flags: u16 },
    /// Bytes of its memory.
    Bytes { at: u16, bytes: [u8; 16] },
}

/// One thing that happens.
enum Step {
    /// The hostile guest writes at once.
    Now(Write),
    /// It writes at the card's next access to memory.
    Meanwhile(Write),
    /// An honest guest sends a frame to the other one or to the wire.
    Send { from: u8, to_wire: bool, len: u16 },
    /// A frame comes from the wire.
    Arrive { to: u8, len: u16, offload: u8 },
    /// The hostile guest's context is revoked, and assigned to another hostile guest.
    Replace { start: u32 },
    /// The wire takes this many frames more, or any number.
    Room(u8),
    /// The card makes a step, some time later.
    Pass(u8),
}

/// Bytes between two frames' headers in the hostile guest's memory.
const HEADER_STRIDE: usize = 64;

/// A hostile guest, whose memory begins with frames to everybody.
fn hostile_guest(host: &mut Host, start: u32) -> Guest {
    let guest = host.guest_with(HOSTILE, start, Permissions::default());
    let destinations = [mac(HONEST[0]), mac(HONEST[1]), MacAddr::BROADCAST, PEER, mac(HOSTILE)];
    for (n, destination) in (0..256).zip(destinations.into_iter().cycle()) {
        let header = frame(destination, mac(HOSTILE), 0xee, 14);
        guest.memory.copy_in(n * HEADER_STRIDE, &header).unwrap();
    }
    guest.enable(usual() | Enable::INTERRUPTS);
    guest
}

/// Takes bytes off the input.
fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

fn direction(tag: u8) -> Direction {
    if tag & 1 == 0 { Direction::Tx } else { Direction::Rx }
}

/// Takes a step off the input. The tag's high bit puts a write off until the card's next access to memory.
fn step(input: &mut &[u8]) -> Option<Step> {
    let [tag] = take(input)?;
    let write = match tag & 0x7f {
        0..4 => {
            let [number] = take(input)?;
            let value = u32::from_le_bytes(take(input)?);
            Write::Mailbox { number, value, is_raised: tag & 1 == 0 }
        }
        4..5 => {
            let by = u16::from_le_bytes(take(input)?);
            Write::Producer { direction: direction(tag), by: if by < 600 { by } else { by % 20 } }
        }
        5..7 => Write::Events(u32::from_le_bytes(take(input)?)),
        7..50 => {
            let [place, len, flags] = take(input)?;
            Write::Post { direction: direction(tag), place, len, flags }
        }
        50..52 => {
            let [slot, ahead] = take(input)?;
            let addr = u32::from_le_bytes(take(input)?);
            let [a, b, c, d] = take(input)?;
            let (len, flags) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
            Write::Descriptor { direction: direction(tag), slot, ahead, addr, len, flags }
        }
        52..60 => Write::Bytes { at: u16::from_le_bytes(take(input)?), bytes: take(input)? },
        60..80 => {
            let len = u16::from_le_bytes(take(input)?);
            return Some(Step::Send { from: tag & 1, to_wire: tag & 2 != 0, len });
        }
        80..90 => {
            let ([offload], len) = (take(input)?, u16::from_le_bytes(take(input)?));
            return Some(Step::Arrive { to: tag % 4, len, offload });
        }
        90..93 => return Some(Step::Replace { start: u32::from_le_bytes(take(input)?) }),
        93..96 => return Some(Step::Room(take::<1>(input)?[0])),
        _ => return Some(Step::Pass(tag)),
    };
    Some(if tag & 0x80 == 0 { Step::Now(write) } else { Step::Meanwhile(write) })
}

/// The hostile guest, whose writes may come in the middle of a step.
struct Hostile {
    guest: Guest,
    start: u32,
}

impl Hostile {
    fn perform(&mut self, write: &Write) {
        let guest = &mut self.guest;
        match *write {
            Write::Mailbox { number, value, is_raised } => {
                let number = usize::from(number) % MAILBOXES;
                guest.write_word(number * 4, value);
                if is_raised {
                    guest.raise(1 << number);
                }
            }
            Write::Producer { direction, by } => {
                let (mailbox, producer) = match direction {
                    Direction::Tx => (Mailbox::TxProducer, &mut guest.tx_producer),
                    Direction::Rx => (Mailbox::RxProducer, &mut guest.rx_producer),
                };
                *producer = producer.wrapping_add(by.into());
                let producer = *producer;
                guest.write(mailbox, producer);
            }
            Write::Events(events) => guest.raise(events),
            Write::Post { direction, place, len, flags } => {
                let addr = guest.base + u64::from(place) * HEADER_STRIDE as u64;
                let (mailbox, producer) = match direction {
                    Direction::Tx => (Mailbox::TxProducer, &mut guest.tx_producer),
                    Direction::Rx => (Mailbox::RxProducer, &mut guest.rx_producer),
                };
                let index = *producer;
                *producer = index.wrapping_add(1);
                // Most have an end, and few are offloads.
                let flags = match flags {
                    0..230 => Flags::EOP,
                    230..252 => Flags::NONE,
                    _ => Flags(flags.into()),
                };
                // Some are long, and few are too short.
                let len = if len.is_multiple_of(8) {
                    u16::from(len) * 16
                } else {
                    u16::from(len.max(60))
                };
                guest.put(direction, index, Descriptor::buffer(index, addr, len, flags));
                guest.write(mailbox, index.wrapping_add(1));
            }
            Write::Descriptor { direction, slot, ahead, addr, len, flags } => {
                // Most numbers are right in the first rounds. Half of the addresses are in its own memory, and a quarter in
                // the last 64 KiB that there are: buffers there may wrap.
                let addr = match addr >> 30 {
                    0 => u64::from(addr) << 3,
                    1 => !u64::from(addr % 0x1_0000),
                    _ => guest.base + u64::from(addr) % (MEMORY_LEN as u64 + 64),
                };
                let round = u32::from(ahead % 8) * 256;
                let index = self.start.wrapping_add(u32::from(slot)).wrapping_add(round);
                let len = if len & 1 == 0 { len % 4096 } else { len };
                let descriptor = Descriptor { addr, len, flags, seq: index };
                guest.put(direction, index, descriptor);
            }
            Write::Bytes { at, bytes } => guest.memory.copy_in(at.into(), &bytes).unwrap(),
        }
    }
}

/// An honest guest, and what is on its way to it.
struct Honest {
    guest: Guest,
    expected: VecDeque<Vec<u8>>,
    /// Frames that did not come.
    lost: u64,
}

/// Everything.
pub struct World {
    host: Host,
    honest: [Honest; 2],
    hostile: Rc<RefCell<Hostile>>,
    meanwhile: Rc<RefCell<VecDeque<Write>>>,
    /// What the honest guests sent to the wire.
    outgoing: [VecDeque<Vec<u8>>; 2],
    number: u32,
}

impl World {
    pub fn new() -> Self {
        let mut host = Host::new(Config { contexts: 4, rate_mbps: 10_000, tso: true });
        host.card.bus().protects = true;
        let honest = HONEST.map(|number| {
            let mut guest = host.guest(number);
            guest.enable(usual() | Enable::INTERRUPTS);
            guest.post(255, 2048);
            Honest { guest, expected: VecDeque::new(), lost: 0 }
        });
        let guest = hostile_guest(&mut host, 0);
        let hostile = Rc::new(RefCell::new(Hostile { guest, start: 0 }));
        let meanwhile = Rc::new(RefCell::new(VecDeque::<Write>::new()));
        let (theirs, writes) = (hostile.clone(), meanwhile.clone());
        host.card.bus().meanwhile = Some(Box::new(move || {
            let write = writes.borrow_mut().pop_front();
            if let Some(write) = write {
                theirs.borrow_mut().perform(&write);
            }
        }));
        let outgoing = [VecDeque::new(), VecDeque::new()];
        Self { host, honest, hostile, meanwhile, outgoing, number: 0 }
    }

    /// Runs an input.
    pub fn run(mut self, mut input: &[u8]) {
        while let Some(step) = step(&mut input) {
            self.apply(step);
            self.check();
        }
        // Everything that is on its way arrives.
        self.host.wire.0.borrow_mut().room = None;
        for _ in 0..1000 {
            let next = self.pass(Duration::from_micros(100));
            self.check();
            // The hostile guest's interrupts may be due in an hour.
            let is_done = match next {
                Next::Now => false,
                Next::At(at) => at > self.host.now + Duration::from_millis(10),
                Next::Event => true,
            };
            if is_done {
                break;
            }
        }
        for (number, honest) in HONEST.into_iter().zip(&self.honest) {
            let drops = self.host.card.statistics(ContextId::new(number)).drops;
            let lost = honest.lost + honest.expected.len() as u64;
            assert!(lost <= drops[0], "{lost} frames never came, {} were dropped", drops[0]);
        }
        assert!(self.outgoing.iter().all(VecDeque::is_empty), "frames were not sent");
        self.host.card.revoke(ContextId::new(HOSTILE), 1);
        assert!(self.hostile.borrow().guest.is_sole_user());
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Now(write) => self.hostile.borrow_mut().perform(&write),
            Step::Meanwhile(write) => self.meanwhile.borrow_mut().push_back(write),
            Step::Send { from, to_wire, len } => self.send(from.into(), to_wire, len.into()),
            Step::Arrive { to, len, offload } => self.arrive(to, len.into(), offload),
            Step::Replace { start } => {
                self.host.card.revoke(ContextId::new(HOSTILE), 1);
                // The next one is at work while the memory of the last one is still there.
                let mut hostile = self.hostile.borrow_mut();
                assert!(hostile.guest.is_sole_user());
                hostile.guest = hostile_guest(&mut self.host, start);
                hostile.start = start;
                self.host.faults.clear();
            }
            Step::Room(room) => {
                let room = (room < 100).then(|| room.into());
                self.host.wire.0.borrow_mut().room = room;
            }
            Step::Pass(tag) => {
                self.pass(Duration::from_micros(u64::from(tag % 8) * 7));
            }
        }
    }

    fn pass(&mut self, wait: Duration) -> Next {
        self.host.now += wait;
        let step = self.host.step();
        while self.host.vector().is_some() {}
        if step.next == Next::Event && step.frames == 0 && self.host.card.fall_asleep() {
            assert!(self.honest.iter().all(|honest| honest.guest.is_card_asleep()));
        }
        step.next
    }

    /// A frame whose bytes no other one has.
    fn next_frame(&mut self, destination: MacAddr, source: MacAddr, len: usize) -> Vec<u8> {
        self.number += 1;
        // Most are short.
        let len = if len.is_multiple_of(4) { len.min(9000) } else { len % 200 };
        let mut frame = frame(destination, source, 0x77, len.max(18));
        frame[14..18].copy_from_slice(&self.number.to_le_bytes());
        frame
    }

    fn send(&mut self, from: usize, to_wire: bool, len: usize) {
        let to = 1 - from;
        if self.honest[from].guest.room() < 8 {
            return;
        }
        let destination = if to_wire { PEER } else { mac(HONEST[to]) };
        let frame = self.next_frame(destination, mac(HONEST[from]), len);
        let guest = &mut self.honest[from].guest;
        guest.queue(&frame, 2048, Flags::NONE);
        guest.publish_tx();
        match to_wire {
            true => self.outgoing[from].push_back(frame),
            false => self.honest[to].expected.push_back(frame),
        }
    }

    fn arrive(&mut self, to: u8, len: usize, offload: u8) {
        let destination = if to == 0 { MacAddr::BROADCAST } else { mac(to) };
        let frame = self.next_frame(destination, PEER, len);
        let gso = Gso { kind: GsoKind::TcpV4.into(), size: u16::from(offload) };
        let metadata = match offload % 4 {
            // The frame has nothing that these offloads could apply to: nobody gets it.
            1 => Metadata { checksum: Checksum::Partial, gso: None },
            2 => Metadata { checksum: Checksum::Partial, gso: Some(gso) },
            _ => Metadata::default(),
        };
        self.host.arrive_with(&frame, metadata);
    }

    /// Checks everything that the honest guests and the wire have got.
    fn check(&mut self) {
        let hostile = ContextId::new(HOSTILE);
        let faults = &self.host.faults;
        assert!(faults.len() <= 1 && faults.iter().all(|(_, fault)| fault.context == hostile));
        for sent in self.host.sent() {
            let [.., source, _, _] = &sent[..14] else { unreachable!() };
            match HONEST.iter().position(|number| number == source) {
                Some(from) => {
                    assert_eq!(self.outgoing[from].pop_front().as_ref(), Some(&sent));
                }
                None => assert_eq!(*source, HOSTILE, "a frame with a false source"),
            }
        }
        for (number, honest) in HONEST.into_iter().zip(&mut self.honest) {
            let received = honest.guest.receive();
            let posted: usize = received.iter().map(|frame| frame.buffers).sum();
            honest.guest.post(posted.try_into().unwrap(), 2048);
            for frame in received {
                let (to, source) = (frame.bytes[5], frame.bytes[11]);
                assert!(to == number || frame.bytes[..6] == [0xff; 6]);
                let is_from_peer = frame.bytes[6..12] == PEER.0;
                if !is_from_peer && HONEST.contains(&source) {
                    // Frames before it were lost for want of buffers, or it is wrong.
                    loop {
                        let expected = honest.expected.pop_front();
                        let expected = expected.expect("a frame that nobody sent, or twice");
                        if expected == frame.bytes {
                            break;
                        }
                        honest.lost += 1;
                    }
                }
            }
            let drops = self.host.card.statistics(ContextId::new(number)).drops;
            assert!(honest.lost <= drops[0], "{} lost, {} dropped", honest.lost, drops[0]);
            assert!(
                drops[1..].iter().all(|count| *count == 0),
                "an honest guest's frame was dropped"
            );
        }
    }
}
