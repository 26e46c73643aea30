//! Pages that a card refers to.

use std::sync::atomic::{AtomicUsize, Ordering};

use cdna::ring::RINGS_LEN;
use cdna::{Announcement, ContextId, Descriptor, Direction, Flags, completion};
use contexts::{
    Assignment, ContextMemory, Contexts, EntryError, IommuMode, Protection, Reason, Refusal,
};
use hypervisor::{PAGE_SIZE, PageOwner};
use shm::Region;

use super::*;
use crate::Machine;
use crate::domain::Domain;

/// Holds references until it has been asked `asks` times.
struct Card {
    domain: Arc<Domain>,
    held: Range<usize>,
    asks: AtomicUsize,
    restored: AtomicUsize,
}

impl Card {
    fn new(domain: &Arc<Domain>, held: Range<usize>, asks: usize) -> Arc<Self> {
        domain.references().lock().take(held.clone());
        let (asks, restored) = (AtomicUsize::new(asks), AtomicUsize::new(0));
        let card = Arc::new(Self { domain: domain.clone(), held, asks, restored });
        let user: Weak<Self> = Arc::downgrade(&card);
        domain.attach(user);
        card
    }
}

impl PageUser for Card {
    fn reclaim(&self, domain: DomId, pages: Range<usize>) {
        assert_eq!(domain, PageOwner::id(&*self.domain));
        assert!(pages.clone().all(|page| !self.domain.owns(page)), "marked before it asks");
        if self.asks.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.domain.references().lock().release(self.held.clone());
        }
    }
    fn restore(&self, _: DomId, pages: Range<usize>) {
        assert!(pages.clone().all(|page| self.domain.owns(page)), "its own again");
        self.restored.fetch_add(pages.len(), Ordering::Relaxed);
    }
}

fn domain() -> (Machine, Arc<Domain>) {
    let machine = Machine::new();
    let domain = machine.create(MemorySize::default()).unwrap();
    (machine, domain)
}

#[test]
fn no_two_domains_share_a_machine_page() {
    let machine = Machine::new();
    let size = MemorySize { pages: 1000, exchange_pages: 100, ..MemorySize::default() };
    let mut end = BLOCK_PAGES as u64;
    for _ in 0..3 {
        let domain = machine.create(size).unwrap();
        let pages = domain.machine_pages();
        assert!(pages.start >= end && pages.start.is_multiple_of(BLOCK_PAGES as u64));
        assert_eq!(pages.end - pages.start, 1100);
        end = pages.end;
        machine.destroy(Domain::id(&domain));
    }
}

#[test]
fn pages_are_given_up_when_their_last_reference_is_gone() {
    let (_machine, domain) = domain();
    let card = Card::new(&domain, 100..102, 3);
    domain.decrease_reservation(90..110).unwrap();
    assert_eq!(card.asks.load(Ordering::Relaxed), 0, "asked until there was none");
    assert!(!domain.owns(100) && domain.owns(110));
    domain.increase_reservation(90..110).unwrap();
    assert_eq!(card.restored.load(Ordering::Relaxed), 20);
}

#[test]
fn pages_that_a_card_keeps_are_kept_and_others_are_not_waited_for() {
    let (_machine, domain) = domain();
    let card = Card::new(&domain, 100..102, usize::MAX);
    domain.decrease_reservation(102..110).unwrap();
    assert_eq!(domain.pages_out(), 8);
    assert!(domain.decrease_reservation(101..102).is_err());
    assert_eq!((domain.pages_out(), card.restored.load(Ordering::Relaxed)), (8, 1));
    assert!(domain.owns(101));
}

#[test]
fn pages_that_can_be_transferred_are_out_of_reach() {
    let size = MemorySize { exchange_pages: 4, ..MemorySize::default() };
    let domain = Machine::new().create(size).unwrap();
    assert!(domain.owns(size.pages - 1) && !domain.owns(size.pages));
    assert!(!domain.owns(usize::MAX));
}

#[test]
fn the_memory_of_a_domain_that_ended_stays_until_the_card_is_quiet() {
    let (machine, domain) = domain();
    let card = Card::new(&domain, 100..101, usize::MAX);
    let (id, weak) = (Domain::id(&domain), Arc::downgrade(&domain));
    machine.destroy(id);
    drop(domain);
    let ended = weak.upgrade().unwrap();
    assert!(!PageOwner::is_alive(&*ended));
    assert_eq!(ended.memory().read::<u8>(100 * hypervisor::PAGE_SIZE), Ok(0));
    drop((ended, card));
    assert!(weak.upgrade().is_none(), "nothing refers to it any more");
}

#[test]
fn a_card_that_is_gone_is_not_asked() {
    let (_machine, domain) = domain();
    let card = Card::new(&domain, 100..101, usize::MAX);
    domain.references().lock().release(100..101);
    drop(card);
    domain.decrease_reservation(100..101).unwrap();
    let again = Card::new(&domain, 200..200, usize::MAX);
    assert_eq!(domain.dma_pages().lock().len(), 1);
    drop(again);
}

const CONTEXT: ContextId = ContextId::new(2);

/// A card's contexts, of which the domain has one.
fn assigned(
    domain: &Arc<Domain>,
    protection: Protection,
) -> (Arc<Contexts<Domain>>, ContextMemory, u32) {
    let region = |len| Arc::new(Region::anonymous(len).unwrap());
    let contexts = Arc::new(Contexts::new(&Announcement::new(4, 0)).unwrap());
    let io_pages = Assignment::pages_of(&**domain);
    let memory = ContextMemory {
        rings: region(RINGS_LEN),
        completions: region(completion::PAGE_LEN),
        table: Some(region(iommu::table_len(io_pages))),
    };
    let assignment =
        Assignment { owner: domain, protection, memory: memory.clone(), start: 0, io_pages };
    let generation = contexts.assign(CONTEXT, assignment).unwrap();
    (contexts, memory, generation)
}

fn buffer(domain: &Domain, page: u64) -> Descriptor {
    let addr = (domain.machine_pages().start + page) * PAGE_SIZE as u64;
    Descriptor::buffer(0, addr, 4096, Flags::EOP)
}

#[test]
fn an_enqueued_page_is_kept_until_the_card_has_consumed_it() {
    let (_machine, domain) = domain();
    let (contexts, memory, _) = assigned(&domain, Protection::Hypervisor);
    let enqueue = |page| {
        let batch = [buffer(&domain, page)];
        contexts.caller(CONTEXT, Domain::id(&domain)).enqueue(Direction::Rx, &batch)
    };
    enqueue(100).unwrap();
    assert!(domain.decrease_reservation(100..101).is_err());
    memory.completions.write(completion::consumer(Direction::Rx), 1u32).unwrap();
    domain.decrease_reservation(100..101).unwrap();
    let given_up = Refusal::Entry { index: 0, why: EntryError::GivenUp };
    assert_eq!(enqueue(100), Err(given_up));
    domain.increase_reservation(100..101).unwrap();
    enqueue(100).unwrap();
}

#[test]
fn a_static_mapping_follows_the_balloon() {
    let (_machine, domain) = domain();
    let (contexts, memory, _) = assigned(&domain, Protection::Iommu(IommuMode::Static));
    let all = domain.size().pages;
    let mapped = || contexts.status(CONTEXT).unwrap().references;
    assert_eq!(mapped(), all);
    // The card sleeps, so it confirms nothing and need not be waited for.
    memory.completions.write(completion::INVALIDATION + 4, 1u32).unwrap();
    domain.decrease_reservation(100..300).unwrap();
    assert_eq!(mapped(), all - 200);
    domain.increase_reservation(100..200).unwrap();
    assert_eq!(mapped(), all - 100);
    // A card that is awake and confirms nothing keeps the domain's pages.
    memory.completions.write(completion::INVALIDATION + 4, 0u32).unwrap();
    assert!(domain.decrease_reservation(400..401).is_err());
    assert!(domain.owns(400));
    memory.completions.write(completion::INVALIDATION + 4, 1u32).unwrap();
    contexts.tick(std::time::Duration::ZERO);
    assert_eq!(mapped(), all - 100, "mapped again when it had been confirmed");
}

#[test]
fn a_domain_that_ended_is_freed_when_its_context_is_revoked() {
    let (machine, domain) = domain();
    let (contexts, _, generation) = assigned(&domain, Protection::Hypervisor);
    let (id, weak) = (Domain::id(&domain), Arc::downgrade(&domain));
    let batch: Vec<_> = (100..164).map(|page| buffer(&domain, page)).collect();
    for _ in 0..4 {
        contexts.caller(CONTEXT, id).enqueue(Direction::Tx, &batch).unwrap();
    }
    machine.destroy(id);
    drop(domain);
    assert_eq!(
        contexts.caller(CONTEXT, id).enqueue(Direction::Rx, &batch),
        Err(Refusal::OwnerEnded)
    );
    assert_eq!(contexts.owner_ended(id), [(CONTEXT, generation)]);
    assert!(weak.upgrade().is_some(), "the card has not confirmed");
    let ended = contexts.revoked(CONTEXT, generation).unwrap();
    assert_eq!((ended.owner, ended.reason), (id, Reason::OwnerEnded));
    assert!(weak.upgrade().is_none());
}
