//! The card against a naive model: any sequence of frames, buffers, arrivals, and changes of owner.

use std::collections::VecDeque;

use crate::common::guest::{Guest, mac, usual};
use cdna::message::Permissions;
use cdna::{ContextId, Direction, Flags, ring};
use firmware::{Config, Next};
use proptest::prelude::*;
use wire::ethernet::MacAddr;

use crate::common::{Host, PEER, frame};

const GUESTS: u8 = 3;

/// Who a frame is for.
#[derive(Clone, Copy, Debug)]
enum To {
    Guest(u8),
    Peer,
    All,
}

impl To {
    fn mac(self) -> MacAddr {
        match self {
            Self::Guest(number) => mac(number),
            Self::Peer => PEER,
            Self::All => MacAddr::BROADCAST,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A guest sends a frame of this many bytes, in chunks.
    Send { from: u8, to: To, len: usize, chunk: usize },
    /// A frame comes from the wire.
    Arrive { to: To, len: usize },
    /// A guest posts buffers.
    Post { to: u8, count: u32, len: u16 },
    /// A context goes to a new guest.
    Replace(u8),
}

fn guests() -> impl Strategy<Value = u8> {
    1..=GUESTS
}

fn destinations() -> impl Strategy<Value = To> {
    prop_oneof![3 => guests().prop_map(To::Guest), 1 => Just(To::Peer), 1 => Just(To::All)]
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 14usize..200, 3 => 1000usize..5000, 1 => 5000usize..=65_535]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let send = (guests(), destinations(), lens(), 1usize..=4096);
    let step = prop_oneof![
        8 => send.prop_map(|(from, to, len, chunk)| Step::Send { from, to, len, chunk }),
        4 => (destinations(), lens()).prop_map(|(to, len)| Step::Arrive { to, len }),
        6 => (guests(), 1u32..80, prop_oneof![Just(2048u16), 60u16..4096])
            .prop_map(|(to, count, len)| Step::Post { to, count, len }),
        1 => guests().prop_map(Step::Replace),
    ];
    prop::collection::vec(step, 1..150)
}

/// What the model knows of a guest.
struct Model {
    /// The lengths of its free buffers.
    buffers: VecDeque<u16>,
    /// What it should receive: each frame, and in how many buffers.
    expected: Vec<(Vec<u8>, usize)>,
    sent_descriptors: u32,
    used_buffers: u32,
    dropped: u64,
    /// Frames that it sent to itself.
    not_forwarded: u64,
}

impl Model {
    fn new() -> Self {
        let (buffers, expected) = (VecDeque::new(), Vec::new());
        Self {
            buffers,
            expected,
            sent_descriptors: 0,
            used_buffers: 0,
            dropped: 0,
            not_forwarded: 0,
        }
    }

    fn deliver(&mut self, frame: &[u8]) {
        let (mut room, mut count) = (0, 0);
        while room < frame.len() && count < self.buffers.len() && count < 64 {
            room += usize::from(self.buffers[count]);
            count += 1;
        }
        if room < frame.len() {
            self.dropped += 1;
            return;
        }
        self.buffers.drain(..count);
        self.used_buffers += u32::try_from(count).unwrap();
        self.expected.push((frame.to_vec(), count));
    }
}

struct World {
    host: Host,
    guests: Vec<Guest>,
    models: Vec<Model>,
    starts: Vec<u32>,
    tag: u8,
}

impl World {
    fn new(starts: Vec<u32>) -> Self {
        let mut host = Host::new(Config::default());
        let guests = (1..=GUESTS).zip(&starts).map(|(number, start)| {
            let guest = host.guest_with(number, *start, Permissions::default());
            guest.enable(usual());
            guest
        });
        let guests = guests.collect();
        let models = (0..GUESTS).map(|_| Model::new()).collect();
        Self { host, guests, models, starts, tag: 0 }
    }

    fn deliver(&mut self, to: To, from: Option<u8>, frame: &[u8]) {
        for number in 1..=GUESTS {
            let is_for = match to {
                To::Guest(to) => to == number,
                To::Peer => false,
                To::All => true,
            };
            if is_for && from != Some(number) {
                self.models[usize::from(number) - 1].deliver(frame);
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        self.tag = self.tag.wrapping_add(1);
        let mut wire = Vec::new();
        match *step {
            Step::Send { from, to, len, chunk } => {
                let n = usize::from(from) - 1;
                let chunk = chunk.max(len.div_ceil(18));
                let frame = frame(to.mac(), mac(from), self.tag, len);
                let chunks = u32::try_from(len.div_ceil(chunk)).unwrap();
                if self.guests[n].room() < chunks {
                    return;
                }
                self.guests[n].queue(&frame, chunk, Flags::NONE);
                self.guests[n].publish_tx();
                self.models[n].sent_descriptors += chunks;
                self.models[n].not_forwarded +=
                    u64::from(matches!(to, To::Guest(to) if to == from));
                self.deliver(to, Some(from), &frame);
                if !matches!(to, To::Guest(_)) {
                    wire.push(frame);
                }
            }
            Step::Arrive { to, len } => {
                let frame = frame(to.mac(), PEER, self.tag, len);
                self.host.arrive(&frame);
                self.deliver(to, None, &frame);
            }
            Step::Post { to, count, len } => {
                let n = usize::from(to) - 1;
                let (guest, model) = (&mut self.guests[n], &mut self.models[n]);
                let free = ring::SLOTS - guest.rx_producer.wrapping_sub(guest.rx_consumer);
                let count = count.min(free);
                guest.post(count, len);
                model.buffers.extend((0..count).map(|_| len));
            }
            Step::Replace(number) => {
                let n = usize::from(number) - 1;
                // The new ring begins where indices wrap, or where it likes.
                self.starts[n] = self.starts[n].wrapping_mul(3).wrapping_sub(40);
                let start = self.starts[n];
                self.host.card.revoke(ContextId::new(number), 1);
                self.guests[n] = self.host.guest_with(number, start, Permissions::default());
                self.guests[n].enable(usual());
                self.models[n] = Model::new();
            }
        }
        assert_eq!(self.host.run().next, Next::Event);
        assert_eq!(self.host.sent(), wire);
        self.compare();
    }

    fn compare(&mut self) {
        assert!(self.host.faults.is_empty(), "{:?}", self.host.faults);
        for (n, (guest, model)) in self.guests.iter_mut().zip(&mut self.models).enumerate() {
            let id = ContextId::new(u8::try_from(n + 1).unwrap());
            let received = guest.receive().into_iter().map(|frame| (frame.bytes, frame.buffers));
            assert_eq!(received.collect::<Vec<_>>(), std::mem::take(&mut model.expected));
            let statistics = self.host.card.statistics(id);
            assert_eq!(statistics.drops, [model.dropped, 0, 0, 0, model.not_forwarded]);
            let consumed = |ring| guest.consumer(ring).wrapping_sub(self.starts[n]);
            assert_eq!(consumed(Direction::Tx), model.sent_descriptors);
            assert_eq!(consumed(Direction::Rx), model.used_buffers);
        }
    }
}

proptest! {
    #[test]
    fn every_frame_arrives_as_it_was_sent_where_there_is_room(
        starts in prop::collection::vec(prop_oneof![any::<u32>(), 0xffff_ff00u32..], 3),
        steps in steps(),
    ) {
        let mut world = World::new(starts);
        steps.iter().for_each(|step| world.apply(step));
    }
}
