//! The hypervisor's part of a card, and a guest that writes anything into its call page.

use std::sync::Arc;
use std::time::Duration;

use cdna::call::{ENTRIES, HEADER, Header, MapEntry};
use cdna::{ContextId, Descriptor, Direction, completion, ring};
use contexts::{Call, ContextMemory, Contexts, IommuMode, Performed, Protection, Reason, State};
use hypervisor::PageOwner;
use iommu::{Access, Geometry};
use shm::Region;

use crate::common::{CardTranslator, Owner, assign_to, card, region, translator};

const PAGES: usize = 20;
const FIRST: u64 = 512;
/// The protections of contexts 0, 1, 2 and 3.
const PROTECTIONS: [Protection; 4] = [
    Protection::Hypervisor,
    Protection::Iommu(IommuMode::Strict),
    Protection::Iommu(IommuMode::Deferred { pages: 5, after: Duration::from_millis(10) }),
    Protection::Iommu(IommuMode::Static),
];

struct Assigned {
    memory: ContextMemory,
    generation: u32,
    card: CardTranslator,
    /// The card's consumer indices.
    consumers: [u32; 2],
}

struct World {
    contexts: Arc<Contexts<Owner>>,
    owner: Arc<Owner>,
    page: Arc<Region>,
    call: Call,
    assigned: Vec<Assigned>,
    now: Duration,
}

fn id(context: usize) -> ContextId {
    ContextId::new(u8::try_from(context).unwrap())
}

impl World {
    fn new(start: u32) -> Self {
        let (contexts, owner) = (card(), Owner::new(1, FIRST, PAGES));
        let assigned = (0..PROTECTIONS.len())
            .map(|context| Assigned::new(&contexts, &owner, context, start))
            .collect();
        let (page, call, now) = (region(4096), Call::default(), Duration::ZERO);
        Self { contexts, owner, page, call, assigned, now }
    }

    /// The hypervisor performs what the call page says; the guest changes it right after the copy.
    fn call(&mut self, context: usize, changed: u8) {
        let copied = self.call.copy(&self.page);
        self.page.copy_in(usize::from(changed) * 8, &[changed; 64]).unwrap();
        if copied.is_err() {
            return;
        }
        let performed =
            self.contexts.caller(id(context), self.owner.id()).perform(&self.call, self.now);
        if let Performed::Waits(unmapping, _) = performed {
            self.assigned[context].card.serve();
            assert!(self.contexts.is_unmapped(unmapping), "a quiet card confirms at once");
        }
    }

    /// All descriptors in the rings are the guest's.
    fn check_rings(&self) {
        self.check_ring(0, Direction::Tx);
        self.check_ring(0, Direction::Rx);
    }

    fn check_ring(&self, context: usize, direction: Direction) {
        let status = self.contexts.status(id(context)).unwrap();
        let Assigned { memory, consumers, .. } = &self.assigned[context];
        let mut index = consumers[direction as usize];
        for _ in 0..ring::SLOTS {
            let at = ring::offset(direction, index);
            let descriptor: Descriptor = memory.rings.read(at).unwrap();
            if descriptor.seq != ring::sequence(index) {
                break;
            }
            index = index.wrapping_add(1);
            if descriptor.len == 0 {
                continue;
            }
            let last = descriptor.addr + u64::from(descriptor.len) - 1;
            for address in (descriptor.addr..last).step_by(4096).chain([last]) {
                let page = self.owner.page(address);
                assert!(self.owner.owns(page), "the card may touch page {page}");
                assert!(self.owner.references().count(page) > 0);
            }
        }
        assert!(status.pending.iter().all(|pending| *pending <= ring::SLOTS));
    }

    /// The card consumes descriptors that the hypervisor wrote.
    fn consume(&mut self, context: usize, direction: Direction, count: u8) {
        let Assigned { memory, consumers, .. } = &mut self.assigned[context];
        let consumer = &mut consumers[direction as usize];
        for _ in 0..count {
            let written: Descriptor =
                memory.rings.read(ring::offset(direction, *consumer)).unwrap();
            // With an IOMMU the guest writes descriptors, as many as it likes.
            let is_guests = PROTECTIONS[context] != Protection::Hypervisor;
            if !is_guests && written.seq != ring::sequence(*consumer) {
                break;
            }
            *consumer = consumer.wrapping_add(1);
        }
        memory.completions.write(completion::consumer(direction), *consumer).unwrap();
    }

    /// The card touches any address.
    fn touch(&mut self, context: usize, page: u8, write: bool) {
        let card = &mut self.assigned[context].card;
        let access = if write { Access::Write } else { Access::Read };
        let transfer = card.begin();
        let address = (FIRST - 2 + u64::from(page)) * 4096 + 3;
        if let Ok(machine) = card.translate(&transfer, address, access) {
            let page = self.owner.page(machine);
            assert!(self.owner.owns(page), "the card touches page {page}");
        }
        card.end(transfer);
    }

    /// The card is quiet, and the context is assigned again.
    fn revoke(&mut self, context: usize, start: u32) {
        let generation = self.assigned[context].generation;
        assert_eq!(self.contexts.revoke(id(context), Reason::Requested), Some(generation));
        assert!(self.contexts.revoked(id(context), generation).is_some());
        self.assigned[context] = Assigned::new(&self.contexts, &self.owner, context, start);
    }

    fn finish(self) {
        for context in 0..PROTECTIONS.len() {
            assert_eq!(self.contexts.status(id(context)).unwrap().state, State::Active);
        }
        self.contexts.card_ended();
        assert_eq!(self.owner.references().pages(), 0, "a reference is left");
        assert_eq!(Arc::strong_count(&self.owner), 1);
    }
}

impl Assigned {
    fn new(
        contexts: &Arc<Contexts<Owner>>,
        owner: &Arc<Owner>,
        context: usize,
        start: u32,
    ) -> Self {
        let (memory, generation) =
            assign_to(contexts, id(context), owner, PROTECTIONS[context], start);
        let card = translator(&memory, Geometry { entries: 4, ways: 2 });
        Self { memory, generation, card, consumers: [start; 2] }
    }
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

fn step(world: &mut World, input: &mut &[u8]) -> Option<()> {
    let [tag] = take(input)?;
    let context = usize::from(tag & 3);
    let direction = if tag & 4 == 0 { Direction::Tx } else { Direction::Rx };
    match tag >> 3 {
        0..4 => {
            let [operation, count, serial] = take(input)?;
            let header = Header {
                operation: u32::from(operation % 6),
                count: u32::from(count) % 70,
                serial: serial.into(),
                reserved: 0,
            };
            world.page.write(HEADER, header).unwrap();
        }
        4..8 => {
            // Descriptors near the guest's memory.
            let [slot, count, page, offset, len, flags] = take(input)?;
            for n in 0..u64::from(count % 64) {
                let page = FIRST - 1 + (u64::from(page) + n) % (PAGES as u64 + 3);
                let addr = page * 4096 + u64::from(offset) * 17;
                let len = u16::from(len) * 40;
                let descriptor = Descriptor { addr, len, flags: flags.into(), seq: 0 };
                let slot = (usize::from(slot) + usize::try_from(n).unwrap()) % 64;
                world.page.write(ENTRIES + slot * 16, descriptor).unwrap();
            }
        }
        8..12 => {
            let [slot, machine_page, page, pages] = take(input)?;
            let entry = MapEntry {
                machine_page: FIRST - 1 + u64::from(machine_page) % (PAGES as u64 + 3),
                page: u32::from(page) % 24,
                pages: u16::from(pages >> 3) % 6,
                permission: u16::from(pages & 7) % 5,
            };
            world.page.write(ENTRIES + usize::from(slot % 64) * 16, entry).unwrap();
        }
        12 => {
            let [slot] = take(input)?;
            let bytes: [u8; 16] = take(input)?;
            world.page.write(ENTRIES + usize::from(slot % 64) * 16, bytes).unwrap();
        }
        13 => {
            let bytes: [u8; 16] = take(input)?;
            world.page.write(HEADER, bytes).unwrap();
        }
        14..22 => {
            let [changed] = take(input)?;
            world.call(context, changed);
            if context == 0 {
                world.check_rings();
            }
        }
        22..24 => world.consume(context, direction, take::<1>(input)?[0]),
        24..27 => {
            let [page] = take(input)?;
            world.touch(context, page % 26, tag & 4 != 0);
        }
        27 => {
            let [page] = take(input)?;
            let page = usize::from(page) % PAGES;
            if tag & 4 == 0 {
                world.owner.give_up(page);
            } else {
                world.owner.take_back(page);
            }
            world.check_rings();
        }
        28 => world.assigned[context].card.serve(),
        29 => {
            if world.assigned[context].card.sleep() {
                world.contexts.tick(world.now);
                world.assigned[context].card.wake();
            }
        }
        30 => {
            world.now += Duration::from_millis(take::<1>(input)?[0].into());
            world.contexts.tick(world.now);
        }
        _ => world.revoke(context, u32::from_le_bytes(take(input)?)),
    }
    Some(())
}

/// Runs an input: the index of the first descriptors, and then steps, each a tag byte and its arguments.
pub fn run(mut input: &[u8]) {
    let Some(start) = take(&mut input) else { return };
    let mut world = World::new(u32::from_le_bytes(start));
    while step(&mut world, &mut input).is_some() {}
    world.finish();
}
