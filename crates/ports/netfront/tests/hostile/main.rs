//! Backends that mean harm, with the frontend's rings and its store in their hands.

mod store;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::{EvtchnPort, Hypervisor};
use machine::{Domain, Machine, MachineGuest, MemorySize};
use netfront::{
    Config, ConnectError, Fault, Frontend, FrontendQueue, RING_LEN, Received, TxBuffer,
};
use offload::Checksum;
use proptest::prelude::*;
use shm::{Iovec, Region};
use wire::netif::extra::Extra;
use wire::netif::{GsoKind, HashKind, RxResponse, rx_flags};
use zerocopy::IntoBytes as _;

use store::Keys;

const PAGE: usize = 4096;
/// Offsets in a ring's page.
const REQ_PROD: usize = 0;
const RSP_PROD: usize = 8;
const SLOTS: usize = 64;
/// Bytes of a slot.
const RX: usize = 8;
const TX: usize = 12;

/// A frontend whose backend a test plays.
struct World {
    _machine: Machine,
    _domain: Arc<Domain>,
    memory: Region,
    _frontend: Frontend<MachineGuest>,
    queue: FrontendQueue<MachineGuest>,
    tx: usize,
    rx: usize,
    /// RX requests and responses so far.
    posted: u32,
    answered: u32,
}

impl World {
    fn connect(
        offered: impl FnMut(&str) -> Option<String> + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let machine = Machine::new();
        let size = MemorySize { pages: 2048, grant_pages: 4, ..MemorySize::default() };
        let domain = machine.create(size).unwrap();
        let guest = MachineGuest::inside(&machine, &domain).unwrap();
        let memory = Region::map(guest.memory(), 0, size.pages * PAGE).unwrap();
        let keys = Arc::new(Keys::new(offered));
        // Nobody would answer on a control ring.
        let config = Config {
            timeout: Duration::from_secs(5),
            persistent_grants: false,
            ..Config::default()
        };
        let (frontend, mut queues) = Frontend::connect(&guest, keys.clone(), "device", &config)?;
        for key in ["event-channel", "event-channel-tx", "event-channel-rx"] {
            if let Some(port) = keys.number(&format!("device/{key}")) {
                machine.bind_interdomain(&domain, EvtchnPort(port)).unwrap();
            }
        }
        let ring = |key| {
            let gref = keys.number(&format!("device/{key}")).unwrap() as usize;
            memory.read::<u32>(gref * 8 + 4).unwrap() as usize * PAGE
        };
        let (tx, rx) = (ring("tx-ring-ref"), ring("rx-ring-ref"));
        let queue = queues.remove(0);
        let (_machine, _domain, _frontend) = (machine, domain, frontend);
        Ok(Self { _machine, _domain, memory, _frontend, queue, tx, rx, posted: 0, answered: 0 })
    }

    /// A backend that answers in any order.
    fn any_order() -> Self {
        Self::connect(|key| (key == "feature-rx-any-order").then(|| "1".into())).unwrap()
    }

    /// The ids of the requests that were posted since the last call.
    fn requests(&mut self) -> Vec<u16> {
        let end: u32 = self.memory.read(self.rx + REQ_PROD).unwrap();
        let id = |n: u32| self.memory.read(self.rx + SLOTS + n as usize % RING_LEN * RX).unwrap();
        let ids = (self.posted..end).map(id).collect();
        self.posted = end;
        ids
    }

    fn answer(&mut self, slot: [u8; RX]) {
        let at = self.rx + SLOTS + self.answered as usize % RING_LEN * RX;
        self.memory.write(at, slot).unwrap();
        self.answered += 1;
        self.memory.write(self.rx + RSP_PROD, self.answered).unwrap();
    }

    fn respond(&mut self, id: u16, flags: u16, status: i16) {
        let slot = RxResponse { id, offset: 0, flags, status };
        self.answer(slot.as_bytes().try_into().unwrap());
    }

    fn extra(&mut self, extra: Extra, more: bool) {
        self.answer(extra.encode(more).unwrap().as_bytes().try_into().unwrap());
    }

    /// The lengths of all frames that have come, each of whose bytes are the frontend's own.
    fn receive(&mut self) -> Result<Vec<usize>, Fault> {
        let mut frame = Received::default();
        let mut lens = Vec::new();
        while self.queue.rx.receive(&mut frame)? {
            let mut sum = 0;
            for fragment in self.queue.rx.fragments(&frame) {
                let Iovec::Shared { region, offset, len } = fragment else {
                    panic!("shared memory")
                };
                region.copy_out(offset, &mut vec![0; len]).unwrap();
                assert!(len > 0 && offset % PAGE + len <= PAGE);
                sum += len;
            }
            assert_eq!(sum, frame.len);
            lens.push(sum);
        }
        Ok(lens)
    }
}

/// A backend that answers in any order says with a GSO extra which request it used up, and with others nothing. A buffer too few would be
/// free, and another one posted twice.
#[test]
fn an_extra_that_names_no_request_ends_a_ring_that_is_answered_in_any_order() {
    let hash = Extra::Hash { kind: HashKind::Ipv4, algorithm: 1, value: 7 };
    for extra in [hash, Extra::Xdp { headroom: 256 }] {
        let mut world = World::any_order();
        let ids = world.requests();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), RING_LEN);
        world.respond(ids[5], rx_flags::EXTRA_INFO, 100);
        world.extra(extra, false);
        assert_eq!(world.receive(), Err(Fault::UnnamedRequest));
    }
    let mut world = World::any_order();
    let ids = world.requests();
    world.respond(ids[5], rx_flags::EXTRA_INFO, 100);
    let (size, kind) = (1448.try_into().unwrap(), GsoKind::TcpV4);
    world.extra(Extra::Gso { size, kind, features: ids[9] }, false);
    assert_eq!(world.receive(), Ok(vec![100]));
    world.queue.rx.publish();
    assert_eq!(world.requests().into_iter().collect::<BTreeSet<_>>(), [ids[5], ids[9]].into());
}

#[test]
fn a_request_that_is_answered_twice_ends_a_ring_that_is_answered_in_any_order() {
    for (first, second) in [(3, 3), (3, 256), (3, u16::MAX)] {
        let mut world = World::any_order();
        world.respond(first, 0, 100);
        world.respond(second, 0, 100);
        assert_eq!(world.receive(), Err(Fault::UnknownId(second)));
    }
}

#[test]
fn frames_with_an_error_or_without_bytes_are_dropped_and_their_buffers_posted_again() {
    for any_order in [false, true] {
        let mut world = match any_order {
            true => World::any_order(),
            false => World::connect(|_| None).unwrap(),
        };
        let ids = world.requests();
        for (n, status) in [-1, i16::MIN, 0, 60].into_iter().enumerate() {
            world.respond(ids[n], 0, status);
        }
        // A first part with an error costs what follows too.
        world.respond(ids[4], rx_flags::MORE_DATA, -3);
        world.respond(ids[5], 0, 100);
        assert_eq!(world.receive(), Ok(vec![60]));
        assert_eq!(world.queue.rx.take_errors(), 4);
        world.queue.rx.publish();
        let again: BTreeSet<_> = world.requests().into_iter().collect();
        assert_eq!(again, ids[..6].iter().copied().collect(), "{any_order}");
        let mut world = World::connect(|_| None).unwrap();
        world.respond(0, 0, 4097);
        assert_eq!(world.receive(), Err(Fault::CrossesPage { offset: 0, len: 4097 }));
    }
}

#[test]
fn more_responses_than_requests_end_the_queue() {
    for index in [257, 0x8000_0000, u32::MAX] {
        let mut world = World::connect(|_| None).unwrap();
        world.memory.write(world.rx + RSP_PROD, index).unwrap();
        assert!(matches!(world.receive(), Err(Fault::Ring(_))));
        world.memory.write(world.tx + RSP_PROD, index).unwrap();
        assert!(matches!(world.queue.tx.reclaim(), Err(Fault::Ring(_))));
    }
}

/// Otherwise a queue could be made for one way to receive and used in another.
#[test]
fn what_a_backend_offers_is_read_once_and_ways_that_exclude_each_other_are_not_mixed() {
    let mut reads = 0;
    let first_none = move |key: &str| match key {
        "feature-rx-guest-copy" => {
            reads += 1;
            Some(u32::from(reads > 1).to_string())
        }
        _ => Some("nonsense".into()),
    };
    // No copier is searched for: there is no such.
    World::connect(first_none).unwrap();
    let both = |key: &str| key.starts_with("feature-rx-").then(|| "1".into());
    let mut world = World::connect(both).unwrap();
    // It lies in the first request's place, and its id names no request.
    world.respond(999, 0, 100);
    assert_eq!(world.receive(), Ok(vec![100]));
}

/// A frame of this many bytes, if there is room. No page is handed out twice.
fn send(queue: &mut FrontendQueue<MachineGuest>, len: u16) {
    let places: Vec<_> = queue.tx.buffers().collect();
    let address = |place: &TxBuffer<'_>| (place.len, place.offset);
    let distinct: BTreeSet<_> = places.iter().map(address).collect();
    assert_eq!(distinct.len(), places.len(), "a page is in use twice");
    let _ = queue.tx.send(len, Checksum::Partial, None);
    queue.tx.publish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a backend writes to its keys, to the rings and as indices, at any moment.
    #[test]
    fn a_backend_that_writes_anything_ends_at_most_its_own_queue(
        // Each read of a key finds the next of these.
        values in prop::collection::vec(prop::sample::select(vec!["", "0", "1", "2", "255", "-1", "hypercall 7"]), 1..40),
        steps in prop::collection::vec((0u8..8, any::<u8>(), any::<[u8; TX]>(), any::<u16>()), 1..150),
    ) {
        let mut values = values.into_iter().cycle();
        let mut all = move |key: &str| {
            // Nobody fills transfer slots, nor grants copies.
            let value = values.next().filter(|value| !value.is_empty())?;
            (key != "multi-queue-max-queues").then(|| value.to_owned())
        };
        // A connection that fails is none.
        let Ok(mut world) = World::connect(move |key| all(key)) else { return Ok(()) };
        for (what, at, bytes, word) in steps {
            let at = usize::from(at);
            let near = |base: u32| base.wrapping_add(u32::from(word % 40));
            let is_over = match what {
                0 => {
                    world.memory.write(world.tx + SLOTS + at * TX, bytes).unwrap();
                    false
                }
                1 => {
                    let slot: [u8; RX] = bytes[..RX].try_into().unwrap();
                    world.memory.write(world.rx + SLOTS + at * RX, slot).unwrap();
                    false
                }
                2 | 3 => {
                    let ring = if what == 2 { world.tx } else { world.rx };
                    let index = match at {
                        0..8 => u32::from_le_bytes(bytes[..4].try_into().unwrap()),
                        _ => near(world.memory.read(ring + RSP_PROD).unwrap()),
                    };
                    world.memory.write(ring + RSP_PROD, index).unwrap();
                    false
                }
                4 => {
                    send(&mut world.queue, word);
                    false
                }
                5 => world.queue.tx.reclaim().is_err() || world.queue.tx.arm().is_err(),
                6 => world.receive().is_err() || world.queue.rx.arm().is_err(),
                _ => {
                    world.queue.rx.publish();
                    false
                }
            };
            // What a frontend sends again after its backend's end is of its own memory too.
            for frame in world.queue.tx.unanswered() {
                prop_assert!(frame.bytes.len() <= usize::from(u16::MAX));
            }
            if is_over {
                break;
            }
        }
    }
}
