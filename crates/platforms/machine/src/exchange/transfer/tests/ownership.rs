//! A page has one owner, in every order of steps of two guests and the driver domain.

use std::collections::{BTreeSet, HashSet};

use hypervisor::flip::TransferSlot;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::exchange::Owner;
use crate::guest::grouping::Grouping;

/// One step of one of the guests, or of the driver domain on its behalf.
#[derive(Clone, Debug)]
enum Step {
    Take,
    PutBack(Index),
    Accept,
    Withdraw(Index),
    Transfer(Index, Index),
    /// Sends a page of this guest's area to the other guest.
    Misdirect(Index, Index),
    Claim(Index),
    Surrender(usize),
    /// Drops a page without giving it back.
    Lose(Index),
    /// A hypercall with arbitrary numbers. Only by the [hostile](World::hostile) guest.
    Forge(Vec<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    prop_oneof![
        3 => Just(Step::Take),
        1 => index().prop_map(Step::PutBack),
        3 => Just(Step::Accept),
        1 => index().prop_map(Step::Withdraw),
        4 => (index(), index()).prop_map(|(page, slot)| Step::Transfer(page, slot)),
        1 => (index(), index()).prop_map(|(page, slot)| Step::Misdirect(page, slot)),
        3 => index().prop_map(Step::Claim),
        2 => (0usize..4).prop_map(Step::Surrender),
        1 => index().prop_map(Step::Lose),
        1 => prop::collection::vec(6u32..14, 0..5).prop_map(Step::Forge),
    ]
}

/// What should be true of one guest.
struct World {
    inside: Inside,
    hostile: bool,
    /// Pages of the driver domain with the mark on each.
    held: Vec<(ExchangePage, u64)>,
    /// Slots, and the mark on the page that came into each.
    slots: Vec<(Box<dyn TransferSlot>, GrantRef, Option<u64>)>,
    pages: Vec<(Box<dyn FlipPage>, u64)>,
    /// Pages that came but were neither claimed nor given back.
    leaving: usize,
    marks: u64,
}

fn pick<T>(items: &mut Vec<T>, index: Index) -> Option<T> {
    (!items.is_empty()).then(|| items.swap_remove(index.index(items.len())))
}

fn filled_with(page: &Region, mark: u64) -> bool {
    (0..page.len()).step_by(8).all(|at| page.read(at) == Ok(mark))
}

impl World {
    fn new(machine: &Machine, hostile: bool) -> Self {
        let inside = Inside::new(machine);
        // Both ways to place pages are tested.
        inside.guest.group(if hostile { Grouping::Scattered } else { Grouping::Grouped });
        let marks = u64::from(inside.domain.id().0) << 32;
        let (held, slots, pages) = (Vec::new(), Vec::new(), Vec::new());
        Self { inside, hostile, held, slots, pages, leaving: 0, marks }
    }

    fn step(&mut self, step: Step, other: &Self) {
        match step {
            Step::Take => self.take(),
            Step::PutBack(page) => drop(pick(&mut self.held, page)),
            Step::Accept => self.accept(),
            Step::Withdraw(slot) => {
                let came = pick(&mut self.slots, slot).and_then(|(.., mark)| mark);
                self.leaving += usize::from(came.is_some());
            }
            Step::Transfer(page, slot) => self.transfer(page, slot),
            Step::Misdirect(page, slot) => self.misdirect(page, slot, other),
            Step::Claim(slot) => self.claim(slot),
            Step::Surrender(count) => self.surrender(count),
            Step::Lose(page) => self.leaving += usize::from(pick(&mut self.pages, page).is_some()),
            Step::Forge(frames) if self.hostile => {
                // The call may be refused or not: `check` tests the owners.
                let _ = self.inside.machine.surrender(self.inside.domain.id(), &frames);
            }
            Step::Forge(_) => {}
        }
    }

    fn take(&mut self) {
        let spare = self.inside.count()[0];
        let page = ExchangePage::take(&self.inside.domain);
        assert_eq!(page.is_ok(), spare > 0);
        let Ok(page) = page else { return };
        assert!(filled_with(&page, 0), "a page is not zeroed");
        self.marks += 1;
        for at in (0..PAGE_SIZE).step_by(8) {
            page.write(at, self.marks).unwrap();
        }
        self.held.push((page, self.marks));
    }

    fn accept(&mut self) {
        let offer = self.inside.guest.accept_transfer(DRIVER_DOMAIN);
        assert_eq!(offer.is_ok(), self.slots.len() + self.pages.len() < AREA);
        self.slots.extend(offer.map(|(slot, gref)| (slot, gref, None)));
    }

    fn transfer(&mut self, page: Index, slot: Index) {
        let Some((page, mark)) = pick(&mut self.held, page) else { return };
        let at = (!self.slots.is_empty()).then(|| slot.index(self.slots.len()));
        let gref = at.map_or(GrantRef(400), |at| self.slots[at].1);
        let vacant = at.is_some_and(|at| self.slots[at].2.is_none());
        match self.inside.send(gref, page) {
            Ok(()) => {
                assert!(vacant, "a page came where none was accepted");
                self.slots[at.unwrap()].2 = Some(mark);
            }
            Err((status, page)) => {
                assert!(!vacant, "{status:?}");
                self.held.push((page, mark));
            }
        }
    }

    fn misdirect(&mut self, page: Index, slot: Index, other: &Self) {
        if other.slots.is_empty() {
            return;
        }
        let Some((page, mark)) = pick(&mut self.held, page) else { return };
        let gref = other.slots[slot.index(other.slots.len())].1;
        let (status, page) = other.inside.send(gref, page).unwrap_err();
        assert_eq!(status, TransferStatus::BadPage);
        self.held.push((page, mark));
    }

    fn claim(&mut self, slot: Index) {
        let Some((mut slot, gref, mark)) = pick(&mut self.slots, slot) else { return };
        match slot.claim().unwrap() {
            Some(page) => {
                let mark = mark.expect("a page was sent before one is claimed");
                // A hostile guest may have given the page back before, and then sees other bytes of its own.
                assert!(self.hostile || filled_with(&page, mark), "another's bytes");
                self.pages.push((page, mark));
            }
            None => {
                assert!(mark.is_none(), "a page that was sent is there");
                self.slots.push((slot, gref, mark));
            }
        }
    }

    fn surrender(&mut self, count: usize) {
        let count = count.min(self.pages.len());
        self.pages.drain(..count).for_each(drop);
        let result = self.inside.guest.surrender();
        // A guest that forged calls may find pages given back already.
        assert!(self.hostile || result.is_ok(), "{result:?}");
        self.leaving = 0;
    }

    /// Every page is spare, held or the guest's, and never two of these.
    fn check(&self) {
        let owners = self.inside.domain.exchange().owners();
        let spare: BTreeSet<_> = owners.spare.iter().copied().collect();
        let held: BTreeSet<_> = self.held.iter().map(|(page, _)| page.frame()).collect();
        let guests: BTreeSet<_> = (8u32..)
            .zip(&owners.of)
            .filter(|(_, owner)| **owner == Owner::Guest)
            .map(|(frame, _)| frame)
            .collect();
        assert_eq!(spare.len(), owners.spare.len(), "a page is spare twice");
        assert_eq!(held.len(), self.held.len(), "a page is held twice");
        assert_eq!(spare.len() + held.len() + guests.len(), AREA);
        assert_eq!((8..12).collect::<BTreeSet<_>>(), &(&spare | &held) | &guests);
        if !self.hostile {
            let came = self.slots.iter().filter(|(.., mark)| mark.is_some()).count();
            assert_eq!(guests.len(), came + self.pages.len() + self.leaving);
            assert!(self.pages.iter().all(|(page, _)| guests.contains(&number(&**page))));
        }
    }

    /// The bytes of a page are always those that its owner wrote.
    fn check_bytes(&self) {
        let held = self.held.iter().map(|(page, mark)| (&**page, *mark));
        let pages = self.pages.iter().map(|(page, mark)| (&***page, *mark));
        assert!(self.hostile || held.chain(pages).all(|(page, mark)| filled_with(page, mark)));
        let own = u64::from(self.inside.domain.id().0);
        for (page, _) in &self.pages {
            let seen: HashSet<u64> =
                (0..PAGE_SIZE).step_by(8).map(|at| page.read(at).unwrap()).collect();
            assert!(seen.iter().all(|mark| *mark == 0 || mark >> 32 == own), "another's bytes");
        }
        assert_eq!(mapped(&self.inside.domain), self.held.len() + self.pages.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_page_has_one_owner(steps in prop::collection::vec((any::<bool>(), step()), 1..120)) {
        let machine = Machine::new();
        let (mut honest, mut hostile) = (World::new(&machine, false), World::new(&machine, true));
        for (by_hostile, step) in steps {
            let (one, other) =
                if by_hostile { (&mut hostile, &honest) } else { (&mut honest, &hostile) };
            one.step(step, other);
            one.check();
            other.check();
        }
        honest.check_bytes();
        hostile.check_bytes();
        // An honest guest that gives everything back leaves nothing behind.
        let World { inside, held, slots, pages, .. } = honest;
        drop((held, slots));
        drop(pages);
        inside.guest.surrender().unwrap();
        prop_assert_eq!(inside.count(), [AREA, 0, 0]);
        prop_assert_eq!(mapped(&inside.domain), 0);
    }
}
