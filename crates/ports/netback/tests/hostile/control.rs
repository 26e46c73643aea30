//! The control ring: its messages, and the lists of grants that they name.

use std::sync::Arc;

use hypervisor::Hypervisor;
use machine::Machine;
use netback::{ControlRing, RxChannel, TxChannel, Vif, VifQueue};
use offload::Features;
use port::{Outcome, Task};
use wire::netif::ctrl::status;
use wire::netif::{
    CtrlMessage, CtrlRequest, CtrlResponse, GrefMapping, RxResponse, TxRequest, TxResponse,
};

use crate::common::guest::{
    CTRL_RING, DATA, LIST, PAGES, PERSISTENT, REQ_PROD, RSP_PROD, RX_RING, Raw, TX_RING,
};
use crate::common::tampered::Tampered;

/// A guest with a control ring, and the backend's ends.
pub struct World<H: Hypervisor> {
    pub raw: Arc<Raw>,
    pub vif: Vif<H>,
    pub queue: VifQueue<H>,
    pub control: ControlRing<H>,
    pub asked: u32,
    pub sent: u32,
    /// Pages that are pinned without persistent grants: the rings.
    pub rings: usize,
}

pub const READ_ONLY: u16 = GrefMapping::READ_ONLY;
/// `GTF_permit_access`, and with `GTF_readonly`.
const PERMIT: u16 = 1;
pub const PERMIT_READ: u16 = PERMIT | 4;

pub fn world() -> World<Machine> {
    let machine = Machine::new();
    World::new(&machine, machine.clone())
}

pub fn entry(gref: u32) -> GrefMapping {
    GrefMapping { gref, flags: 0, status: 0 }
}

pub fn entries(grefs: impl IntoIterator<Item = u32>) -> Vec<GrefMapping> {
    grefs.into_iter().map(entry).collect()
}

impl<H: Hypervisor> World<H> {
    pub fn new(machine: &Machine, hypervisor: H) -> Self {
        Self::of(Raw::new(machine), hypervisor)
    }

    /// The same with a header channel.
    pub fn with_headers(machine: &Machine, hypervisor: H) -> Self {
        let raw = Raw::new(machine);
        raw.supply_headers();
        Self::of(raw, hypervisor)
    }

    fn of(raw: Raw, hypervisor: H) -> Self {
        let vif = raw.announce(hypervisor);
        Self::connected(raw, vif)
    }

    fn connected(raw: Raw, mut vif: Vif<H>) -> Self {
        let (queue, control) = raw.connect_with_control(&mut vif);
        let rings = raw.domain.pinned();
        Self { raw: Arc::new(raw), vif, queue, control, asked: 0, sent: 0, rings }
    }

    /// Puts a request on the ring.
    pub fn put(&mut self, request: CtrlRequest) {
        let slot = 64 + (self.asked % 128) as usize * 16;
        self.raw.write(CTRL_RING, slot, request);
        self.asked += 1;
        self.raw.write(CTRL_RING, REQ_PROD, self.asked);
    }

    /// Sends a request, and serves the ring until there is an answer.
    fn ask_raw(&mut self, request: CtrlRequest) -> CtrlResponse {
        self.put(request);
        while self.control.step().unwrap() {}
        assert_eq!(self.raw.read::<u32>(CTRL_RING, RSP_PROD), self.asked);
        let slot = 64 + ((self.asked - 1) % 128) as usize * 16;
        let response: CtrlResponse = self.raw.read(CTRL_RING, slot);
        assert_eq!((response.id, response.kind), (request.id, request.kind));
        response
    }

    pub fn ask(&mut self, message: CtrlMessage) -> CtrlResponse {
        self.ask_raw(message.request(u16::try_from(self.asked % 1000).unwrap()))
    }

    pub fn write_list(&self, list: &[GrefMapping]) -> u32 {
        (0..).zip(list).for_each(|(n, entry)| self.raw.write(LIST, n * 8, *entry));
        u32::try_from(list.len()).unwrap()
    }

    pub fn add(&mut self, list: &[GrefMapping]) -> u32 {
        let entries = self.write_list(list);
        self.ask(CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries }).status
    }

    /// Unmaps grants. Returns which were unmapped.
    pub fn remove(&mut self, list: &[GrefMapping]) -> Vec<bool> {
        let entries = self.write_list(list);
        let response = self.ask(CtrlMessage::DelGrefMapping { queue: 0, gref: LIST, entries });
        assert_eq!(response.status, status::SUCCESS);
        let status = |n| self.raw.read::<GrefMapping>(LIST, n * 8).status;
        let removed: Vec<_> = (0..list.len()).map(|n| status(n) == 0).collect();
        assert_eq!(response.data as usize, removed.iter().filter(|one| **one).count());
        removed
    }

    /// Mapped pages other than the rings.
    pub fn mapped(&self) -> usize {
        let mapped = self.raw.domain.pinned() - self.rings;
        assert_eq!(mapped, self.control.grants()[0].mapped());
        mapped
    }

    /// Whether the guest can see that a grant is in use.
    pub fn is_pinned(&self, gref: u32) -> bool {
        self.raw.read::<u16>(0, gref as usize * 8) & 0x18 != 0
    }

    /// Puts a packet of these pages on the TX ring, with `len` bytes each.
    pub fn send(&mut self, pages: &[u32], size: u16) {
        let last = pages.len() - 1;
        for (n, page) in pages.iter().enumerate() {
            let whole = size * u16::try_from(pages.len()).unwrap();
            let slot = TxRequest {
                gref: *page,
                offset: 0,
                flags: if n < last { 4 } else { 0 },
                id: 1,
                size: if n == 0 { whole } else { size },
            };
            self.raw.write(TX_RING, Raw::slot::<TxRequest>(self.sent), slot);
            self.sent += 1;
        }
        self.raw.write(TX_RING, REQ_PROD, self.sent);
    }

    pub fn last_answer(&self) -> i16 {
        let slot = Raw::slot::<TxRequest>(self.sent - 1);
        self.raw.read::<TxResponse>(TX_RING, slot).status
    }

    /// Delivers a frame of `len` bytes to the guest, in a buffer granted by `gref`.
    pub fn deliver(&mut self, gref: u32, len: usize) -> Outcome {
        self.raw.deliver(&mut self.queue.rx, gref, len)
    }

    /// The response to the buffer that was used last.
    pub fn response(&self) -> RxResponse {
        self.raw.response(self.raw.read::<u32>(RX_RING, RSP_PROD) - 1)
    }
}

#[test]
fn only_what_is_offered_is_supported() {
    let mut world = world();
    let size = |queue| CtrlMessage::GetGrefMappingSize { queue };
    let answer = world.ask(size(0));
    assert_eq!((answer.status, answer.data), (status::SUCCESS, PERSISTENT.into()));
    for queue in [1, u32::MAX] {
        assert_eq!(world.ask(size(queue)).status, status::INVALID_PARAMETER);
        let add = CtrlMessage::AddGrefMapping { queue, gref: LIST, entries: 0 };
        assert_eq!(world.ask(add).status, status::INVALID_PARAMETER);
        let remove = CtrlMessage::DelGrefMapping { queue, gref: LIST, entries: 0 };
        assert_eq!(world.ask(remove).status, status::INVALID_PARAMETER);
    }
    // The hash kinds, with numbers that are too large, and kinds that there are not.
    let too_large = [
        (1, status::NOT_SUPPORTED),
        (2, status::INVALID_PARAMETER),
        (3, status::BUFFER_OVERFLOW),
        (4, status::SUCCESS),
        (5, status::INVALID_PARAMETER),
        (6, status::BUFFER_OVERFLOW),
        (7, status::INVALID_PARAMETER),
    ];
    let unknown = [0, 11, 0x100, u16::MAX].map(|kind| (kind, status::NOT_SUPPORTED));
    for (kind, expected) in too_large.into_iter().chain(unknown) {
        let request = CtrlRequest { id: 9, kind, data: [u32::MAX; 3] };
        assert_eq!(world.ask_raw(request).status, expected, "{kind}");
    }
}

#[test]
fn a_list_is_mapped_whole_or_not_at_all() {
    let mut world = world();
    assert_eq!(world.add(&[]), status::SUCCESS);
    assert_eq!(world.add(&entries(DATA..DATA + 3)), status::SUCCESS);
    assert_eq!(world.mapped(), 3);
    let fresh = DATA + 3..DATA + 21;
    let with = |n: usize, odd| {
        let mut list = entries(fresh.clone());
        list[n] = odd;
        list
    };
    world.raw.grant(DATA + 30, PERMIT_READ, 0, DATA + 30);
    world.raw.grant(DATA + 31, PERMIT, 7, DATA + 31);
    let unknown_flag = GrefMapping { flags: 2, ..entry(DATA + 32) };
    // In the first pass, and in the second.
    let anywhere = [0, 5, 17].as_slice();
    for (what, odd, places) in [
        ("beyond the table", entry(PAGES + 600), anywhere),
        ("the last there can be", entry(u32::MAX), anywhere),
        ("granted to another", entry(DATA + 31), anywhere),
        ("read-only, to be written", entry(DATA + 30), anywhere),
        ("with a flag that is none", unknown_flag, anywhere),
        ("mapped already", entry(DATA + 1), anywhere),
        ("twice in the list", entry(DATA + 3 + 1), anywhere),
        ("twice in the list, a step apart", entry(DATA + 3 + 17), &[0, 5]),
    ] {
        for n in places {
            assert_eq!(world.add(&with(*n, odd)), status::INVALID_PARAMETER, "{what}, entry {n}");
            assert_eq!(world.mapped(), 3, "{what}, entry {n}");
        }
    }
    // Pages that were mapped before stay mapped, and are found.
    assert!((DATA..DATA + 3).all(|gref| world.is_pinned(gref)));
    let list = with(17, GrefMapping { flags: READ_ONLY, ..entry(DATA + 30) });
    assert_eq!(world.add(&list), status::SUCCESS);
    assert_eq!(world.mapped(), 21);
    assert_eq!(world.add(&list[..2]), status::INVALID_PARAMETER);
}

#[test]
fn no_more_is_mapped_than_was_offered() {
    let mut world = world();
    let bound = u32::from(PERSISTENT);
    assert_eq!(world.add(&entries(DATA..DATA + bound + 1)), status::BUFFER_OVERFLOW);
    assert_eq!(world.mapped(), 0);
    assert_eq!(world.add(&entries(DATA..DATA + bound)), status::SUCCESS);
    assert_eq!(world.add(&[entry(DATA + bound)]), status::BUFFER_OVERFLOW);
    assert_eq!(world.remove(&[entry(DATA + 3)]), [true]);
    assert_eq!(world.add(&[entry(DATA + bound)]), status::SUCCESS);
    assert_eq!(world.mapped(), bound as usize);
    // Longer than fits a page.
    for entries in [513, 0x1_0000, u32::MAX] {
        let add = CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries };
        assert_eq!(world.ask(add).status, status::INVALID_PARAMETER);
        let remove = CtrlMessage::DelGrefMapping { queue: 0, gref: LIST, entries };
        assert_eq!(world.ask(remove).status, status::INVALID_PARAMETER);
    }
    assert_eq!(world.mapped(), bound as usize);
}

#[test]
fn a_list_that_can_not_be_read_or_answered_is_refused() {
    let mut world = world();
    assert_eq!(world.add(&entries(DATA..DATA + 3)), status::SUCCESS);
    for gref in [600, u32::MAX] {
        let add = CtrlMessage::AddGrefMapping { queue: 0, gref, entries: 1 };
        assert_eq!(world.ask(add).status, status::INVALID_PARAMETER);
    }
    world.raw.grant(LIST, PERMIT_READ, 0, LIST);
    assert_eq!(world.add(&[entry(DATA + 5)]), status::SUCCESS);
    // It is unmapped, but its status cannot be written.
    let count = world.write_list(&[entry(DATA)]);
    let remove = CtrlMessage::DelGrefMapping { queue: 0, gref: LIST, entries: count };
    let answer = world.ask(remove);
    assert_eq!((answer.status, answer.data), (status::INVALID_PARAMETER, 1));
    assert_eq!(world.mapped(), 3);
}

#[test]
fn a_list_is_read_once() {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let mut world = World::new(&machine, hypervisor.clone());
    let guest = world.raw.clone();
    let mut reads = 0;
    // The list changes before each read of the backend.
    hypervisor.set(move || {
        reads += 1;
        (0..4).for_each(|n| guest.write(LIST, n as usize * 8, entry(DATA + reads % 8 * 4 + n)));
    });
    let add = CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries: 4 };
    assert_eq!(world.ask(add).status, status::SUCCESS);
    hypervisor.set(|| ());
    let mapped: Vec<_> = (DATA..PAGES).filter(|gref| world.is_pinned(*gref)).collect();
    assert_eq!(mapped.len(), 4);
    assert!(mapped[0].is_multiple_of(4) && mapped[3] == mapped[0] + 3, "of two lists: {mapped:?}");
}

#[test]
fn a_flood_of_messages_is_served_a_step_at_a_time() {
    let mut world = world();
    let list = entries(DATA..DATA + 24);
    let entries = world.write_list(&list);
    let ask = |n: u16| match n % 3 {
        0 => CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries },
        1 => CtrlMessage::DelGrefMapping { queue: 0, gref: LIST, entries },
        _ => CtrlMessage::GetGrefMappingSize { queue: 0 },
    };
    (0..128).for_each(|n| world.put(ask(n).request(n)));
    let mut answered = 0;
    while answered < 1000 {
        let mapped = world.mapped();
        assert!(world.control.step().unwrap());
        assert!(world.mapped().abs_diff(mapped) <= 16, "more than a step");
        let now: u32 = world.raw.read(CTRL_RING, RSP_PROD);
        assert!(now - answered <= 1, "more than a message");
        if now > answered {
            // New requests come as fast as the backend answers.
            world.put(ask(u16::try_from(world.asked).unwrap()).request(0));
        }
        answered = now;
    }
}

#[test]
fn a_ring_that_cannot_be_followed_is_a_fault() {
    for index in [129, 0x8000_0000, u32::MAX] {
        let mut world = world();
        world.raw.write(CTRL_RING, REQ_PROD, index);
        assert!(world.control.step().unwrap_err().0.starts_with("control ring: "), "{index}");
    }
    let mut world = world();
    world.ask(CtrlMessage::GetGrefMappingSize { queue: 0 });
    world.raw.write(CTRL_RING, REQ_PROD, 0u32);
    assert!(world.control.step().is_err());
}

#[test]
fn a_frontend_without_the_ring_is_not_asked_for_one() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce(machine.clone());
    assert!(raw.connect_all(&mut vif, Features::ALL).control.is_none());
    // Where pages are flipped, none stays mapped.
    for (tx, rx) in [(TxChannel::Remap, RxChannel::Flip), (TxChannel::Header, RxChannel::Flip)] {
        let raw = Raw::with_exchange(&machine, 8);
        let vif = raw.announce_by(machine.clone(), tx, rx);
        let mut world = World::connected(raw, vif);
        let size = world.ask(CtrlMessage::GetGrefMappingSize { queue: 0 });
        assert_eq!(size.status, status::NOT_SUPPORTED, "{tx} {rx}");
    }
}

#[test]
fn where_packets_are_mapped_buffers_can_stay_mapped() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let vif = raw.announce_by(machine.clone(), TxChannel::Remap, RxChannel::Copy);
    let mut world = World::connected(raw, vif);
    assert_eq!(world.add(&entries(DATA..DATA + 4)), status::SUCCESS);
    assert_eq!(world.deliver(DATA, 100), Outcome::Delivered);
    // Mapped for the packet, and unmapped after it.
    world.send(&[DATA], 600);
    assert_eq!(port_testing::receive(&mut world.queue.tx).unwrap().fresh, 1);
    port::Ingress::finish(&mut world.queue.tx, &[Outcome::Delivered; port::WINDOW]);
    assert_eq!(world.mapped(), 4);
    assert_eq!(world.remove(&entries(DATA..DATA + 4)), [true; 4]);
}
