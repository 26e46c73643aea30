//! Grant reuse on demand: pages that the backend keeps mapped without asking, of a guest that ends
//! grants and reuses their references as it likes. Whatever it does, a frame's bytes are those that
//! grant copies would carry at that moment.

use std::time::Duration;

use hypervisor::{
    CopyStatus, Counted, Dest, GrantCopy, GrantRef, Granted, Hypervisor, Metered, Source,
};
use machine::Machine;
use netback::{GrantReuse, Offered, TxChannel, VifQueue};
use offload::Features;
use port::{DropReason, Ingress, Outcome, Place, WINDOW};
use port_testing::{receive, with_body};
use proptest::prelude::*;
use wire::netif::{TxRequest, TxResponse};

use crate::common::guest::{DATA, OFFERED, PAGE, PAGES, REQ_PROD, RSP_PROD, RX_RING, Raw, TX_RING};
use crate::common::taker::{Taker, pass};
use crate::common::tampered::Tampered;

/// `GTF_permit_access`, and with `GTF_readonly`.
const PERMIT: u16 = 1;
const PERMIT_READ: u16 = PERMIT | 4;
/// Places of the two caches together.
const KEPT: u16 = 16;
/// A frame's bytes from here on are its page's number; before are its headers.
const BODY: usize = 128;

/// A guest whose pages stay mapped on demand, and the backend's end.
struct World<H: Hypervisor> {
    hypervisor: H,
    raw: Raw,
    queue: VifQueue<H>,
    sent: u32,
    /// Pages that are pinned: the rings.
    rings: usize,
}

impl<H: Hypervisor> World<H> {
    fn new(machine: &Machine, hypervisor: H, tx: TxChannel) -> Self {
        Self::with_places(machine, hypervisor, tx, KEPT)
    }

    fn with_places(machine: &Machine, hypervisor: H, tx: TxChannel, places: u16) -> Self {
        let raw = Raw::new(machine);
        (DATA..PAGES).for_each(|page| raw.write(page, BODY, [number(page); PAGE - BODY]));
        let reuse = GrantReuse::OnDemand;
        let offered = Offered { tx, persistent_grants: places, reuse, ..OFFERED };
        let mut vif = raw.announce_as(hypervisor.clone(), offered);
        let queue = raw.connect(&mut vif, Features::ALL);
        let rings = raw.domain.pinned();
        Self { hypervisor, raw, queue, sent: 0, rings }
    }

    /// Puts a packet of 600 bytes in one page on the TX ring, and takes it. Returns whether it became a
    /// frame.
    fn send(&mut self, gref: u32) -> bool {
        let slot = TxRequest { gref, offset: 0, flags: 0, id: 1, size: 600 };
        self.raw.write(TX_RING, Raw::slot::<TxRequest>(self.sent), slot);
        self.sent += 1;
        self.raw.write(TX_RING, REQ_PROD, self.sent);
        receive(&mut self.queue.tx).unwrap().fresh == 1
    }

    fn answer_all(&mut self) {
        self.queue.tx.finish(&[Outcome::Delivered; WINDOW]);
    }

    fn last_answer(&self) -> i16 {
        self.raw.read::<TxResponse>(TX_RING, Raw::slot::<TxRequest>(self.sent - 1)).status
    }

    /// What a copy of the body of the frame in a slot gives now, and what a grant copy would give.
    fn bodies(&self, slot: u8) -> [Option<Vec<u8>>; 2] {
        let peer = self.hypervisor.peer(self.raw.domain.id()).unwrap();
        let frame = self.queue.tx.window().frame(slot);
        let [fragment] = &*frame.fragments else { panic!("one page") };
        let Place::Grant(Granted { gref, offset, .. }) = fragment.place else { panic!("granted") };
        let by_cache = with_body(&self.queue.tx, |body| {
            let memory = body.local::<H>().expect("of this platform");
            copy_out(&self.hypervisor, memory.source(fragment, 0, fragment.len), fragment.len)
        });
        let source = Source::Grant { peer: &peer, gref, offset };
        [by_cache, copy_out(&self.hypervisor, source, fragment.len)]
    }

    /// Delivers a frame of 100 bytes to a buffer.
    fn deliver(&mut self, gref: u32) -> Outcome {
        self.raw.deliver(&mut self.queue.rx, gref, 100)
    }

    /// The page into which the last frame was written, found by its bytes.
    fn written(&self) -> Vec<u32> {
        let n = self.raw.read::<u32>(RX_RING, RSP_PROD) - 1;
        let response = self.raw.response(n);
        let at = usize::from(response.offset);
        let is_it = |page: &u32| self.raw.read::<[u8; 12]>(*page, at) == [0xc3; 12];
        let pages = (DATA..PAGES).filter(is_it).collect();
        for page in DATA..PAGES {
            self.raw.write(page, at, [0u8; 100]);
            self.raw.write(page, BODY, [number(page); PAGE - BODY]);
        }
        pages
    }

    fn pinned(&self) -> usize {
        self.raw.domain.pinned() - self.rings
    }
}

/// The bytes that one copy gives; none if it is refused.
fn copy_out<H: Hypervisor>(
    hypervisor: &H,
    source: Source<'_, H::Peer>,
    len: u16,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len.into()];
    let mut batch = [GrantCopy::new(source, Dest::Private(&mut bytes), len)];
    hypervisor.copy(&mut batch);
    let okay = batch[0].status == CopyStatus::Okay;
    okay.then_some(bytes)
}

fn number(page: u32) -> u8 {
    u8::try_from(page).unwrap()
}

fn world(tx: TxChannel) -> World<Machine> {
    let machine = Machine::new();
    World::new(&machine, machine.clone(), tx)
}

const CHANNELS: [TxChannel; 2] = [TxChannel::Header, TxChannel::Remap];

fn counted(tx: TxChannel, places: u16) -> (World<Metered<Machine>>, impl Fn(Counted) -> u64) {
    let machine = Machine::new();
    let platform = Metered::new(machine.clone());
    let meter = platform.meter().clone();
    meter.switch(true);
    (World::with_places(&machine, platform, tx, places), move |what| meter.count(what))
}

#[test]
fn a_page_is_mapped_once_and_then_found() {
    for tx in CHANNELS {
        let (mut world, count) = counted(tx, KEPT);
        let before = count(Counted::Maps);
        for round in 0..100 {
            assert!(world.send(DATA), "{tx}");
            let [by_cache, by_grant] = world.bodies(world.queue.tx.window().order()[0]);
            assert_eq!(by_cache.unwrap(), by_grant.unwrap(), "{tx}");
            world.answer_all();
            assert_eq!(world.deliver(DATA + 1), Outcome::Delivered, "{tx}");
            assert_eq!(world.written(), [DATA + 1], "{tx}, round {round}");
        }
        assert_eq!(count(Counted::Maps) - before, 2, "{tx}: one in each direction");
        assert_eq!(count(Counted::Unmaps), 0, "{tx}");
        assert_eq!((count(Counted::GrantHits), count(Counted::GrantMisses)), (198, 2), "{tx}");
    }
}

/// What Linux's netfront does with every packet.
#[test]
fn a_guest_that_ends_a_grant_and_reuses_its_reference_gets_the_new_page() {
    for tx in CHANNELS {
        let mut world = world(tx);
        for page in (DATA..PAGES).cycle().take(200) {
            world.raw.grant(9000 % 500, PERMIT, 0, page);
            world.raw.grant(400, PERMIT_READ, 0, page);
            assert!(world.send(400), "{tx}");
            let [by_cache, _] = world.bodies(world.queue.tx.window().order()[0]);
            assert_eq!(by_cache.unwrap(), vec![number(page); 600 - BODY], "{tx}");
            world.answer_all();
            // Nothing keeps it from this.
            assert_eq!((world.last_answer(), world.pinned()), (0, 0), "{tx}");
            world.raw.grant(401, PERMIT, 0, page);
            assert_eq!(world.deliver(401), Outcome::Delivered, "{tx}");
            assert_eq!(world.written(), [page], "{tx}");
        }
    }
}

#[test]
fn a_grant_that_was_ended_is_refused_although_its_page_is_mapped() {
    for tx in CHANNELS {
        let mut world = world(tx);
        assert!(world.send(DATA), "{tx}");
        let slot = world.queue.tx.window().order()[0];
        // In hand, mapped, and then ended: read-only first, then not at all.
        for flags in [PERMIT_READ, 0] {
            world.raw.grant(DATA, flags, 0, DATA);
            let [by_cache, by_grant] = world.bodies(slot);
            assert_eq!(by_cache, by_grant, "{tx}");
            assert_eq!(by_cache.is_some(), flags != 0, "{tx}");
        }
        world.answer_all();
        assert!(!world.send(DATA), "{tx}: its header cannot be read");
        world.answer_all();
        assert!(world.last_answer() < 0, "{tx}");
        assert_eq!(world.deliver(DATA + 1), Outcome::Delivered);
        for flags in [PERMIT_READ, 0] {
            world.written();
            world.raw.grant(DATA + 1, flags, 0, DATA + 1);
            let refused = Outcome::Dropped(DropReason::MemoryFault);
            assert_eq!(world.deliver(DATA + 1), refused, "{tx}");
            assert_eq!(world.written(), [0u32; 0], "{tx}");
        }
        // Granted to another domain, or a page that does not exist.
        for (domid, frame) in [(7, DATA), (0, PAGES), (0, u32::MAX)] {
            world.raw.grant(DATA, PERMIT, domid, frame);
            assert!(!world.send(DATA), "{tx}");
        }
    }
}

/// The references never come again, so no mapping is worth its price.
#[test]
fn a_flood_of_references_costs_its_neighbours_few_mappings() {
    let (mut world, count) = counted(TxChannel::Header, KEPT);
    let mapped = count(Counted::Maps);
    let lookups = 20_000u32;
    for n in 0..lookups {
        let gref = DATA + n % (PAGES - DATA);
        assert!(world.send(gref));
        world.answer_all();
    }
    let maps = count(Counted::Maps) - mapped;
    // Full of credit at first, then a mapping for every 32 lookups.
    assert!(maps <= u64::from(u32::from(KEPT / 2) + lookups / 32), "{maps} mappings");
    assert!(maps >= u64::from(lookups / 64), "it adapts all the same: {maps}");
    assert!(count(Counted::GrantEvictions) >= maps - u64::from(KEPT), "the bound holds");
}

#[test]
fn nearly_every_page_of_a_ring_is_found() {
    for tx in CHANNELS {
        // Half of them for each direction.
        let (mut world, count) = counted(tx, 2 * 32);
        for n in 0..4000u32 {
            assert!(world.send(DATA + n % 32));
            world.answer_all();
        }
        let (hits, misses) = (count(Counted::GrantHits), count(Counted::GrantMisses));
        assert_eq!((hits, misses, count(Counted::GrantEvictions)), (3968, 32, 0), "{tx}");
    }
}

#[test]
fn no_more_pages_are_mapped_than_the_guests_share_permits() {
    let (mut world, count) = counted(TxChannel::Header, 8);
    for round in 0..3 {
        for page in DATA..PAGES {
            assert!(world.send(page), "round {round}");
            let [by_cache, by_grant] = world.bodies(world.queue.tx.window().order()[0]);
            assert_eq!(by_cache, by_grant);
            world.answer_all();
        }
    }
    let mapped = count(Counted::GrantMisses) - count(Counted::GrantEvictions);
    assert!(mapped > 0, "places come free by eviction only");
    assert_eq!(world.pinned(), 0);
}

/// The guest rewrites its grants and pages between any two of the backend's reads of them.
#[test]
fn the_fastest_guest_changes_its_own_bytes_only() {
    for tx in CHANNELS {
        let machine = Machine::new();
        let hypervisor = Tampered::new(&machine);
        let mut taker = Taker::new(&machine, hypervisor.clone(), Features::ALL);
        let mut world = World::new(&machine, hypervisor.clone(), tx);
        let memory = world.raw.memory.clone();
        let mut reads = 0u64;
        hypervisor.set(move || {
            reads += 1;
            let page = u64::from(DATA) + reads % 8;
            let flags = u64::from(if reads.is_multiple_of(5) { 0 } else { PERMIT });
            let entry = memory.atomic_u64(DATA as usize * 8).unwrap();
            entry.store(flags | page << 32, std::sync::atomic::Ordering::Release);
            memory.write(DATA as usize * PAGE + 20, reads).unwrap();
        });
        for n in 0..300u32 {
            let slot = TxRequest { gref: DATA, offset: 0, flags: 0, id: 1, size: 600 };
            world.raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot);
            world.raw.write(TX_RING, REQ_PROD, n + 1);
            // Checks that the frame arrives with the header that was parsed.
            pass(&mut world.queue, &mut taker, Duration::ZERO).unwrap();
        }
        hypervisor.set(|| ());
        assert_eq!(world.raw.read::<u32>(TX_RING, RSP_PROD), 300, "{tx}");
        assert_eq!(world.pinned(), 0, "{tx}");
    }
}

/// One thing that a guest does.
#[derive(Clone, Debug)]
enum Step {
    /// It grants a page by a reference, with these flags, or ends the grant.
    Grant { gref: u32, flags: u16, domid: u16, page: u32 },
    /// It sends from a page.
    Send(u32),
    /// The frames in hand are sent.
    Answer,
    /// It posts a buffer, and a frame comes for it.
    Receive(u32),
    /// Its balloon takes pages, so that it has this many.
    Balloon(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let gref = DATA..DATA + 12;
    let flags = prop::sample::select(vec![PERMIT, PERMIT, PERMIT_READ, 0, 2]);
    let domid = prop::sample::select(vec![0u16, 0, 0, 0, 7]);
    prop_oneof![
        4 => (gref.clone(), flags, domid, DATA..PAGES + 2)
            .prop_map(|(gref, flags, domid, page)| Step::Grant { gref, flags, domid, page }),
        6 => gref.clone().prop_map(Step::Send),
        2 => Just(Step::Answer),
        6 => gref.prop_map(Step::Receive),
        1 => (50..PAGES as usize + 1).prop_map(Step::Balloon),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The naive model keeps nothing mapped: it makes a grant copy at each use.
    #[test]
    fn it_is_a_grant_copy(
        remap in any::<bool>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = world(if remap { TxChannel::Remap } else { TxChannel::Header });
        let machine = world.hypervisor.clone();
        let peer = machine.peer(world.raw.domain.id()).unwrap();
        for step in steps {
            match step {
                Step::Grant { gref, flags, domid, page } => {
                    world.raw.grant(gref, flags, domid, page);
                }
                Step::Balloon(pages) => {
                    // What cannot be given up stays.
                    let _ = world.raw.inside.set_reservation(pages);
                }
                Step::Send(_) if world.queue.tx.window().is_full() => {}
                Step::Send(gref) => {
                    let source = Source::Grant { peer: &peer, gref: GrantRef(gref), offset: 0 };
                    let readable = copy_out(&machine, source, 1).is_some();
                    prop_assert_eq!(world.send(gref), readable);
                }
                Step::Answer => world.answer_all(),
                Step::Receive(gref) => {
                    let dest = Dest::Grant { peer: &peer, gref: GrantRef(gref), offset: 0 };
                    let mut batch = [GrantCopy::new(Source::Private(&[0]), dest, 1)];
                    machine.copy(&mut batch);
                    let writable = batch[0].status == CopyStatus::Okay;
                    let page = world.raw.read::<u32>(0, gref as usize * 8 + 4);
                    let refused = Outcome::Dropped(DropReason::MemoryFault);
                    let expected = if writable { Outcome::Delivered } else { refused };
                    prop_assert_eq!(world.deliver(gref), expected);
                    let pages = if writable { vec![page] } else { vec![] };
                    prop_assert_eq!(world.written(), pages);
                }
            }
            for slot in world.queue.tx.window().order() {
                let [by_cache, by_grant] = world.bodies(*slot);
                prop_assert_eq!(by_cache, by_grant);
            }
            prop_assert_eq!(world.pinned(), 0);
        }
    }
}
