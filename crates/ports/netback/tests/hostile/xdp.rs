//! Room for an XDP program before each frame, as Linux' netfront asks for it.

use std::sync::Arc;
use std::time::Duration;

use machine::{Machine, toolstack};
use netback::{Vif, VifChange, VifQueue};
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Fragment, Frame, Outcome};
use port_testing::{offer, segments};
use proptest::prelude::*;
use shm::Region;
use wire::headers::Headers;
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::{RxResponse, rx_flags};

use crate::common::guest::{BUFFERS, DATA, OFFERED, PAGE, RSP_PROD, RX_RING, Raw};

/// What Linux asks for: `XDP_PACKET_HEADROOM`.
const HEADROOM: u16 = 256;
const CONNECTED: &str = "4";
const RECONFIGURING: u32 = 7;
const RECONFIGURED: &str = "8";

struct World {
    machine: Machine,
    raw: Raw,
    vif: Vif<Machine>,
    queue: Option<VifQueue<Machine>>,
    posted: u32,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let raw = Raw::new(&machine);
        let mut vif = raw.announce(machine.clone());
        let queue = Some(raw.connect(&mut vif, Features::ALL));
        vif.connected().unwrap();
        Self { machine, raw, vif, queue, posted: 0 }
    }

    fn backend_key(&self, key: &str) -> String {
        let path = toolstack::backend_path(self.raw.domain.id(), 0);
        self.raw.driver_store.read(None, &format!("{path}/{key}")).unwrap()
    }

    /// The frontend enters a state.
    fn enter(&mut self, state: u32) {
        self.raw.key("state", state);
        assert!(matches!(self.vif.frontend_changed().unwrap(), VifChange::None));
    }

    fn ask_for(&mut self, headroom: impl std::fmt::Display) {
        self.raw.key("xdp-headroom", headroom);
        assert!(matches!(self.vif.frontend_changed().unwrap(), VifChange::None));
    }

    /// Delivers a frame, and returns each packet that came: where it began, its bytes and its extras.
    fn deliver(&mut self, bytes: &[u8], gso: Option<Gso>) -> Vec<(u16, Vec<u8>, Vec<Extra>)> {
        let (frame, regions) = frame_of(bytes, gso);
        let first = self.posted;
        self.raw.post(first..first + 200);
        let rx = &mut self.queue.as_mut().unwrap().rx;
        let outcome = offer(rx, Body::Regions(&regions), &frame, Duration::ZERO).unwrap();
        let mut packets = Vec::new();
        let end = self.raw.read::<u32>(RX_RING, RSP_PROD);
        assert_eq!(outcome == Outcome::Delivered, end > first);
        let mut responses = (first..end).map(|n| (n, self.raw.response(n)));
        while let Some((n, response)) = responses.next() {
            let (mut bytes, mut extras) = (self.bytes(n, response), Vec::new());
            let mut more = response.flags & rx_flags::EXTRA_INFO != 0;
            while more {
                let info: ExtraInfo = zerocopy::transmute!(responses.next().unwrap().1);
                more = info.more();
                extras.push(Extra::decode(&info).unwrap());
            }
            let mut last = response;
            while last.flags & rx_flags::MORE_DATA != 0 {
                let (n, part) = responses.next().unwrap();
                bytes.extend(self.bytes(n, part));
                last = part;
            }
            packets.push((response.offset, bytes, extras));
        }
        // Those that were not used are used next.
        self.posted = end;
        packets
    }

    fn bytes(&self, n: u32, response: RxResponse) -> Vec<u8> {
        let bytes = self.raw.received(DATA + n % BUFFERS, response);
        assert!(usize::from(response.offset) + bytes.len() <= PAGE);
        bytes
    }
}

/// Bytes before the payload of a TCP segment.
const HEADERS: usize = 54;

/// A TCP segment of this many bytes.
fn tcp(len: usize) -> Vec<u8> {
    port_testing::tcp(len - HEADERS)
}

fn frame_of(bytes: &[u8], gso: Option<Gso>) -> (Frame, Arc<[Region]>) {
    let mut frame = Frame { checksum: Checksum::Partial, gso, ..port_testing::frame(bytes) };
    let rest = &bytes[frame.header().len()..];
    let body = Region::anonymous(1 << 16).unwrap();
    body.copy_in(0, rest).unwrap();
    if !rest.is_empty() {
        frame.fragments.push(Fragment::in_region(0, 0, rest.len().try_into().unwrap()));
    }
    (frame, [body].into())
}

/// The same frame with its checksum.
fn whole(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let headers = Headers::parse(&bytes).unwrap();
    offload::complete_checksum(&mut bytes, &headers).unwrap();
    bytes
}

const GSO: Gso = Gso { kind: GsoKind::TcpV4, size: 1448 };

#[test]
fn a_frontend_gets_room_for_its_program_while_it_asks_for_it() {
    let mut world = World::new();
    assert_eq!(world.backend_key("feature-xdp-headroom"), "1");
    let (short, long) = (tcp(60), tcp(9000));
    assert_eq!(world.deliver(&short, None), [(0, short.clone(), vec![])]);
    let [(0, got, extras)] = &world.deliver(&long, Some(GSO))[..] else { panic!("one packet") };
    assert!(*got == long && extras.len() == 1);

    world.enter(RECONFIGURING);
    assert_eq!(world.backend_key("state"), RECONFIGURED);
    world.ask_for(HEADROOM);
    for _ in 0..2 {
        let xdp = vec![Extra::Xdp { headroom: HEADROOM }];
        assert_eq!(world.deliver(&short, None), [(HEADROOM, whole(&short), xdp.clone())]);
        let packets = world.deliver(&long, Some(GSO));
        let expected = segments(&long, GSO).into_iter().map(|one| (HEADROOM, one, xdp.clone()));
        assert!(packets.into_iter().eq(expected), "segments, each in one page");
        // A program gets no frame in two pages.
        assert_eq!(world.deliver(&tcp(PAGE - 256), None).len(), 1);
        assert!(world.deliver(&tcp(PAGE - 255), None).is_empty());
        world.enter(4);
        assert_eq!(world.backend_key("state"), CONNECTED);
    }

    world.enter(RECONFIGURING);
    world.ask_for(0);
    assert_eq!(world.backend_key("state"), RECONFIGURED);
    world.enter(4);
    assert_eq!(world.deliver(&short, None), [(0, short.clone(), vec![])]);
    assert_eq!(world.deliver(&long, Some(GSO)).len(), 1);
}

/// Each segment takes a buffer more. A connection whose segments are small must not end for that.
#[test]
fn room_for_a_program_costs_no_frame_of_many_segments() {
    let mut world = World::new();
    let gso = Gso { size: 500, ..GSO };
    let frame = tcp(HEADERS + 98 * 500);
    assert_eq!(segments(&frame, gso).len(), 98);
    world.ask_for(HEADROOM);
    let packets = world.deliver(&frame, Some(gso));
    // The guest's pages are fewer than its buffers.
    let lens = |bytes: Vec<u8>| bytes.len();
    let got = packets.into_iter().map(|(_, bytes, _)| lens(bytes));
    assert!(got.eq(segments(&frame, gso).into_iter().map(lens)));
}

#[test]
fn the_next_backend_keeps_the_room_and_answers_who_waits() {
    for (state, shown) in [(4, CONNECTED), (RECONFIGURING, RECONFIGURED)] {
        let mut world = World::new();
        world.enter(RECONFIGURING);
        world.ask_for(HEADROOM);
        assert_eq!(world.backend_key("state"), RECONFIGURED);
        // It is killed before it sees the next state.
        world.queue = None;
        world.raw.key("state", state);
        world.vif = world.raw.adopt(world.machine.clone(), OFFERED);
        let VifChange::Connect(mut connection) = world.vif.frontend_changed().unwrap() else {
            panic!("it is connected")
        };
        world.vif.connected().unwrap();
        assert_eq!(world.backend_key("state"), shown);
        world.queue = connection.queues.pop();
        assert_eq!(world.deliver(&tcp(60), None)[0].0, HEADROOM);
        world.enter(4);
        assert_eq!(world.backend_key("state"), CONNECTED);
    }
}

#[test]
fn the_next_driver_gets_no_room_that_it_did_not_ask_for() {
    let mut world = World::new();
    world.ask_for(HEADROOM);
    assert_eq!(world.deliver(&tcp(60), None)[0].0, HEADROOM);
    world.raw.key("state", 5);
    assert!(matches!(world.vif.frontend_changed().unwrap(), VifChange::Disconnect));
    world.vif.disconnected().unwrap();
    let path = format!("{}/xdp-headroom", toolstack::device_path(0));
    assert!(world.raw.store.read(None, &path).is_err());
}

proptest! {
    /// Whatever is asked for, a frame lies in its page behind what its extra says, or is dropped.
    #[test]
    fn any_headroom_leaves_frames_whole(headroom in prop_oneof![0u32..5000, any::<u32>()], len in 60usize..4200) {
        let mut world = World::new();
        world.ask_for(headroom);
        let bytes = tcp(len);
        for (offset, got, extras) in world.deliver(&bytes, None) {
            match headroom {
                0 => prop_assert!(got == bytes && extras.is_empty() && offset == 0),
                _ => {
                    prop_assert_eq!(got, whole(&bytes));
                    prop_assert_eq!(extras, [Extra::Xdp { headroom: offset }]);
                }
            }
            prop_assert_eq!(u32::from(offset), headroom.min(2048));
        }
    }
}
