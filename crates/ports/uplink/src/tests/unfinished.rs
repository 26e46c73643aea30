//! Frames that a guest of netif takes only after software has finished them, in a tap's queue for that guest: its ring, the queue and
//! the turns of a worker, without a switch.

#![allow(clippy::cast_possible_truncation, reason = "lengths and counts of a test")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use machine::{DRIVER_DOMAIN, MachineGuest, MemorySize, toolstack};
use netback::{Anonymous, GrantReuse, Offered, RxChannel, RxQueue, TxChannel, Vif, VifChange};
use netfront::Frontend;
use offload::{Checksum, Features, Gso, GsoKind, vnet};
use port::{
    Body, Budget, Egress, Frame, Ingress, Lender, LentBuffer, LentMemory, Offer, Outcome, Received,
    WINDOW, Wanted,
};
use shm::Iovec;
use wire::ethernet::MacAddr;
use wire::headers::Headers;
use xenstore::Store;

use super::network::{Memory, PAGES};
use super::*;
use crate::{Copied, DirectIngress, GuestQueue};

/// Where [`tcp`] sends.
const GUEST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Bytes of an unsegmented frame's payload, and of a segment's: it becomes 188 segments, and takes as many of the ring's 256 buffers.
const PAYLOAD: usize = 60_000;
const SEGMENT: u16 = 320;
/// Payloads and VLANs of frames: one that the guest takes as it is, one that it does not, and small ones.
const WHOLE: Sample = (PAYLOAD, None);
const TAGGED: Sample = (PAYLOAD, Some(5));
const SMALL: Sample = (100, None);
const SMALL_TAGGED: Sample = (100, Some(5));
/// The time of a turn. A frontend that posts too little for 200 ms is stalled.
const TURN: Duration = Duration::from_millis(10);
/// The EtherType of the other sender's frames.
const OTHER: [u8; 2] = [0x88, 0xb5];

type Sample = (usize, Option<u8>);

/// The guest's queue, as the port that lends its buffers.
struct Ring(Mutex<RxQueue<Machine>>);

impl Lender for Ring {
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>) {
        self.0.lock().unwrap().lend(wanted, lent).unwrap();
    }

    fn take_back(&self, tokens: &[u32]) {
        self.0.lock().unwrap().take_back(tokens);
    }
}

/// A tap, the guest that has its queue, and another sender to this guest.
struct World {
    turns: u32,
    /// The guest polls its ring once in this many turns.
    pace: u32,
    behind: UnixDatagram,
    /// Frames that the stack has for the tap.
    backlog: VecDeque<Vec<u8>>,
    ingress: DirectIngress,
    queue: Arc<GuestQueue>,
    ring: Arc<Ring>,
    guest: netfront::RxQueue<MachineGuest>,
    /// The payloads that the guest got through the tap, one behind the other.
    payload: Vec<u8>,
    /// How many frames of the tap were delivered, how many dropped, and how many of the other sender came.
    delivered: usize,
    dropped: usize,
    others: u32,
    /// Segments of the frame in each slot that came in an earlier turn.
    sent: [u16; WINDOW],
    /// Buffers that a card or a socket has for good.
    kept: Vec<LentBuffer>,
    _ends: Ends,
}

/// What keeps the interface connected.
type Ends = (Vif<Machine>, Frontend<MachineGuest>, netback::TxQueue<Machine>);

impl World {
    fn new() -> Self {
        let (backend, guest, vif, frontend) = connect();
        let memory = backend.rx.lent_memory().expect("the frontend takes responses in any order");
        assert_eq!(memory.features, Features::NETIF);
        let ring = Arc::new(Ring(Mutex::new(backend.rx)));
        let queue = Arc::<GuestQueue>::default();
        queue.assign(GUEST, ring.clone(), Some(memory));
        let (ingress, behind) = direct(&queue);
        Self {
            turns: 0,
            pace: 1,
            behind,
            backlog: VecDeque::new(),
            ingress,
            queue,
            ring,
            guest: guest.rx,
            payload: Vec::new(),
            delivered: 0,
            dropped: 0,
            others: 0,
            sent: [0; WINDOW],
            kept: Vec::new(),
            _ends: (vif, frontend, backend.tx),
        }
    }

    /// A world whose queue is proven.
    fn proven() -> Self {
        let mut world = Self::new();
        world.carry(&[SMALL], 1);
        assert_eq!(world.queue.counts().copied(Copied::Unproven), 1);
        world
    }

    /// Carries frames in at most `limit` turns. In each of them another sender's frame comes, and finds room unless a part of the ring
    /// is kept.
    fn carry(&mut self, frames: &[Sample], limit: u32) {
        let mut expected = Vec::new();
        for (n, frame) in frames.iter().enumerate() {
            let (bytes, payload) = sent(*frame, n as u8);
            self.backlog.push_back(bytes);
            expected.extend(payload);
        }
        let began = self.turns;
        (self.delivered, self.dropped) = (0, 0);
        while self.delivered + self.dropped < frames.len() {
            assert!(
                self.turns - began < limit,
                "{} of {} frames came",
                self.delivered,
                frames.len()
            );
            self.turn();
        }
        self.take();
        assert_eq!((self.delivered, self.dropped), (frames.len(), 0));
        let others = std::mem::take(&mut self.others);
        assert!(others == self.turns - began || !self.kept.is_empty(), "{others}");
        assert!(std::mem::take(&mut self.payload) == expected, "a frame came changed");
    }

    /// One turn of the worker, of the other sender, and of the guest, which takes everything and posts its buffers again.
    fn turn(&mut self) {
        self.turns += 1;
        let now = TURN * self.turns;
        while let Some(bytes) = self.backlog.front()
            && self.behind.send(bytes).is_ok()
        {
            self.backlog.pop_front();
        }
        let (ingress, ring) = (&mut self.ingress, &self.ring.0);
        ingress.receive(&mut Budget::default(), &mut Received::default()).unwrap();
        let mut outcomes = [Outcome::Waiting; WINDOW];
        ingress.with_body(&mut |body| {
            let window = ingress.window();
            let order = window.order();
            let offer = |slot: &u8| {
                let sent = self.sent[usize::from(*slot)];
                Offer { sent, ..Offer::new(window.frame(*slot)) }
            };
            let mut offers: Vec<_> = order.iter().map(offer).collect();
            ring.lock().unwrap().deliver(body, &mut offers, now).unwrap();
            for (slot, offer) in order.iter().zip(&offers) {
                outcomes[usize::from(*slot)] = offer.outcome;
                self.sent[usize::from(*slot)] = match offer.outcome {
                    Outcome::Partial { segments } => segments,
                    Outcome::Waiting => offer.sent,
                    _ => 0,
                };
            }
        });
        self.delivered += outcomes.iter().filter(|one| **one == Outcome::Delivered).count();
        self.dropped += outcomes.iter().filter(|one| matches!(one, Outcome::Dropped(_))).count();
        ingress.finish(&outcomes);
        let mut frame = Frame::empty();
        frame.set_header(&[&GUEST.0[..], &[2, 0, 0, 0, 0, 3], &OTHER, &[0; 46]].concat()).unwrap();
        let memory: Arc<[_]> = [shm::Region::anonymous(4096).unwrap()].into();
        let outcome = offer(&mut *ring.lock().unwrap(), Body::Regions(&memory), &frame, now);
        let finds_room = outcome == Ok(Outcome::Delivered);
        assert!(finds_room || !self.kept.is_empty(), "the other sender's frame waits");
        if self.turns.is_multiple_of(self.pace) {
            self.take();
        }
    }

    fn take(&mut self) {
        let mut frame = netfront::Received::default();
        while self.guest.receive(&mut frame).unwrap() {
            let mut bytes = Vec::new();
            for fragment in self.guest.fragments(&frame) {
                let Iovec::Shared { region, offset, len } = fragment else { panic!("not shared") };
                let start = bytes.len();
                bytes.resize(start + len, 0);
                region.copy_out(offset, &mut bytes[start..]).unwrap();
            }
            match [bytes[12], bytes[13]] {
                OTHER => self.others += 1,
                [0x81, 0] => self.payload.extend(&bytes[HEADERS + 4..]),
                _ => self.payload.extend(&bytes[HEADERS..]),
            }
        }
        assert_eq!(self.guest.take_errors(), 0);
        self.guest.publish();
    }

    /// All that the guest posts can be lent again, but what is kept back for others.
    fn has_everything_back(&mut self) {
        let mut lent = Vec::new();
        self.ring.lend(Wanted { buffers: 256, held: false }, &mut lent);
        assert_eq!(lent.len(), 256 - 32);
    }
}

/// Reads a tap's frames for the guest that has `queue`; and what is behind the tap.
fn direct(queue: &Arc<GuestQueue>) -> (DirectIngress, UnixDatagram) {
    let (tap, behind) = tap();
    rustix::net::sockopt::set_socket_send_buffer_size(&behind, 1 << 20).unwrap();
    (DirectIngress::new(reader(tap), queue.clone(), true), behind)
}

/// A frame as the stack hands it to the tap, and its payload.
fn sent((payload, vlan): Sample, n: u8) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = tcp(payload);
    bytes[HEADERS] = n;
    let payload = bytes[HEADERS..].to_vec();
    if let Some(vlan) = vlan {
        bytes.splice(12..12, [0x81, 0, 0, vlan]);
    }
    let headers = Headers::parse(&bytes[..HEADER_MAX.min(bytes.len())]).unwrap();
    let gso = Gso { kind: GsoKind::TcpV4, size: SEGMENT };
    let gso = (payload.len() > 1460).then_some(gso);
    let header = vnet::encode(&headers, Checksum::Partial, gso);
    ([header.as_bytes(), &bytes].concat(), payload)
}

/// A guest that lends its buffers.
fn connect() -> (
    netback::VifQueue<Machine>,
    netfront::FrontendQueue<MachineGuest>,
    Vif<Machine>,
    Frontend<MachineGuest>,
) {
    let machine = Machine::new();
    let store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
    let domain = machine.create(MemorySize::default()).unwrap();
    let id = domain.id();
    toolstack::create_domain(&*store, id, "guest").unwrap();
    toolstack::create_vif(&*store, id, 0, &GUEST.to_string()).unwrap();
    let offered = Offered {
        max_queues: 1,
        features: Features::ALL,
        guest_offloads: true,
        split_event_channels: true,
        tx: TxChannel::Header,
        rx: RxChannel::Direct,
        persistent_grants: 0,
        reuse: GrantReuse::Agreed,
        multicast_control: false,
        coalescing: None,
        completion_delay: None,
    };
    let ledgers = Arc::<Anonymous>::default();
    let path = toolstack::backend_path(id, 0);
    let mut vif = Vif::adopt(machine.clone(), store, &path, offered, ledgers).unwrap();
    let inside = MachineGuest::inside(&machine, &domain).unwrap();
    let store: Arc<dyn Store> = Arc::new(machine.store().connect(id));
    let frontend = std::thread::spawn(move || {
        let config = netfront::Config::default();
        let device = toolstack::device_path(0);
        // Nobody answers on its control ring.
        Frontend::connect_with(&inside, store, &device, &config, None).unwrap()
    });
    let mut connection = loop {
        match vif.frontend_changed().unwrap() {
            VifChange::Connect(connection) => break connection,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(!frontend.is_finished(), "the frontend has failed");
    };
    vif.connected().unwrap();
    let (frontend, mut queues) = frontend.join().unwrap();
    (connection.queues.pop().unwrap(), queues.pop().unwrap(), vif, frontend)
}

/// If those behind a frame kept the buffers that they were read into, it would wait for them, and they for it.
#[test]
fn a_backlog_of_tagged_unsegmented_frames_goes_on_and_holds_nobody_up() {
    const FRAMES: usize = 24;
    let mut world = World::proven();
    world.carry(&[TAGGED; FRAMES], FRAMES as u32);
    let counts = world.queue.counts();
    assert_eq!((counts.direct(), counts.copied(Copied::Interface)), (0, FRAMES as u64));
    assert_eq!(counts.misdirected(), 0);
    world.has_everything_back();
}

/// Frames that the guest takes as they are come behind and before. Those are still read straight into its buffers where none that is
/// finished in software comes before them.
#[test]
fn frames_that_the_guest_takes_do_not_hold_up_those_that_are_finished() {
    let mut world = World::proven();
    for pace in [1, 1, 3] {
        world.pace = pace;
        let direct = world.queue.counts().direct();
        world.carry(&[&[TAGGED][..], &[WHOLE; 5], &[TAGGED; 2], &[WHOLE; 12]].concat(), 10 * pace);
        let mixed = [&[WHOLE; 5][..], &[SMALL; 20], &[TAGGED], &[SMALL_TAGGED], &[WHOLE; 5]];
        world.carry(&mixed.concat(), 10 * pace);
        world.carry(&[&[TAGGED; 2][..], &[WHOLE; 10]].concat(), 10 * pace);
        assert!(world.queue.counts().direct() > direct);
    }
    // They leave nothing behind.
    let direct = world.queue.counts().direct();
    world.carry(&[WHOLE; 5], 10);
    assert_eq!(world.queue.counts().direct(), direct + 5);
    world.has_everything_back();
}

/// The frame that proves the queue is copied, and lent are only the buffers of those behind it.
#[test]
fn a_frame_that_proves_the_queue_and_is_finished_is_not_held_up() {
    let mut world = World::new();
    world.carry(&[&[TAGGED][..], &[WHOLE; 6]].concat(), 10);
    assert_eq!(world.queue.counts().copied(Copied::Unproven), 1);
    world.has_everything_back();
}

/// A card and an AF_XDP socket keep half of the ring, also while nothing comes there. A frame of more segments than the other half
/// takes would wait for ever.
#[test]
fn a_frame_of_more_segments_than_are_not_kept_comes_in_parts() {
    for pace in [1, 3] {
        let mut world = World::proven();
        world.pace = pace;
        world.ring.lend(Wanted { buffers: 128, held: false }, &mut world.kept);
        assert_eq!(world.kept.len(), 128);
        world.carry(
            &[&[TAGGED; 3][..], &[SMALL; 5], &[TAGGED], &[SMALL_TAGGED]].concat(),
            40 * pace,
        );
        let kept = std::mem::take(&mut world.kept);
        world.ring.take_back(&kept.iter().map(|buffer| buffer.token).collect::<Vec<_>>());
        world.has_everything_back();
    }
}

/// It may need nearly the whole ring.
#[test]
fn nothing_is_lent_while_a_frame_that_is_finished_is_delivered() {
    let (queue, memory) = (Arc::<GuestQueue>::default(), Memory::new());
    let lent = LentMemory { features: Features::NETIF, ..memory.lent() };
    queue.assign(GUEST, memory.clone(), Some(lent));
    let (mut ingress, behind) = direct(&queue);
    for (sample, is_lent) in [(SMALL, false), (WHOLE, true), (TAGGED, false)] {
        behind.send(&sent(sample, 0).0).unwrap();
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        assert_eq!(received.fresh, 1);
        let window = ingress.window();
        assert_eq!(window.frame(window.order()[0]).lent.is_any(), is_lent);
        assert_eq!(memory.free.lock().unwrap().len() == PAGES, sample == TAGGED);
        ingress.finish(&[Outcome::Delivered; WINDOW]);
        assert_eq!(memory.free.lock().unwrap().len(), PAGES);
    }
    // Nor in later turns, while it waits.
    behind.send(&sent(TAGGED, 0).0).unwrap();
    for waiting in 1..4 {
        ingress.receive(&mut Budget::default(), &mut Received::default()).unwrap();
        let window = ingress.window();
        assert_eq!(window.order().len(), waiting);
        assert!(window.order().iter().all(|slot| !window.frame(*slot).lent.is_any()));
        assert_eq!(memory.free.lock().unwrap().len(), PAGES);
        ingress.finish(&[Outcome::Waiting; WINDOW]);
        behind.send(&sent(WHOLE, 0).0).unwrap();
    }
}
