//! The real card and the real hypervisor's part in the test's process: two guests, each with a context.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use cdna::call::{ANSWER, Answer};
use cdna::message::Permissions;
use cdna::{ContextId, completion, context, ring, vectors};
use cdnafront::{
    Access, CallError, CallEvents, CallPage, Context, FdEvent, Hypercalls, Memory, Pages, RX_PAGES,
    TX_PAGES,
};
use contexts::{
    Assignment, Call, ContextMemory, Contexts, IommuMode, Protection, Reason, VectorConsumer,
};
use firmware::regions::{RegionPages, RegionVectors};
use firmware::{Card, Config, Metadata, Next, Sent, Wire};
use hypervisor::{DomId, PageOwner, PageReferences, PageUser};
use iommu::Geometry;
use nic_bus::CardBus;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shm::Region;
use wire::ethernet::MacAddr;
use zerocopy::IntoBytes;

const PAGE: usize = 4096;
/// Pages of a guest: its buffers, and one of something else at either end.
const PAGES: usize = 1 + TX_PAGES + RX_PAGES + 1;
/// How long a thread may wait. Longer means that a wake-up was lost.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub const PROTECTIONS: [Protection; 5] = [
    Protection::None,
    Protection::Hypervisor,
    Protection::Iommu(IommuMode::Static),
    Protection::Iommu(IommuMode::Strict),
    Protection::Iommu(IommuMode::Deferred { pages: 64, after: Duration::from_millis(1) }),
];

/// The address of a guest's context.
pub const fn mac(guest: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, guest])
}

/// A domain that keeps its pages.
pub struct Owner {
    id: DomId,
    first: u64,
    references: PageReferences,
}

impl PageOwner for Owner {
    fn id(&self) -> DomId {
        self.id
    }
    fn machine_pages(&self) -> Range<u64> {
        self.first..self.first + PAGES as u64
    }
    fn is_alive(&self) -> bool {
        true
    }
    fn owns(&self, page: usize) -> bool {
        page < PAGES
    }
    fn references(&self) -> &PageReferences {
        &self.references
    }
    fn attach(&self, _: Weak<dyn PageUser>) {}
}

type Shared = Arc<Region>;

/// The wire: what was sent, and what arrives.
#[derive(Default)]
pub struct Net {
    pub sent: Vec<Vec<u8>>,
    pub arriving: VecDeque<Vec<u8>>,
}

impl Wire for Net {
    fn send(&mut self, head: &[u8], body: &[u8], _: Metadata) -> Sent {
        self.sent.push([head, body].concat());
        Sent::Sent
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, Metadata)> {
        let frame = self.arriving.pop_front()?;
        buffer[..frame.len()].copy_from_slice(&frame);
        Some((frame.len(), Metadata::default()))
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Makes an event readable.
pub fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Waits until one of these is readable. Returns whether one is.
pub fn wait<'a>(events: impl IntoIterator<Item = BorrowedFd<'a>>, timeout: Duration) -> bool {
    let mut fds: Vec<_> =
        events.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

fn region(len: usize) -> Shared {
    Arc::new(Region::anonymous(len).unwrap())
}

/// The same memory once more.
fn whole(shared: &Shared) -> Region {
    shared.slice(0..shared.len()).unwrap()
}

/// The card's process and the hypervisor, behind one lock.
pub struct World {
    pub card: Card<CardBus, Net>,
    pub contexts: Arc<Contexts<Owner>>,
    vectors: VectorConsumer<Shared>,
    pub owners: Vec<Arc<Owner>>,
    /// By guest: where its context is interrupted, and where it rings.
    interrupts: Vec<Arc<FdEvent>>,
    doorbells: Vec<OwnedFd>,
    began: Instant,
    /// The card has a thread. Otherwise a guest that waits for the card makes its steps.
    pub has_thread: Arc<AtomicBool>,
}

/// What a guest's calls reach.
struct Caller {
    world: Weak<Mutex<World>>,
    contexts: Arc<Contexts<Owner>>,
    context: ContextId,
    domain: DomId,
    page: Shared,
    began: Instant,
    has_thread: Arc<AtomicBool>,
}

impl Caller {
    fn answer(&self, answer: Answer) {
        self.page.copy_in(ANSWER + 4, &answer.as_bytes()[4..]).unwrap();
        let serial = self.page.atomic_u32(ANSWER).unwrap();
        serial.store(answer.serial, Ordering::Release);
    }
}

impl CallEvents for Caller {
    fn notify(&mut self) -> Result<(), CallError> {
        let mut call = Call::default();
        call.copy(&self.page).unwrap();
        let world = self.world.upgrade().ok_or(CallError::Gone)?;
        let Self { contexts, context, domain, .. } = &*self;
        let answer =
            contexts.caller(*context, *domain).serve(&call, self.began.elapsed(), |unmapping| {
                while !contexts.is_unmapped(unmapping) {
                    if self.has_thread.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    } else {
                        world.lock().unwrap().step();
                    }
                }
                true
            });
        self.answer(answer);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), CallError> {
        unreachable!("every call is answered at once")
    }
}

/// The machine address of a guest's memory.
fn base(guest: u8) -> u64 {
    u64::from(guest) * 0x1000_0000
}

impl World {
    /// A machine with `guests` guests, numbered from 1, each with the context of its number. Returns the guests' contexts. `first`
    /// is what the first guest may do.
    pub fn new(
        guests: u8,
        protection: Protection,
        first: Permissions,
    ) -> (Arc<Mutex<Self>>, Vec<Context>) {
        let page = region(vectors::PAGE_LEN);
        let mut bus = CardBus::new();
        let memory: Vec<_> = (0..guests).map(|_| region(PAGES * PAGE)).collect();
        for (guest, memory) in (1..).zip(&memory) {
            bus.memory().insert(base(guest), memory.clone());
        }
        let vectors = RegionVectors::new(whole(&page)).unwrap();
        let config = Config { tso: true, ..Config::default() };
        let card = Card::new(config, bus, Net::default(), vectors);
        let contexts = Arc::new(Contexts::new(&card.announcement()).unwrap());
        let world = Self {
            card,
            contexts,
            vectors: VectorConsumer::new(page).unwrap(),
            owners: Vec::new(),
            interrupts: Vec::new(),
            doorbells: Vec::new(),
            began: Instant::now(),
            has_thread: Arc::default(),
        };
        let world = Arc::new(Mutex::new(world));
        let all = (1..).zip(&memory).map(|(guest, memory)| {
            let permissions = if guest == 1 { first } else { Permissions::default() };
            Self::assign(&world, guest, memory, protection, permissions)
        });
        let all = all.collect();
        (world, all)
    }

    fn assign(
        this: &Arc<Mutex<Self>>,
        guest: u8,
        memory: &Shared,
        protection: Protection,
        permissions: Permissions,
    ) -> Context {
        let mut world = this.lock().unwrap();
        let (context, domain) = (ContextId::new(guest), DomId(guest.into()));
        let base = base(guest);
        let first = base / PAGE as u64;
        let references = PageReferences::new(PAGES);
        let owner = Arc::new(Owner { id: domain, first, references });
        let io_pages = Assignment::pages_of(&*owner);
        let table = region(iommu::table_len(io_pages));
        let (rings, completions) = (region(ring::RINGS_LEN), region(completion::PAGE_LEN));
        let shared = region(context::PAGE_LEN);
        let own = ContextMemory {
            rings: rings.clone(),
            completions: completions.clone(),
            table: Some(table.clone()),
        };
        let assignment = Assignment { owner: &owner, protection, memory: own, start: 0, io_pages };
        let generation = world.contexts.assign(context, assignment).unwrap();
        if let Protection::Iommu(_) = protection {
            let geometry = Geometry { entries: 64, ways: 4 };
            let bus = world.card.bus();
            bus.translate(context, table, completions.clone(), geometry).unwrap();
        }
        let assignment = cdna::message::Assignment {
            context,
            generation,
            mac: mac(guest),
            permissions,
            protection: protection.for_card(),
            start: 0,
        };
        let pages = RegionPages::new(whole(&shared), whole(&rings), whole(&completions)).unwrap();
        assert!(world.card.assign(assignment, pages).is_ok());
        let call = region(cdna::call::PAGE_LEN);
        let caller = Caller {
            world: Arc::downgrade(this),
            contexts: world.contexts.clone(),
            context,
            domain,
            page: call.clone(),
            began: world.began,
            has_thread: world.has_thread.clone(),
        };
        let calls = CallPage::new(whole(&call), first, caller).unwrap();
        let handles = || [(); 2].map(|()| -> Box<dyn Hypercalls> { Box::new(calls.clone()) });
        let access = match protection {
            Protection::None | Protection::Iommu(IommuMode::Static) => Access::Direct,
            Protection::Hypervisor => Access::Enqueue(handles()),
            Protection::Iommu(_) => Access::MapEach(handles()),
        };
        let doorbell = event();
        let interrupt = Arc::new(FdEvent(event()));
        let part = |first: usize, pages: usize| {
            let region = memory.slice(first * PAGE..(first + pages) * PAGE).unwrap();
            Memory::new(region, pages, base + (first * PAGE) as u64, ()).unwrap()
        };
        world.interrupts.push(interrupt.clone());
        world.doorbells.push(doorbell.try_clone().unwrap());
        world.owners.push(owner);
        let pages = Pages::new(whole(&shared), whole(&rings), whole(&completions), doorbell);
        Context {
            mac: mac(guest),
            features: world.card.announcement().features,
            access,
            start: 0,
            pages: pages.unwrap(),
            tx_memory: part(1, TX_PAGES),
            rx_memory: part(1 + TX_PAGES, RX_PAGES),
            interrupt,
            changed: Arc::new(FdEvent(event())),
            release: Box::new(|_: Duration| {}),
        }
    }

    /// A step of the card, and the hypervisor's interrupts after it.
    pub fn step(&mut self) -> Next {
        self.card.bus().serve();
        let next = self.card.step(self.began.elapsed()).next;
        let faults: Vec<_> = self.card.faults().collect();
        assert!(faults.is_empty(), "{faults:?}");
        let interrupts = &self.interrupts;
        let delivered = self.vectors.deliver(|context| signal(&interrupts[context.index() - 1].0));
        delivered.unwrap();
        self.contexts.tick(self.began.elapsed());
        next
    }

    /// Steps until the card has nothing to do.
    pub fn settle(&mut self) {
        while self.step() == Next::Now {}
    }

    /// The doorbells.
    pub fn doorbells(&self) -> Vec<OwnedFd> {
        self.doorbells.iter().map(|doorbell| doorbell.try_clone().unwrap()).collect()
    }

    /// How long the card may sleep from now on; none if not at all.
    pub fn sleep(&mut self, next: Next) -> Option<Duration> {
        let time = match next {
            Next::Now => return None,
            Next::At(at) => at.saturating_sub(self.began.elapsed()).min(TIMEOUT),
            Next::Event => TIMEOUT,
        };
        if !self.card.fall_asleep() {
            return None;
        }
        self.card.bus().sleep();
        Some(time)
    }

    /// The card wakes.
    pub fn wake(&mut self) {
        self.card.bus().wake();
    }

    /// Takes all contexts away. Returns the pages that then still have references.
    pub fn revoke_all(&mut self) -> usize {
        for guest in 1..=u8::try_from(self.owners.len()).unwrap() {
            let context = ContextId::new(guest);
            let generation = self.contexts.revoke(context, Reason::Requested).unwrap();
            let _ = self.card.revoke(context, generation);
            assert!(self.contexts.revoked(context, generation).is_some());
        }
        self.owners.iter().map(|owner| owner.references.pages()).sum()
    }

    /// Descriptors that were enqueued for a guest, and the calls for them.
    pub fn calls(&self, guest: u8) -> (u64, u64) {
        let status = self.contexts.status(ContextId::new(guest)).unwrap();
        (status.descriptors, status.calls)
    }

    /// Frames that a guest has sent.
    pub fn frames(&self, guest: u8) -> u64 {
        self.card.statistics(ContextId::new(guest)).tx_frames
    }
}
