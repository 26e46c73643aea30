//! The invalidation protocol under loom: every interleaving of daemon and card (up to a bound on
//! preemptions), and every reordering that the memory model allows, of the production code.
//!
//! Shown: when an unmapping is confirmed, the card does not touch the page, nor does it later. Loom
//! reports a transfer that runs at the same time as the page's reuse, or is not ordered before it. The
//! control tests remove one part of the protocol each and must fail.

use std::sync::Arc;
use std::time::Duration;

use iommu::{
    Access, Barrier, Entry, Flush, Geometry, Index, Invalidation, Invalidator, Mapper, Permission,
    ReadTable, Request, Translator, WriteTable,
};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

/// Two entries, and a page of two places.
struct Memory {
    words: [AtomicU64; 2],
    counts: [AtomicU32; 3],
    requests: [AtomicU64; 2],
    /// The machine pages that the entries name.
    pages: [UnsafeCell<u32>; 2],
    omitted: Omitted,
}

/// What a control test leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Omitted {
    Nothing,
    FullBarrier,
    /// The card does not say that a transfer is in progress.
    Transfers,
    /// The daemon's writes over requests are not ordered.
    Release,
}

#[derive(Clone)]
struct Shared(Arc<Memory>);

impl Shared {
    #[expect(clippy::arc_with_non_send_sync, reason = "loom's threads take turns")]
    fn new(omitted: Omitted) -> Self {
        Self(Arc::new(Memory {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            counts: std::array::from_fn(|_| AtomicU32::new(0)),
            requests: std::array::from_fn(|_| AtomicU64::new(0)),
            pages: std::array::from_fn(|_| UnsafeCell::new(0)),
            omitted,
        }))
    }

    fn count(&self, index: Index) -> &AtomicU32 {
        &self.0.counts[match index {
            Index::Requested => 0,
            Index::Confirmed => 1,
            Index::Asleep => 2,
        }]
    }
}

impl ReadTable for Shared {
    fn first(&self) -> u64 {
        0
    }
    fn pages(&self) -> u32 {
        2
    }
    fn load(&self, page: u32) -> Entry {
        Entry::from_word(self.0.words[page as usize].load(Ordering::Acquire))
    }
}

impl WriteTable for Shared {
    fn store(&self, page: u32, entry: Entry) {
        self.0.words[page as usize].store(entry.word(), Ordering::Release);
    }
}

impl Invalidation for Shared {
    const PLACES: u32 = 2;

    fn load(&self, index: Index) -> u32 {
        self.count(index).load(Ordering::Acquire)
    }
    fn store(&self, index: Index, value: u32) {
        self.count(index).store(value, Ordering::Release);
    }
    fn read(&self, place: u32) -> Request {
        Request::from_word(self.0.requests[place as usize].load(Ordering::Relaxed))
    }
    fn write(&self, place: u32, request: Request) {
        self.0.requests[place as usize].store(request.word(), Ordering::Relaxed);
    }
    fn barrier(&self, barrier: Barrier) {
        match barrier {
            Barrier::Acquire => fence(Ordering::Acquire),
            Barrier::Release if self.0.omitted == Omitted::Release => {}
            Barrier::Release => fence(Ordering::Release),
            Barrier::Full if self.0.omitted == Omitted::FullBarrier => {}
            Barrier::Full => fence(Ordering::SeqCst),
        }
    }
}

type Card = Translator<Shared, Shared>;

/// One transfer from a page, if it is mapped.
fn transfer(card: &mut Card, memory: &Shared, page: u32) {
    let mut transfer = Some(card.begin());
    let address = u64::from(page) * 4096;
    let found = card.translate(transfer.as_ref().unwrap(), address, Access::Read);
    if memory.0.omitted == Omitted::Transfers {
        transfer.take().into_iter().for_each(|transfer| card.end(transfer));
        card.serve();
    }
    if let Ok(machine) = found {
        memory.0.pages[(machine / 4096) as usize].with(|page| {
            // Loom checks that nothing writes meanwhile.
            let _ = page;
            thread::yield_now();
        });
    }
    transfer.into_iter().for_each(|transfer| card.end(transfer));
}

/// The daemon unmaps a page and reuses it as soon as it is given back. Returns whether it was.
fn reuse(mapper: &mut Mapper<Shared, Shared>, memory: &Shared, page: u32) {
    let pages = page..page + 1;
    let ticket = mapper.unmap(std::slice::from_ref(&pages), Duration::ZERO).unwrap().unwrap();
    while !mapper.is_confirmed(ticket) {
        thread::yield_now();
    }
    mapper.give_back(|_, machine_page| {
        memory.0.pages[usize::try_from(machine_page).unwrap()].with_mut(|page| {
            let _ = page;
        });
    });
    assert_eq!(mapper.pending(), 0);
}

/// `card` runs beside a daemon that unmaps and reuses `pages` one after the other.
fn check(omitted: Omitted, pages: &'static [u32], card: fn(&mut Card, &Shared)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = Shared::new(omitted);
        let mut mapper = Mapper::new(memory.clone(), memory.clone(), Flush::AtOnce);
        for page in 0..2 {
            let entry = Entry::new(u64::from(page), Permission::Read).unwrap();
            mapper.map(page, entry).unwrap();
        }
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let geometry = Geometry { entries: 2, ways: 1 };
            let mut translator = Translator::new(theirs.clone(), theirs.clone(), geometry);
            card(&mut translator, &theirs);
            // A card that does nothing any more sleeps.
            assert!(translator.sleep());
        });
        for page in pages {
            reuse(&mut mapper, &memory, *page);
        }
        other.join().unwrap();
    });
}

/// Transfers, with a check of the requests between them.
fn busy(card: &mut Card, memory: &Shared) {
    transfer(card, memory, 0);
    card.serve();
    transfer(card, memory, 0);
}

/// Sleeps between two transfers.
fn drowsy(card: &mut Card, memory: &Shared) {
    transfer(card, memory, 0);
    assert!(card.sleep());
    card.wake();
    transfer(card, memory, 0);
}

#[test]
fn no_transfer_after_an_unmapping() {
    check(Omitted::Nothing, &[0], busy);
}

#[test]
fn no_transfer_after_an_unmapping_while_the_card_slept() {
    check(Omitted::Nothing, &[0], drowsy);
}

#[test]
fn no_transfer_after_unmappings_of_both_pages() {
    check(Omitted::Nothing, &[0, 1], busy);
}

/// The daemon writes over its first request before that is confirmed.
fn check_lapped(omitted: Omitted) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = Shared::new(omitted);
        WriteTable::store(&memory, 0, Entry::new(0, Permission::Read).unwrap());
        let mut invalidator = Invalidator::new(memory.clone());
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let geometry = Geometry { entries: 2, ways: 1 };
            let mut card = Translator::new(theirs.clone(), theirs.clone(), geometry);
            busy(&mut card, &theirs);
            assert!(card.sleep());
        });
        WriteTable::store(&memory, 0, Entry::EMPTY);
        let ticket = invalidator.request([Request::of(0..1)]);
        invalidator.request([Request::of(1..2), Request::of(1..2)]);
        while !invalidator.is_confirmed(ticket) {
            thread::yield_now();
        }
        memory.0.pages[0].with_mut(|page| {
            let _ = page;
        });
        other.join().unwrap();
    });
}

#[test]
fn no_transfer_after_more_unmappings_than_fit() {
    check_lapped(Omitted::Nothing);
}

#[test]
#[should_panic]
fn without_the_release_a_request_is_lost_under_another() {
    check_lapped(Omitted::Release);
}

#[test]
#[should_panic]
fn without_the_barrier_a_waking_card_uses_what_was_unmapped() {
    check(Omitted::FullBarrier, &[0], drowsy);
}

#[test]
#[should_panic]
fn without_transfers_a_page_is_reused_under_one() {
    check(Omitted::Transfers, &[0], busy);
}
