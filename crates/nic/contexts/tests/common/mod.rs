//! A domain, and the memory of a context.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use cdna::ring::RINGS_LEN;
use cdna::{Announcement, ContextId, Direction, completion};
use contexts::{Assignment, ContextMemory, Contexts, Protection};
use hypervisor::{DomId, PageOwner, PageReferences, PageUser};
use iommu::{Geometry, RegionInvalidation, RegionTable, Translator, table_len};
use shm::Region;

/// The context of most tests.
pub const CONTEXT: ContextId = ContextId::new(3);

/// A domain whose pages can be given up.
pub struct Owner {
    id: DomId,
    first: u64,
    out: Vec<AtomicBool>,
    alive: AtomicBool,
    references: PageReferences,
    users: Mutex<Vec<Weak<dyn PageUser>>>,
}

impl Owner {
    pub fn new(id: u16, first: u64, pages: usize) -> Arc<Self> {
        Arc::new(Self {
            id: DomId(id),
            first,
            out: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            alive: AtomicBool::new(true),
            references: PageReferences::new(pages),
            users: Mutex::default(),
        })
    }

    /// The machine address of a page.
    pub fn address(&self, page: usize) -> u64 {
        (self.first + page as u64) * 4096
    }

    /// The page of a machine address.
    pub fn page(&self, address: u64) -> usize {
        usize::try_from(address / 4096 - self.first).unwrap()
    }

    pub fn is_out(&self, page: usize) -> bool {
        self.out[page].load(Ordering::SeqCst)
    }

    /// Gives up a page, if nothing reaches it. Returns whether it did.
    pub fn give_up(&self, page: usize) -> bool {
        if self.is_out(page) {
            return true;
        }
        self.out[page].store(true, Ordering::SeqCst);
        self.each_user(|user| user.reclaim(self.id, page..page + 1));
        if self.references.any(page..page + 1) {
            self.take_back(page);
        }
        self.is_out(page)
    }

    /// Has a page again.
    pub fn take_back(&self, page: usize) {
        self.out[page].store(false, Ordering::SeqCst);
        self.each_user(|user| user.restore(self.id, page..page + 1));
    }

    pub fn kill(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }

    fn each_user(&self, ask: impl Fn(&dyn PageUser)) {
        let users: Vec<_> = self.users.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        users.iter().for_each(|user| ask(&**user));
    }
}

impl PageOwner for Owner {
    fn id(&self) -> DomId {
        self.id
    }
    fn machine_pages(&self) -> Range<u64> {
        self.first..self.first + self.out.len() as u64
    }
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }
    fn owns(&self, page: usize) -> bool {
        page < self.out.len() && !self.is_out(page)
    }
    fn references(&self) -> &PageReferences {
        &self.references
    }
    fn attach(&self, user: Weak<dyn PageUser>) {
        let mut users = self.users.lock().unwrap();
        if !users.iter().any(|other| Weak::ptr_eq(other, &user)) {
            users.push(user);
        }
    }
}

pub fn region(len: usize) -> Arc<Region> {
    Arc::new(Region::anonymous(len).unwrap())
}

pub fn memory(io_pages: u32) -> ContextMemory {
    ContextMemory {
        rings: region(RINGS_LEN),
        completions: region(completion::PAGE_LEN),
        table: Some(region(table_len(io_pages))),
    }
}

pub fn card() -> Arc<Contexts<Owner>> {
    Arc::new(Contexts::new(&Announcement::new(8, 0)).unwrap())
}

/// Assigns [`CONTEXT`].
pub fn assign(
    contexts: &Arc<Contexts<Owner>>,
    owner: &Arc<Owner>,
    protection: Protection,
    start: u32,
) -> (ContextMemory, u32) {
    assign_to(contexts, CONTEXT, owner, protection, start)
}

/// Assigns a context; returns its memory and its generation.
pub fn assign_to(
    contexts: &Arc<Contexts<Owner>>,
    context: ContextId,
    owner: &Arc<Owner>,
    protection: Protection,
    start: u32,
) -> (ContextMemory, u32) {
    let io_pages = Assignment::pages_of(&**owner);
    let memory = memory(io_pages);
    for direction in [Direction::Tx, Direction::Rx] {
        memory.completions.write(completion::consumer(direction), start).unwrap();
    }
    let assignment = Assignment { owner, protection, memory: memory.clone(), start, io_pages };
    let generation = contexts.assign(context, assignment).unwrap();
    (memory, generation)
}

/// The card's translation of a context with this memory.
pub fn translator(memory: &ContextMemory, geometry: Geometry) -> CardTranslator {
    let table = memory.table.clone().unwrap();
    let answers = memory.completions.clone();
    let words = RegionInvalidation::new(table.clone(), answers, completion::INVALIDATION).unwrap();
    Translator::new(RegionTable::open(table).unwrap(), words, geometry)
}

pub type CardTranslator = Translator<RegionTable<Arc<Region>>, RegionInvalidation<Arc<Region>>>;
