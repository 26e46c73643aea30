//! Random mappings, transfers and flushes against a naive map: the card reaches what is mapped, and
//! never a page that was given back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use iommu::{
    Access, Entry, FaultKind, Flush, Geometry, MapError, Mapper, Permission, RegionInvalidation,
    RegionTable, Ticket, Transfer, Translator, table_len,
};
use proptest::prelude::*;
use shm::Region;

/// Pages of the table: few, so that runs meet.
const PAGES: u32 = 8;
/// The I/O virtual page of its first entry.
const FIRST: u64 = 1000;

type Shared = Arc<Region>;

#[derive(Clone, Debug)]
enum Op {
    Map(u32, u8),
    Unmap(Vec<(u32, u32)>),
    Flush,
    Pass(u64),
    GiveBack,
    Begin,
    Translate(u32, bool),
    End(usize),
    Serve,
    Sleep,
    Wake,
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0..PAGES + 2;
    prop_oneof![
        6 => (page.clone(), 0..3u8).prop_map(|(page, kind)| Op::Map(page, kind)),
        4 => prop::collection::vec((page.clone(), 0..4u32), 0..4).prop_map(Op::Unmap),
        1 => Just(Op::Flush),
        1 => (0..40u64).prop_map(Op::Pass),
        3 => Just(Op::GiveBack),
        2 => Just(Op::Begin),
        8 => (page, any::<bool>()).prop_map(|(page, write)| Op::Translate(page, write)),
        2 => (0..4usize).prop_map(Op::End),
        4 => Just(Op::Serve),
        1 => Just(Op::Sleep),
        1 => Just(Op::Wake),
    ]
}

/// A transfer and the machine pages that it uses.
struct Busy {
    transfer: Transfer,
    uses: BTreeSet<u64>,
}

struct World {
    mapper: Mapper<RegionTable<Shared>, RegionInvalidation<Shared>>,
    card: Translator<RegionTable<Shared>, RegionInvalidation<Shared>>,
    asleep: bool,
    busy: Vec<Busy>,
    now: Duration,
    next_machine_page: u64,
    mapped: BTreeMap<u32, (u64, Permission)>,
    /// What was unmapped and not given back.
    pending: BTreeMap<u32, u64>,
    /// Strict calls that wait, and the pages of each.
    tickets: Vec<(Ticket, Vec<u64>)>,
    given_back: BTreeSet<u64>,
}

const KINDS: [Permission; 3] = [Permission::Read, Permission::Write, Permission::ReadWrite];

impl World {
    fn new(flush: Flush, geometry: Geometry) -> Self {
        let table = Arc::new(Region::anonymous(table_len(PAGES)).unwrap());
        let answers = Arc::new(Region::anonymous(4096).unwrap());
        let words = || RegionInvalidation::new(table.clone(), answers.clone(), 192).unwrap();
        let entries = RegionTable::create(table.clone(), FIRST, PAGES).unwrap();
        let cards = RegionTable::open(table.clone()).unwrap();
        Self {
            mapper: Mapper::new(entries, words(), flush),
            card: Translator::new(cards, words(), geometry),
            asleep: false,
            busy: Vec::new(),
            now: Duration::ZERO,
            next_machine_page: 1,
            mapped: BTreeMap::new(),
            pending: BTreeMap::new(),
            tickets: Vec::new(),
            given_back: BTreeSet::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Map(page, kind) => self.map(page, KINDS[usize::from(kind)]),
            Op::Unmap(runs) => self.unmap(&runs),
            Op::Flush => drop(self.mapper.flush()),
            Op::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                self.mapper.tick(self.now);
                assert!(self.mapper.due().is_none_or(|due| due > self.now));
            }
            Op::GiveBack => self.give_back(),
            Op::Begin if !self.asleep && self.busy.len() < 4 => {
                let transfer = self.card.begin();
                self.busy.push(Busy { transfer, uses: BTreeSet::new() });
            }
            Op::Translate(page, write) => self.translate(page, write),
            Op::End(which) if which < self.busy.len() => {
                let Busy { transfer, .. } = self.busy.remove(which);
                self.card.end(transfer);
            }
            Op::Serve if !self.asleep => self.card.serve(),
            Op::Sleep if !self.asleep => {
                self.asleep = self.card.sleep();
                assert_eq!(self.asleep, self.busy.is_empty());
            }
            Op::Wake if self.asleep => {
                self.card.wake();
                self.asleep = false;
            }
            _ => {}
        }
    }

    fn map(&mut self, page: u32, permission: Permission) {
        let machine_page = self.next_machine_page;
        let entry = Entry::new(machine_page, permission).unwrap();
        let expected = match page {
            PAGES.. => Err(MapError::Outside(page)),
            _ if self.mapped.contains_key(&page) => Err(MapError::Mapped(page)),
            _ if self.pending.contains_key(&page) => Err(MapError::Pending(page)),
            _ => Ok(()),
        };
        assert_eq!(self.mapper.map(page, entry), expected);
        if expected.is_ok() {
            self.next_machine_page += 1;
            self.mapped.insert(page, (machine_page, permission));
        }
    }

    fn unmap(&mut self, runs: &[(u32, u32)]) {
        let runs: Vec<_> = runs.iter().map(|&(first, pages)| first..first + pages).collect();
        let mut seen = BTreeSet::new();
        let sound = runs
            .iter()
            .cloned()
            .flatten()
            .all(|page| self.mapped.contains_key(&page) && seen.insert(page))
            && runs.iter().all(|run| run.end <= PAGES);
        let unmapped = self.mapper.unmap(&runs, self.now);
        assert_eq!(unmapped.is_ok(), sound, "{runs:?}");
        let Ok(ticket) = unmapped else { return };
        let mut pages = Vec::new();
        for page in seen {
            let (machine_page, _) = self.mapped.remove(&page).unwrap();
            self.pending.insert(page, machine_page);
            pages.push(machine_page);
        }
        self.tickets.extend(ticket.map(|ticket| (ticket, pages)));
        self.confirmed();
    }

    /// A strict unmap that returns: no transfer uses its pages.
    fn confirmed(&mut self) {
        let (mapper, busy) = (&mut self.mapper, &self.busy);
        self.tickets.retain(|(ticket, pages)| {
            let confirmed = mapper.is_confirmed(*ticket);
            if confirmed {
                let used = |page: &u64| busy.iter().any(|busy| busy.uses.contains(page));
                assert!(!pages.iter().any(used), "unmapped while a transfer uses it");
            }
            !confirmed
        });
    }

    fn give_back(&mut self) {
        let (pending, given_back, busy) = (&mut self.pending, &mut self.given_back, &self.busy);
        self.mapper.give_back(|page, machine_page| {
            assert_eq!(pending.remove(&page), Some(machine_page));
            assert!(given_back.insert(machine_page), "given back twice");
            assert!(!busy.iter().any(|busy| busy.uses.contains(&machine_page)), "still used");
        });
    }

    fn translate(&mut self, page: u32, write: bool) {
        let Some(busy) = self.busy.last_mut() else { return };
        let access = if write { Access::Write } else { Access::Read };
        let address = (FIRST + u64::from(page)) * 4096 + 77;
        let permits = |permission: Permission| {
            permission == Permission::ReadWrite || (permission == Permission::Write) == write
        };
        match self.card.translate(&busy.transfer, address, access) {
            Ok(machine) => {
                assert_eq!(machine % 4096, 77);
                let machine_page = machine / 4096;
                assert!(!self.given_back.contains(&machine_page), "used after it was given back");
                busy.uses.insert(machine_page);
                match self.mapped.get(&page) {
                    Some((expected, permission)) => {
                        assert_eq!(machine_page, *expected);
                        assert!(permits(*permission));
                    }
                    None => assert_eq!(self.pending.get(&page), Some(&machine_page)),
                }
            }
            Err(fault) => match (fault.kind, self.mapped.get(&page)) {
                (FaultKind::Outside, _) => assert!(page >= PAGES),
                (FaultKind::NotMapped, mapped) => assert!(mapped.is_none()),
                (FaultKind::NotPermitted, Some((_, permission))) => assert!(!permits(*permission)),
                (FaultKind::NotPermitted, None) => assert!(self.pending.contains_key(&page)),
            },
        }
    }

    fn check(&self) {
        assert_eq!(self.mapper.mapped() as usize, self.mapped.len());
        assert_eq!(self.mapper.pending() as usize, self.pending.len());
    }

    /// The card ends all transfers: then everything comes back.
    fn finish(mut self) {
        if self.asleep {
            self.card.wake();
        }
        for Busy { transfer, .. } in std::mem::take(&mut self.busy) {
            self.card.end(transfer);
        }
        self.mapper.flush();
        self.card.serve();
        self.confirmed();
        assert!(self.tickets.is_empty(), "a quiet card has confirmed everything");
        self.give_back();
        assert!(self.pending.is_empty(), "a page is leaked");
        let mut cleared = 0;
        self.mapper.clear(|page, machine_page| {
            assert_eq!(self.mapped.get(&page).map(|(page, _)| *page), Some(machine_page));
            cleared += 1;
        });
        assert_eq!(cleared, self.mapped.len());
    }
}

fn flush() -> impl Strategy<Value = Flush> {
    let after = Duration::from_millis(50);
    prop_oneof![
        Just(Flush::AtOnce),
        (1..8u32).prop_map(move |pages| Flush::Deferred { pages, after })
    ]
}

fn geometry() -> impl Strategy<Value = Geometry> {
    prop_oneof![Just((0, 1)), Just((4, 1)), Just((8, 2)), Just((16, 16))]
        .prop_map(|(entries, ways)| Geometry { entries, ways })
}

proptest! {
    #[test]
    fn a_page_that_was_given_back_is_out_of_reach(
        flush in flush(),
        geometry in geometry(),
        ops in prop::collection::vec(op(), 0..400),
    ) {
        let mut world = World::new(flush, geometry);
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

#[test]
fn a_card_that_fell_behind_forgets_everything() {
    let mut world = World::new(Flush::AtOnce, Geometry { entries: 16, ways: 16 });
    world.map(0, Permission::Read);
    world.apply(Op::Begin);
    world.translate(0, false);
    world.apply(Op::End(0));
    world.apply(Op::Sleep);
    world.unmap(&[(0, 1)]);
    for _ in 0..100 {
        world.map(1, Permission::Read);
        world.unmap(&[(1, 1)]);
        world.give_back();
        assert!(world.pending.is_empty(), "a card that sleeps is not waited for");
    }
    world.apply(Op::Wake);
    assert_eq!(world.card.count().clears, 1);
    world.apply(Op::Begin);
    world.translate(0, false);
    world.translate(1, false);
    assert!(world.busy[0].uses.is_empty());
    world.finish();
}

#[test]
fn later_transfers_do_not_hold_up_an_invalidation() {
    let mut world = World::new(Flush::AtOnce, Geometry::default());
    world.map(3, Permission::ReadWrite);
    world.apply(Op::Begin);
    world.translate(3, true);
    world.unmap(&[(3, 1)]);
    world.apply(Op::Serve);
    world.apply(Op::Begin);
    world.confirmed();
    assert_eq!(world.tickets.len(), 1, "the first transfer uses the page");
    world.apply(Op::End(0));
    world.confirmed();
    assert!(world.tickets.is_empty(), "the second one began later");
    world.finish();
}
