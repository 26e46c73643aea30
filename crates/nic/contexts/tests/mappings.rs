//! The three modes of the IOMMU with the card's half of it, against a naive model: the card reaches what
//! is mapped, no page is free while it does, and no reference is left.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cdna::call::MapEntry;
use common::{CONTEXT, CardTranslator, Owner, assign, card, translator};
use contexts::{Contexts, EntryError, IommuMode, Protection, Reason, Refusal, Unmapping};
use hypervisor::PageOwner;
use iommu::{Access, FaultKind, Geometry, Transfer};
use proptest::prelude::*;

const PAGES: usize = 12;
const FIRST: u64 = 100;

#[derive(Clone, Debug)]
enum Op {
    /// Page of the table, page of the domain counted from one before the first, how many, permission.
    Map(Vec<(u32, u64, u16, u16)>),
    Unmap(Vec<(u32, u16)>),
    Pass(u64),
    Poll,
    GiveUp(usize),
    TakeBack(usize),
    Begin,
    Touch(u32, bool),
    End(usize),
    Serve,
    Sleep,
    Wake,
    Revoke,
}

fn op() -> impl Strategy<Value = Op> {
    let pages = u32::try_from(PAGES).unwrap();
    let map = (0..=pages, 0..=PAGES as u64 + 1, 0..4u16, 0..=4u16);
    let unmap = (0..=pages, 0..4u16);
    prop_oneof![
        12 => prop::collection::vec(map, 0..4).prop_map(Op::Map),
        6 => prop::collection::vec(unmap, 0..3).prop_map(Op::Unmap),
        3 => (0..40u64).prop_map(Op::Pass),
        6 => Just(Op::Poll),
        5 => (0..PAGES).prop_map(Op::GiveUp),
        4 => (0..PAGES).prop_map(Op::TakeBack),
        5 => Just(Op::Begin),
        16 => (0..=pages, any::<bool>()).prop_map(|(page, write)| Op::Touch(page, write)),
        6 => (0..4usize).prop_map(Op::End),
        8 => Just(Op::Serve),
        2 => Just(Op::Sleep),
        2 => Just(Op::Wake),
        1 => Just(Op::Revoke),
    ]
}

struct Busy {
    transfer: Transfer,
    /// Pages of the domain that it uses.
    uses: BTreeSet<usize>,
}

struct World {
    contexts: Arc<Contexts<Owner>>,
    owner: Arc<Owner>,
    mode: IommuMode,
    generation: u32,
    card: CardTranslator,
    asleep: bool,
    revoked: bool,
    busy: Vec<Busy>,
    now: Duration,
    /// What the guest has mapped: the domain's page and the permission, by page of the table.
    mapped: BTreeMap<u32, (usize, u16)>,
    /// Calls that wait, and the domain's pages of each.
    waiting: Vec<(Unmapping, Vec<usize>)>,
}

impl World {
    fn new(mode: IommuMode) -> Self {
        let (contexts, owner) = (card(), Owner::new(1, FIRST, PAGES));
        let (memory, generation) = assign(&contexts, &owner, Protection::Iommu(mode), 0);
        let card = translator(&memory, Geometry { entries: 4, ways: 2 });
        let mut mapped = BTreeMap::new();
        if mode == IommuMode::Static {
            mapped.extend((0..PAGES).map(|page| (u32::try_from(page).unwrap(), (page, 3))));
        }
        Self {
            contexts,
            owner,
            mode,
            generation,
            card,
            asleep: false,
            revoked: false,
            busy: Vec::new(),
            now: Duration::ZERO,
            mapped,
            waiting: Vec::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Map(entries) => self.map(&entries),
            Op::Unmap(runs) => self.unmap(&runs),
            Op::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                self.contexts.tick(self.now);
            }
            Op::Poll => self.poll(),
            Op::GiveUp(page) => self.give_up(page),
            Op::TakeBack(page) => self.take_back(page),
            Op::Begin if !self.asleep && self.busy.len() < 4 => {
                let transfer = self.card.begin();
                self.busy.push(Busy { transfer, uses: BTreeSet::new() });
            }
            Op::Touch(page, write) => self.touch(page, write),
            Op::End(which) if which < self.busy.len() => {
                let Busy { transfer, .. } = self.busy.remove(which);
                self.card.end(transfer);
            }
            Op::Serve if !self.asleep => self.card.serve(),
            Op::Sleep if !self.asleep => self.asleep = self.card.sleep(),
            Op::Wake if self.asleep => {
                self.card.wake();
                self.asleep = false;
            }
            Op::Revoke => {
                let revoked = self.contexts.revoke(CONTEXT, Reason::Requested);
                assert_eq!(revoked.is_some(), !self.revoked);
                self.revoked = true;
            }
            _ => {}
        }
    }

    fn map(&mut self, entries: &[(u32, u64, u16, u16)]) {
        let entry = |&(page, own, pages, permission): &(u32, u64, u16, u16)| MapEntry {
            machine_page: FIRST - 1 + own,
            page,
            pages,
            permission,
        };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let mapped = self.contexts.caller(CONTEXT, self.owner.id()).map(&entries, self.now);
        let expected = self.judge(&entries);
        match mapped {
            // Pages that were unmapped may not be given back yet.
            Err(Refusal::Entry { why: EntryError::Mapping(_), .. }) => {}
            mapped => assert_eq!(mapped.map(drop), expected.as_ref().map(drop).map_err(|why| *why)),
        }
        if let (Ok(_), Ok(new)) = (mapped, expected) {
            self.mapped.extend(new);
        }
    }

    /// What is mapped after a call, if it is accepted.
    fn judge(&self, entries: &[MapEntry]) -> Result<BTreeMap<u32, (usize, u16)>, Refusal> {
        if self.revoked {
            return Err(Refusal::Stopped);
        }
        if self.mode == IommuMode::Static {
            return Err(Refusal::WrongProtection);
        }
        let mut new = BTreeMap::new();
        for (index, entry) in (0u32..).zip(entries) {
            let own = FIRST..FIRST + PAGES as u64;
            let end = entry.machine_page + u64::from(entry.pages);
            let pages = entry.machine_page.saturating_sub(FIRST)..end.saturating_sub(FIRST);
            let why = if !(1..=3).contains(&entry.permission) {
                EntryError::Permission
            } else if entry.pages == 0 {
                EntryError::Empty
            } else if entry.machine_page < own.start || end > own.end {
                EntryError::Foreign
            } else if pages.clone().any(|page| self.owner.is_out(usize::try_from(page).unwrap())) {
                EntryError::GivenUp
            } else {
                let own = pages.map(|page| (usize::try_from(page).unwrap(), entry.permission));
                new.extend((entry.page..).zip(own));
                continue;
            };
            return Err(Refusal::Entry { index, why });
        }
        Ok(new)
    }

    fn unmap(&mut self, runs: &[(u32, u16)]) {
        let entry = |&(page, pages): &(u32, u16)| MapEntry { page, pages, ..MapEntry::default() };
        let entries: Vec<_> = runs.iter().map(entry).collect();
        let unmapped = self.contexts.caller(CONTEXT, self.owner.id()).unmap(&entries, self.now);
        let mut pages = BTreeSet::new();
        let mut all = runs.iter().flat_map(|&(page, pages)| page..page + u32::from(pages));
        let sound = all.all(|page| self.mapped.contains_key(&page) && pages.insert(page))
            && runs.iter().all(|(_, pages)| *pages > 0);
        assert_eq!(unmapped.is_ok(), sound && self.may_call());
        let Ok(unmapping) = unmapped else { return };
        let used = pages.iter().filter_map(|page| self.mapped.remove(page)).map(|(own, _)| own);
        let used = used.collect();
        self.waiting.extend(unmapping.map(|unmapping| (unmapping, used)));
        self.poll();
    }

    fn may_call(&self) -> bool {
        !self.revoked && self.mode != IommuMode::Static
    }

    /// No transfer uses what is unmapped. A page that is mapped at another place too, or whose
    /// other unmapping still waits, may be in use there.
    fn poll(&mut self) {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (done, waiting): (Vec<_>, _) =
            waiting.partition(|(unmapping, _)| self.contexts.is_unmapped(*unmapping));
        self.waiting = waiting;
        let mut held: BTreeSet<_> = self.mapped.values().map(|(own, _)| *own).collect();
        held.extend(self.waiting.iter().flat_map(|(_, pages)| pages));
        for page in done.iter().flat_map(|(_, pages)| pages).filter(|page| !held.contains(page)) {
            let used = self.busy.iter().any(|busy| busy.uses.contains(page));
            assert!(!used, "unmapped while a transfer uses it");
        }
    }

    fn give_up(&mut self, page: usize) {
        let was_out = self.owner.is_out(page);
        if !self.owner.give_up(page) || was_out {
            return;
        }
        if self.mode == IommuMode::Static {
            self.mapped.remove(&u32::try_from(page).unwrap());
        }
        assert!(!self.mapped.values().any(|(own, _)| *own == page), "a mapped page is free");
    }

    fn take_back(&mut self, page: usize) {
        self.owner.take_back(page);
        if self.mode == IommuMode::Static && !self.revoked {
            self.mapped.insert(u32::try_from(page).unwrap(), (page, 3));
        }
    }

    fn touch(&mut self, page: u32, write: bool) {
        let Some(busy) = self.busy.last_mut() else { return };
        let access = if write { Access::Write } else { Access::Read };
        let bit = if write { MapEntry::MAY_WRITE } else { MapEntry::MAY_READ };
        let address = (FIRST + u64::from(page)) * 4096 + 5;
        let mapped = self.mapped.get(&page);
        match self.card.translate(&busy.transfer, address, access) {
            Ok(machine) => {
                let own = self.owner.page(machine);
                busy.uses.insert(own);
                if let Some((expected, permission)) = mapped {
                    assert!(own == *expected && permission & bit != 0);
                }
            }
            Err(fault) if fault.kind == FaultKind::Outside => assert_eq!(page as usize, PAGES),
            // A static page that was kept after all is mapped again when the card has given it back.
            Err(_) if self.mode == IommuMode::Static => {}
            Err(_) => assert!(mapped.is_none_or(|(_, permission)| permission & bit == 0)),
        }
    }

    fn check(&self) {
        let used = self.busy.iter().flat_map(|busy| &busy.uses);
        let reached = used.copied().chain(self.mapped.values().map(|(own, _)| *own));
        for page in reached.filter(|_| self.mode != IommuMode::Static) {
            assert!(!self.owner.is_out(page), "the card may touch a free page");
        }
        for page in self.busy.iter().flat_map(|busy| &busy.uses) {
            assert!(!self.owner.is_out(*page), "the card touches a free page");
        }
    }

    fn finish(mut self) {
        if self.asleep {
            self.card.wake();
        }
        std::mem::take(&mut self.busy).into_iter().for_each(|busy| self.card.end(busy.transfer));
        self.contexts.tick(self.now + Duration::from_secs(1));
        self.card.serve();
        self.poll();
        assert!(self.waiting.is_empty(), "a quiet card has confirmed everything");
        self.contexts.tick(self.now);
        let held = self.contexts.status(CONTEXT).unwrap().references;
        if !self.revoked || self.mode != IommuMode::Static {
            assert_eq!(held, self.mapped.len(), "a page is leaked");
        }
        self.contexts.revoke(CONTEXT, Reason::Requested);
        assert!(self.contexts.revoked(CONTEXT, self.generation).is_some());
        assert_eq!(self.owner.references().pages(), 0, "a reference is leaked");
        assert_eq!(Arc::strong_count(&self.owner), 1);
    }
}

fn mode() -> impl Strategy<Value = IommuMode> {
    let after = Duration::from_millis(50);
    prop_oneof![
        Just(IommuMode::Static),
        Just(IommuMode::Strict),
        (1..6u32).prop_map(move |pages| IommuMode::Deferred { pages, after }),
    ]
}

proptest! {
    #[test]
    fn no_page_is_free_while_the_card_may_reach_it(
        mode in mode(),
        ops in prop::collection::vec(op(), 0..300),
    ) {
        let mut world = World::new(mode);
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

#[test]
fn a_static_page_is_unmapped_when_it_is_given_up_and_mapped_when_it_is_back() {
    let mut world = World::new(IommuMode::Static);
    world.apply(Op::Begin);
    world.touch(4, true);
    assert!(!world.owner.give_up(4), "a transfer uses it");
    world.apply(Op::Serve);
    assert!(!world.owner.give_up(4), "it still does");
    world.apply(Op::End(0));
    world.apply(Op::Serve);
    assert!(world.owner.give_up(4));
    world.apply(Op::Begin);
    world.touch(4, true);
    assert!(world.busy[0].uses.is_empty());
    world.take_back(4);
    world.touch(4, true);
    assert_eq!(world.busy[0].uses.len(), 1);
}

/// A deferred world with page 3 mapped and unmapped at time 0. The card has not been asked.
fn deferred(pages: u32) -> World {
    let mut world = World::new(IommuMode::Deferred { pages, after: Duration::from_millis(50) });
    world.apply(Op::Map(vec![(3, 4, 1, 3)]));
    world.apply(Op::Unmap(vec![(3, 1)]));
    world
}

fn references(world: &World) -> usize {
    world.contexts.status(CONTEXT).unwrap().references
}

#[test]
fn a_deferred_unmapping_is_requested_when_its_time_has_come_and_not_before() {
    let mut world = deferred(64);
    for (passed, left) in [(49, 1), (1, 1), (0, 0)] {
        world.apply(Op::Pass(passed));
        assert_eq!(references(&world), left, "after {passed} ms more");
        // The card confirms what it was asked, which is checked with the next tick.
        world.apply(Op::Serve);
    }
    world.finish();
}

#[test]
fn deferred_unmappings_are_requested_at_once_when_there_are_many() {
    let mut world = deferred(2);
    world.apply(Op::Serve);
    world.apply(Op::Pass(0));
    assert_eq!(references(&world), 1, "one is not many");
    world.apply(Op::Map(vec![(5, 6, 1, 3)]));
    world.apply(Op::Unmap(vec![(5, 1)]));
    world.apply(Op::Serve);
    world.apply(Op::Pass(0));
    assert_eq!(references(&world), 0);
    world.finish();
}

#[test]
fn a_page_is_mapped_again_once_the_card_has_confirmed_its_unmapping() {
    let mut world = deferred(64);
    let entry = MapEntry { machine_page: FIRST + 3, page: 3, pages: 1, permission: 3 };
    let contexts = world.contexts.clone();
    let map = |wait: &mut dyn FnMut(Unmapping) -> bool| {
        contexts.caller(CONTEXT, world.owner.id()).map_when_confirmed(
            &[entry],
            Duration::ZERO,
            wait,
        )
    };
    assert!(matches!(
        contexts.caller(CONTEXT, world.owner.id()).map(&[entry], Duration::ZERO),
        Err(Refusal::Entry { index: 0, why: EntryError::Mapping(_) })
    ));
    assert_eq!(map(&mut |_| false), Err(Refusal::Stopped), "a card that hangs");
    let mut waits = 0;
    let mapped = map(&mut |unmapping| {
        waits += 1;
        assert!(!contexts.is_unmapped(unmapping));
        world.card.serve();
        contexts.is_unmapped(unmapping)
    });
    assert_eq!((mapped, waits), (Ok(1), 1));
    let refused = contexts.status(CONTEXT).unwrap().refused;
    assert_eq!(refused, 2, "a call that waited and was then done was not refused");
    world.mapped.insert(3, (3, 3));
    world.finish();
}
