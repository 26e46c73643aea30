//! Calls of guests that mean harm.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use cdna::call::{Answer, ENTRIES, HEADER, Header, MapEntry, Operation};
use cdna::{ContextId, Descriptor, Direction, Fault, Flags, completion, fault};
use common::{CONTEXT, CardTranslator, Owner, assign, card, memory, region, translator};
use contexts::{
    AssignError, Assignment, Call, EntryError, IommuMode, Performed, Protection, Reason, Refusal,
    State, Unsupported,
};
use hypervisor::{DomId, PageOwner};
use iommu::{Geometry, MapError};

const PAGES: usize = 64;

fn buffer(addr: u64, len: u16) -> Descriptor {
    Descriptor::buffer(0, addr, len, Flags::EOP)
}

fn entry(index: u32, why: EntryError) -> Refusal {
    Refusal::Entry { index, why }
}

#[test]
fn pages_of_others_and_impossible_ranges_are_refused() {
    let (contexts, owner) = (card(), Owner::new(1, 100, PAGES));
    let other = Owner::new(2, 100 + PAGES as u64, PAGES);
    assign(&contexts, &owner, Protection::Hypervisor, 0);
    let enqueue = |descriptor| {
        let good = buffer(owner.address(0), 1);
        contexts.caller(CONTEXT, owner.id()).enqueue(Direction::Tx, &[good, descriptor])
    };
    let foreign = Err(entry(1, EntryError::Foreign));
    assert_eq!(enqueue(buffer(other.address(0), 1)), foreign);
    assert_eq!(enqueue(buffer(owner.address(0) - 1, 1)), foreign, "before its memory");
    assert_eq!(enqueue(buffer(owner.address(0) - 1, 2)), foreign, "into its memory");
    assert_eq!(enqueue(buffer(other.address(0) - 1, 2)), foreign, "out of its memory");
    assert_eq!(enqueue(buffer(0, 60)), foreign);
    assert_eq!(enqueue(buffer(u64::MAX, 1)), foreign, "the last address");
    assert_eq!(enqueue(buffer(u64::MAX, 2)), Err(entry(1, EntryError::Wraps)));
    assert_eq!(enqueue(buffer(u64::MAX - 100, u16::MAX)), Err(entry(1, EntryError::Wraps)));
    assert_eq!(owner.references().pages(), 0, "a refused call leaves nothing");
    assert_eq!(enqueue(buffer(other.address(0) - 1, 1)), Ok(2), "its last byte");
    assert_eq!(enqueue(buffer(other.address(0), 0)), Ok(4), "no byte, no page");
    let across = buffer(owner.address(10) + 4095, u16::MAX);
    assert_eq!(enqueue(across), Ok(6), "many pages, all its own");
    assert!((10..27).all(|page| owner.references().count(page) == 1));
    assert!(!owner.give_up(20));
    assert_eq!(contexts.status(CONTEXT).unwrap().refused, 8);
}

#[test]
fn a_page_that_was_given_up_is_refused_also_in_the_middle_of_a_buffer() {
    let (contexts, owner) = (card(), Owner::new(1, 0, PAGES));
    assign(&contexts, &owner, Protection::Hypervisor, 0);
    assert!(owner.give_up(5));
    let batch = [buffer(owner.address(4), 4096), buffer(owner.address(4), 4097)];
    let enqueued = contexts.caller(CONTEXT, owner.id()).enqueue(Direction::Rx, &batch);
    assert_eq!(enqueued, Err(entry(1, EntryError::GivenUp)));
    let batch = [buffer(owner.address(3), 9000), buffer(u64::MAX, 9)];
    let enqueued = contexts.caller(CONTEXT, owner.id()).enqueue(Direction::Rx, &batch);
    assert_eq!(enqueued, Err(entry(0, EntryError::GivenUp)), "the first bad one is named");
    assert_eq!(owner.references().pages(), 0);
}

#[test]
fn more_than_the_ring_holds_is_refused() {
    let (contexts, owner) = (card(), Owner::new(1, 0, PAGES));
    assign(&contexts, &owner, Protection::Hypervisor, 0);
    let batch = [buffer(owner.address(0), 60); 64];
    let enqueue = || contexts.caller(CONTEXT, owner.id()).enqueue(Direction::Tx, &batch);
    for producer in [64, 128, 192, 256] {
        assert_eq!(enqueue(), Ok(producer));
    }
    let status = || {
        let status = contexts.status(CONTEXT).unwrap();
        (status.state, status.references)
    };
    assert_eq!(status(), (State::Active, 256));
    assert_eq!(enqueue(), Err(Refusal::Full { free: 0 }));
    assert_eq!(status(), (State::Active, 256));
}

#[test]
fn only_the_owner_of_a_context_calls_and_only_as_its_protection_says() {
    let (contexts, owner) = (card(), Owner::new(1, 0, PAGES));
    let (now, call) = (Duration::ZERO, [buffer(0, 60)]);
    let other = ContextId::new(4);
    assign(&contexts, &owner, Protection::Hypervisor, 0);
    let enqueue = |context, caller| contexts.caller(context, caller).enqueue(Direction::Tx, &call);
    assert_eq!(enqueue(CONTEXT, DomId(2)), Err(Refusal::NotYours));
    assert_eq!(enqueue(other, DomId(1)), Err(Refusal::NotYours));
    assert_eq!(enqueue(ContextId::new(255), DomId(1)), Err(Refusal::NotYours));
    let map = [MapEntry { machine_page: 0, page: 0, pages: 1, permission: 3 }];
    let refused = contexts.caller(CONTEXT, DomId(1)).map(&map, now);
    assert_eq!(refused, Err(Refusal::WrongProtection));
    assert_eq!(enqueue(CONTEXT, DomId(1)), Ok(1));
    let modes = [Protection::None, Protection::Iommu(IommuMode::Static)];
    for (number, protection) in (5u8..).zip(modes) {
        let context = ContextId::new(number);
        let io_pages = Assignment::pages_of(&*owner);
        let memory = memory(io_pages);
        let assignment = Assignment { owner: &owner, protection, memory, start: 0, io_pages };
        contexts.assign(context, assignment).unwrap();
        assert_eq!(enqueue(context, DomId(1)), Err(Refusal::WrongProtection));
        let refused = contexts.caller(context, DomId(1)).unmap(&map, now);
        assert_eq!(refused, Err(Refusal::WrongProtection));
    }
    owner.kill();
    assert_eq!(enqueue(CONTEXT, DomId(1)), Err(Refusal::OwnerEnded));
    assert_eq!(contexts.owner_ended(DomId(1)).len(), 3);
}

/// What a call page with these contents is answered.
fn perform(page: &[(usize, &[u8])], header: Header) -> Answer {
    let (contexts, owner) = (card(), Owner::new(1, 100, PAGES));
    assign(&contexts, &owner, Protection::Hypervisor, 0);
    let memory = region(4096);
    memory.write(HEADER, header).unwrap();
    page.iter().for_each(|(at, bytes)| memory.copy_in(*at, bytes).unwrap());
    let mut call = Call::default();
    if let Err(malformed) = call.copy(&memory) {
        assert_eq!(malformed.serial, header.serial);
        return Answer { status: Refusal::Malformed.status(), ..Answer::default() };
    }
    // The guest changes the page after the copy: that changes nothing.
    memory.copy_in(0, &[0xff; 4096]).unwrap();
    match contexts.caller(CONTEXT, owner.id()).perform(&call, Duration::ZERO) {
        Performed::Answered(answer) => answer,
        Performed::Waits(..) => panic!("nothing to wait for"),
    }
}

#[test]
fn a_call_is_answered_from_its_copy() {
    use zerocopy::IntoBytes;
    let header = |operation, count| Header { operation, count, serial: 9, reserved: u32::MAX };
    let tx = Operation::EnqueueTx as u32;
    let descriptor = buffer(100 * 4096, 60);
    let page = [(ENTRIES, descriptor.as_bytes())];
    let answer = Answer { serial: 9, status: 0, value: 1, reserved: 0 };
    assert_eq!(perform(&page, header(tx, 1)), answer);
    let bad = Answer { status: entry(1, EntryError::Foreign).status(), ..answer };
    let far = (ENTRIES + 16, buffer(99 * 4096, 1));
    let page = [page[0], (far.0, far.1.as_bytes())];
    assert_eq!(perform(&page, header(tx, 2)), bad, "the first bad one is number 1");
    let all = perform(&page[..1], header(tx, 64));
    assert_eq!((all.status, all.value), (0, 64), "entries without a buffer");
    for (operation, count) in [(tx, 65), (tx, u32::MAX), (0, 1), (77, 1)] {
        assert_eq!(perform(&page, header(operation, count)).status, Refusal::Malformed.status());
    }
    let map = perform(&page, header(Operation::Map as u32, 1));
    assert_eq!((map.status, map.value), (Refusal::WrongProtection.status(), Answer::NO_ENTRY));
}

#[test]
fn a_mapping_twice_in_one_call_maps_nothing() {
    let (contexts, owner) = (card(), Owner::new(1, 100, PAGES));
    assign(&contexts, &owner, Protection::Iommu(IommuMode::Strict), 0);
    let map = |page, pages| MapEntry { machine_page: 100, page, pages, permission: 1 };
    let now = Duration::ZERO;
    let call = |entries: &[MapEntry]| contexts.caller(CONTEXT, DomId(1)).map(entries, now);
    let twice = call(&[map(0, 4), map(6, 1), map(2, 4)]);
    assert_eq!(twice, Err(entry(2, EntryError::Mapping(MapError::Mapped(2)))));
    assert_eq!(call(&[map(0, 65)]), Err(entry(0, EntryError::Foreign)));
    assert_eq!(call(&[map(u32::MAX, 2)]).unwrap_err().status(), 21);
    assert_eq!(call(&[map(0, 1000), map(0, 1000)]), Err(Refusal::TooMany));
    assert_eq!(call(&[MapEntry { machine_page: u64::MAX, ..map(0, 1) }]).unwrap_err().status(), 16);
    // The card has confirmed nothing yet, so the pages that were mapped for a moment stay held.
    assert_eq!(contexts.status(CONTEXT).unwrap().references, 5);
    let none = contexts.card_ended();
    assert_eq!((none.len(), owner.references().pages()), (1, 0));
}

#[test]
fn pages_that_are_not_given_back_are_mapped_when_the_card_has_confirmed() {
    let (pages, after) = (1000, Duration::from_secs(1000));
    for mode in [IommuMode::Strict, IommuMode::Deferred { pages, after }] {
        let (contexts, owner) = (card(), Owner::new(1, 100, PAGES));
        let (memory, _) = assign(&contexts, &owner, Protection::Iommu(mode), 0);
        let mut card = translator(&memory, Geometry::default());
        let (page, mut call) = (region(4096), Call::default());
        let mut serve = |operation: Operation, card: &mut CardTranslator| {
            let header = Header { operation: operation as u32, count: 1, serial: 1, reserved: 0 };
            page.write(HEADER, header).unwrap();
            let entry = MapEntry { machine_page: 100, page: 7, pages: 3, permission: 3 };
            page.write(ENTRIES, entry).unwrap();
            call.copy(&page).unwrap();
            let answer =
                contexts.caller(CONTEXT, owner.id()).serve(&call, Duration::ZERO, |unmapping| {
                    card.serve();
                    contexts.is_unmapped(unmapping)
                });
            answer.status
        };
        let late = Refusal::Stopped.status();
        let mapped = EntryError::Mapping(MapError::Mapped(7));
        assert_eq!(serve(Operation::Map, &mut card), 0);
        assert_eq!(serve(Operation::Map, &mut card), entry(0, mapped).status());
        let transfer = card.begin();
        let expected = if mode == IommuMode::Strict { late } else { 0 };
        assert_eq!(serve(Operation::Unmap, &mut card), expected, "{mode:?}");
        assert_eq!(serve(Operation::Map, &mut card), late, "a transfer may use the pages");
        card.end(transfer);
        for operation in [Operation::Map, Operation::Unmap, Operation::Map] {
            assert_eq!(serve(operation, &mut card), 0, "{operation:?} {mode:?}");
        }
        // The map of a mapped page, and the calls that were late.
        let refused = if mode == IommuMode::Strict { 3 } else { 2 };
        assert_eq!(contexts.status(CONTEXT).unwrap().refused, refused, "{mode:?}");
        assert_eq!(contexts.status(CONTEXT).unwrap().references, 3);
    }
}

#[test]
fn an_assignment_takes_what_it_needs_and_a_free_context() {
    let (contexts, owner) = (card(), Owner::new(1, 0, PAGES));
    let assign = |context, memory, protection| {
        let assignment = Assignment { owner: &owner, protection, memory, start: 0, io_pages: 64 };
        contexts.assign(ContextId::new(context), assignment)
    };
    let hypervisor = Protection::Hypervisor;
    assert_eq!(assign(8, memory(64), hypervisor), Err(AssignError::NoContext));
    let short = contexts::ContextMemory { rings: region(4096), ..memory(64) };
    assert!(matches!(assign(1, short, hypervisor), Err(AssignError::Memory(_))));
    let strict = Protection::Iommu(IommuMode::Strict);
    let none = contexts::ContextMemory { table: None, ..memory(64) };
    assert_eq!(assign(1, none, strict), Err(AssignError::NoTable));
    let small = contexts::ContextMemory { table: Some(region(4096)), ..memory(64) };
    assert!(matches!(assign(1, small, strict), Err(AssignError::Memory(_))));
    assert_eq!(assign(1, memory(64), hypervisor), Ok(1));
    assert_eq!(assign(1, memory(64), hypervisor), Err(AssignError::InUse));
    assert_eq!(contexts.revoke(ContextId::new(1), Reason::Requested), Some(1));
    assert_eq!(contexts.revoke(ContextId::new(1), Reason::Requested), None, "revoked once");
    assert_eq!(assign(1, memory(64), hypervisor), Err(AssignError::InUse), "not quiet yet");
    assert!(contexts.revoked(ContextId::new(1), 1).is_some());
    assert_eq!(assign(1, memory(64), hypervisor), Ok(2));
    owner.kill();
    assert_eq!(assign(2, memory(64), hypervisor), Err(AssignError::OwnerEnded));
}

#[test]
fn an_impossible_consumer_index_stops_the_context_and_drops_nothing() {
    let (contexts, owner) = (card(), Owner::new(1, 0, PAGES));
    let (memory, generation) = assign(&contexts, &owner, Protection::Hypervisor, 0);
    let enqueue = || contexts.caller(CONTEXT, DomId(1)).enqueue(Direction::Tx, &[buffer(0, 60)]);
    enqueue().unwrap();
    memory.completions.write(completion::consumer(Direction::Tx), 2u32).unwrap();
    assert_eq!(enqueue(), Err(Refusal::Stopped));
    assert_eq!(owner.references().count(0), 1);
    let reason = Reason::BadConsumer { ring: Direction::Tx, consumer: 2 };
    assert_eq!(contexts.status(CONTEXT).unwrap().state, State::Stopped(reason));
    assert_eq!(contexts.revoke(CONTEXT, Reason::Requested), Some(generation));
    assert_eq!(contexts.revoked(CONTEXT, generation).unwrap().reason, reason);
    assert_eq!(owner.references().count(0), 0);
}

#[test]
fn faults_are_kept_with_their_reason_up_to_a_bound() {
    let (contexts, owner) = (card(), Owner::new(7, 0, PAGES));
    let fault = |index| Fault {
        context: CONTEXT,
        reason: fault::Reason::Sequence,
        direction: Direction::Tx,
        index,
        value: 0,
    };
    for index in 0..100 {
        let (_, generation) = assign(&contexts, &owner, Protection::None, 0);
        assert_eq!(generation, index + 1);
        assert!(contexts.fault(generation, fault(index)).is_some());
    }
    let (total, newest) = contexts.faults();
    assert_eq!((total, newest.len()), (100, contexts::FAULTS_KEPT));
    assert_eq!((newest[63].fault, newest[63].owner), (fault(99), DomId(7)));
    let ended = contexts.status(CONTEXT).unwrap().ended.unwrap();
    let text = ended.reason.to_string();
    assert_eq!(text, "fault: wrong sequence number (tx 99: 0x0)");
    assert_eq!(contexts.fault(100, fault(0)), None, "a late report");
}

#[test]
fn cards_that_cannot_be_served_are_refused() {
    use cdna::{Announcement, Layout};
    let new =
        |announcement: Announcement| contexts::Contexts::<Owner>::new(&announcement).map(drop);
    let good = Announcement::new(256, 0);
    assert_eq!(new(good), Ok(()));
    assert_eq!(new(Announcement { version: 9, ..good }), Err(Unsupported::Version(9)));
    for contexts in [0, 257] {
        assert_eq!(new(Announcement { contexts, ..good }), Err(Unsupported::Contexts(contexts)));
    }
    assert_eq!(new(Announcement { slots: 512, ..good }), Err(Unsupported::Slots(512)));
    let layout = Layout { size: 32, ..Layout::OURS };
    assert_eq!(new(Announcement { layout, ..good }), Err(Unsupported::Layout));
}

/// A guest that enqueues without end, a card that consumes at once, and a balloon that takes the same page.
#[test]
fn a_balloon_and_an_enqueue_never_both_have_a_page() {
    const GIVEN_UP: u32 = 50;
    let (contexts, owner) = (card(), Owner::new(1, 0, 2));
    let (memory, _) = assign(&contexts, &owner, Protection::Hypervisor, 0);
    std::thread::scope(|scope| {
        let balloon = scope.spawn(|| {
            let mut given_up = 0;
            while given_up < GIVEN_UP {
                if owner.give_up(1) {
                    given_up += 1;
                    std::thread::yield_now();
                    assert_eq!(owner.references().count(1), 0, "a free page is referred to");
                    owner.take_back(1);
                }
                std::thread::yield_now();
            }
        });
        while !balloon.is_finished() {
            let batch = [buffer(owner.address(0), 4097)];
            match contexts.caller(CONTEXT, DomId(1)).enqueue(Direction::Tx, &batch) {
                Ok(producer) => {
                    let at = completion::consumer(Direction::Tx);
                    let consumer = memory.completions.atomic_u32(at).unwrap();
                    consumer.store(producer, Ordering::Release);
                }
                Err(why) => assert_eq!(why, entry(0, EntryError::GivenUp)),
            }
        }
    });
}

/// Where the guest writes descriptors, the hypervisor knows no producer index to compare the card's index with.
#[test]
fn a_balloon_stops_no_context_whose_guest_writes_the_rings() {
    let deferred = IommuMode::Deferred { pages: 64, after: Duration::ZERO };
    let modes = [IommuMode::Static, IommuMode::Strict, deferred].map(Protection::Iommu);
    for protection in modes.into_iter().chain([Protection::None]) {
        let (contexts, owner) = (card(), Owner::new(1, 0, PAGES));
        let (memory, _) = assign(&contexts, &owner, protection, 0);
        memory.completions.write(completion::consumer(Direction::Rx), 9u32).unwrap();
        owner.give_up(5);
        assert_eq!(contexts.status(CONTEXT).unwrap().state, State::Active, "{protection:?}");
    }
}
