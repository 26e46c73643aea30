//! Random calls, completions, balloons, revocations and deaths against a naive model: the ring has what
//! the model has, no page is free while the card may touch it, and no reference is left.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use cdna::{ContextId, Descriptor, Direction, Fault, completion, fault, ring};
use common::{CONTEXT, Owner, assign, card};
use contexts::{ContextMemory, Contexts, EntryError, Protection, Reason, Refusal, State};
use hypervisor::{PageOwner, PageUser};
use proptest::prelude::*;

const PAGES: usize = 12;
const FIRST: u64 = 100;

#[derive(Clone, Debug)]
enum Op {
    /// The pages that each descriptor starts in, counted from one before the first; offset and length.
    Enqueue(bool, Vec<(u64, u16, u16)>),
    /// The card consumes this many.
    Consume(bool, u32),
    GiveUp(usize),
    TakeBack(usize),
    /// The card's index jumps.
    Jump(bool, u32),
    Revoke,
    /// The card confirms the revocation.
    Quiet,
    Fault,
    CardEnds,
    Assign(u32),
    Die,
}

fn op() -> impl Strategy<Value = Op> {
    let descriptor = (0..=PAGES as u64 + 1, 0..4096u16, 0..9000u16);
    prop_oneof![
        40 => (any::<bool>(), prop::collection::vec(descriptor, 0..66))
            .prop_map(|(tx, batch)| Op::Enqueue(tx, batch)),
        40 => (any::<bool>(), 0..128u32).prop_map(|(tx, count)| Op::Consume(tx, count)),
        24 => (0..PAGES).prop_map(Op::GiveUp),
        24 => (0..PAGES).prop_map(Op::TakeBack),
        2 => (any::<bool>(), any::<u32>()).prop_map(|(tx, by)| Op::Jump(tx, by)),
        2 => Just(Op::Revoke),
        8 => Just(Op::Quiet),
        2 => Just(Op::Fault),
        1 => Just(Op::CardEnds),
        14 => prop_oneof![Just(0), Just(u32::MAX - 100), any::<u32>()].prop_map(Op::Assign),
        1 => Just(Op::Die),
    ]
}

/// A ring as the model has it: the descriptors between the card's consumer index and the producer index.
#[derive(Clone, Debug, Default)]
struct ModelRing {
    consumer: u32,
    pending: VecDeque<Descriptor>,
    /// Consumed descriptors of which the hypervisor has not heard.
    unseen: VecDeque<Descriptor>,
}

impl ModelRing {
    fn producer(&self) -> u32 {
        self.consumer.wrapping_add(u32::try_from(self.pending.len()).unwrap())
    }
}

struct Assigned {
    memory: ContextMemory,
    generation: u32,
    rings: [ModelRing; 2],
    revoked: bool,
    jumped: bool,
}

struct World {
    contexts: Arc<Contexts<Owner>>,
    owner: Arc<Owner>,
    assigned: Option<Assigned>,
    alive: bool,
}

fn pages(owner: &Owner, descriptor: &Descriptor) -> std::ops::Range<usize> {
    match descriptor.len {
        0 => 0..0,
        len => {
            let last = descriptor.addr + u64::from(len) - 1;
            owner.page(descriptor.addr)..owner.page(last) + 1
        }
    }
}

impl World {
    fn new() -> Self {
        let owner = Owner::new(1, FIRST, PAGES);
        Self { contexts: card(), owner, assigned: None, alive: true }
    }

    /// What the hypervisor must say to a batch.
    fn judge(&self, direction: Direction, batch: &[Descriptor]) -> Result<(), Refusal> {
        let Some(assigned) = &self.assigned else { return Err(Refusal::NotYours) };
        if assigned.revoked {
            return Err(Refusal::Stopped);
        }
        if !self.alive {
            return Err(Refusal::OwnerEnded);
        }
        if batch.len() > 64 {
            return Err(Refusal::TooMany);
        }
        let pending = assigned.rings[direction as usize].pending.len();
        let free = ring::SLOTS - u32::try_from(pending).unwrap();
        if batch.len() > free as usize {
            return Err(Refusal::Full { free });
        }
        for (index, descriptor) in (0u32..).zip(batch) {
            let (addr, len) = (descriptor.addr, u64::from(descriptor.len));
            let own = FIRST * 4096..(FIRST + PAGES as u64) * 4096;
            let why = match len {
                0 => continue,
                _ if !own.contains(&addr) || addr + len > own.end => EntryError::Foreign,
                _ if pages(&self.owner, descriptor).any(|page| self.owner.is_out(page)) => {
                    EntryError::GivenUp
                }
                _ => continue,
            };
            return Err(Refusal::Entry { index, why });
        }
        Ok(())
    }

    fn enqueue(&mut self, direction: Direction, batch: &[(u64, u16, u16)]) {
        let descriptor = |&(page, offset, len): &(u64, u16, u16)| Descriptor {
            addr: (FIRST - 1 + page) * 4096 + u64::from(offset),
            len,
            flags: offset ^ len,
            seq: 0xdead_beef,
        };
        let batch: Vec<_> = batch.iter().map(descriptor).collect();
        let expected = self.judge(direction, &batch);
        let enqueued = self.contexts.caller(CONTEXT, self.owner.id()).enqueue(direction, &batch);
        if self.assigned.as_ref().is_some_and(|assigned| assigned.jumped) {
            assert!(enqueued.is_err());
            return;
        }
        assert_eq!(enqueued.map(drop), expected);
        let Some(assigned) = &mut self.assigned else { return };
        let model = &mut assigned.rings[direction as usize];
        if !matches!(expected, Err(Refusal::Stopped | Refusal::OwnerEnded | Refusal::TooMany)) {
            model.unseen.clear();
        }
        let Ok(producer) = enqueued else { return };
        for descriptor in batch {
            let seq = model.producer();
            model.pending.push_back(Descriptor { seq, ..descriptor });
        }
        assert_eq!(producer, model.producer());
    }

    fn consume(&mut self, direction: Direction, count: u32) {
        let Some(assigned) = self.assigned.as_mut().filter(|assigned| !assigned.jumped) else {
            return;
        };
        let model = &mut assigned.rings[direction as usize];
        let count = model.pending.len().min(count as usize);
        model.unseen.extend(model.pending.drain(..count));
        model.consumer = model.consumer.wrapping_add(u32::try_from(count).unwrap());
        let at = completion::consumer(direction);
        assigned.memory.completions.write(at, model.consumer).unwrap();
    }

    fn jump(&mut self, direction: Direction, by: u32) {
        let Some(assigned) = self.assigned.as_mut().filter(|assigned| !assigned.jumped) else {
            return;
        };
        let model = &assigned.rings[direction as usize];
        let seen = model.consumer.wrapping_sub(u32::try_from(model.unseen.len()).unwrap());
        let consumer = model.producer().wrapping_add(by);
        // An index between what the hypervisor has seen and the producer index is possible.
        if consumer.wrapping_sub(seen) > model.producer().wrapping_sub(seen) {
            let at = completion::consumer(direction);
            assigned.memory.completions.write(at, consumer).unwrap();
            assigned.jumped = true;
            // It is found at the latest when both rings are checked.
            self.contexts.reclaim(self.owner.id(), 0..0);
            let state = self.contexts.status(CONTEXT).unwrap().state;
            assert!(matches!(state, State::Stopped(_) | State::Revoking(_)), "{state:?}");
        }
    }

    fn apply(&mut self, op: Op) {
        let direction = |tx| if tx { Direction::Tx } else { Direction::Rx };
        match op {
            Op::Enqueue(tx, batch) => self.enqueue(direction(tx), &batch),
            Op::Consume(tx, count) => self.consume(direction(tx), count),
            Op::Jump(tx, by) => self.jump(direction(tx), by),
            Op::GiveUp(page) => self.give_up(page),
            Op::TakeBack(page) => self.owner.take_back(page),
            Op::Assign(start) => self.assign(start),
            Op::Revoke => {
                let revoked = self.contexts.revoke(CONTEXT, Reason::Requested);
                let assigned = self.assigned.as_mut().filter(|assigned| !assigned.revoked);
                assert_eq!(revoked, assigned.as_ref().map(|assigned| assigned.generation));
                assigned.into_iter().for_each(|assigned| assigned.revoked = true);
            }
            Op::Die => {
                self.owner.kill();
                self.alive = false;
                let revoked = self.contexts.owner_ended(self.owner.id());
                let assigned = self.assigned.as_mut().filter(|assigned| !assigned.revoked);
                assert_eq!(revoked.len(), usize::from(assigned.is_some()));
                assigned.into_iter().for_each(|assigned| assigned.revoked = true);
            }
            Op::Quiet => {
                let Some(Assigned { generation, revoked, .. }) = self.assigned else { return };
                assert_eq!(self.contexts.revoked(CONTEXT, generation.wrapping_sub(1)), None);
                let ended = self.contexts.revoked(CONTEXT, generation);
                assert_eq!(ended.is_some(), revoked);
                self.ended(revoked);
            }
            Op::Fault => {
                let Some(Assigned { generation, .. }) = self.assigned else { return };
                let reason = fault::Reason::Sequence;
                let (direction, index, value) = (Direction::Rx, 7, 8);
                let fault = Fault { context: CONTEXT, reason, direction, index, value };
                assert_eq!(self.contexts.fault(generation.wrapping_add(1), fault), None);
                assert!(self.contexts.fault(generation, fault).is_some());
                self.ended(true);
            }
            Op::CardEnds => {
                let ended = self.contexts.card_ended();
                assert_eq!(ended.len(), usize::from(self.assigned.is_some()));
                self.ended(true);
            }
        }
    }

    fn assign(&mut self, start: u32) {
        if self.assigned.is_some() || !self.alive {
            return;
        }
        let (memory, generation) =
            assign(&self.contexts, &self.owner, Protection::Hypervisor, start);
        let rings = [(), ()].map(|()| ModelRing { consumer: start, ..ModelRing::default() });
        self.assigned = Some(Assigned { memory, generation, rings, revoked: false, jumped: false });
    }

    fn give_up(&mut self, page: usize) {
        if self.owner.is_out(page) {
            return;
        }
        let given_up = self.owner.give_up(page);
        let Some(assigned) = &mut self.assigned else {
            assert!(given_up);
            return;
        };
        if assigned.jumped {
            return;
        }
        assigned.rings.iter_mut().for_each(|model| model.unseen.clear());
        let used = assigned
            .rings
            .iter()
            .any(|model| model.pending.iter().any(|d| pages(&self.owner, d).contains(&page)));
        assert_eq!(given_up, !used);
    }

    fn ended(&mut self, ended: bool) {
        if ended {
            self.assigned = None;
            assert_eq!(self.owner.references().pages(), 0, "a reference is leaked");
        }
    }

    fn check(&self) {
        let Some(assigned) = &self.assigned else {
            assert_eq!(self.contexts.status(CONTEXT).unwrap().state, State::Free);
            return;
        };
        let mut counts = [0u32; PAGES];
        for direction in [Direction::Tx, Direction::Rx] {
            let model = &assigned.rings[direction as usize];
            for descriptor in &model.pending {
                let at = ring::offset(direction, descriptor.seq);
                let written: Descriptor = assigned.memory.rings.read(at).unwrap();
                assert_eq!(written, *descriptor);
                for page in pages(&self.owner, descriptor) {
                    assert!(!self.owner.is_out(page), "the card may touch a free page");
                }
            }
            // The next one in the ring is stale: the card would refuse it.
            let next = model.producer();
            if model.pending.len() < ring::SLOTS as usize {
                let at = ring::offset(direction, next);
                let stale: Descriptor = assigned.memory.rings.read(at).unwrap();
                assert_ne!(stale.seq, ring::sequence(next));
            }
            for descriptor in model.pending.iter().chain(&model.unseen) {
                pages(&self.owner, descriptor).for_each(|page| counts[page] += 1);
            }
        }
        if !assigned.jumped {
            for (page, count) in counts.into_iter().enumerate() {
                assert_eq!(self.owner.references().count(page), count, "page {page}");
            }
            let held = self.contexts.status(CONTEXT).unwrap().references;
            assert_eq!(held, counts.iter().sum::<u32>() as usize);
        }
    }

    fn finish(mut self) {
        self.contexts.revoke(CONTEXT, Reason::Requested);
        if let Some(assigned) = &mut self.assigned {
            assigned.revoked = true;
            assert!(self.contexts.revoked(CONTEXT, assigned.generation).is_some());
            self.ended(true);
        }
        assert_eq!(Arc::strong_count(&self.owner), 1, "the domain's memory is kept");
        let free = self.contexts.list().iter().all(|status| status.state == State::Free);
        assert!(free && self.contexts.status(ContextId::new(8)).is_none());
    }
}

proptest! {
    #[test]
    fn no_page_is_free_while_the_card_may_touch_it(ops in prop::collection::vec(op(), 0..300)) {
        let mut world = World::new();
        world.apply(Op::Assign(u32::MAX - 300));
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}
