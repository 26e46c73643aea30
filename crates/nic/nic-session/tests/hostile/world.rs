//! A machine in the test's process: real domains, the hypervisor's part of a card, the card's firmware, and the files of
//! contexts as the daemon makes, seals and hands them out. One guest means harm; the other is its neighbour.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cdna::message::Permissions;
use cdna::{ContextId, Report, Status, completion, vectors};
use contexts::{Assignment, ContextMemory, Contexts, Ended, Protection, Reason, VectorConsumer};
use firmware::regions::{RegionPages, RegionVectors};
use firmware::{Card, Config, Metadata, Next, Sent, Wire};
use hypervisor::PageOwner;
use iommu::Geometry;
use machine::{Domain, Machine, MachineGuest, MemorySize};
use nic_bus::CardBus;
use nic_session::files::{CardFiles, Files};
use shm::Region;

use crate::guest::{Assigned, Guest, PAGE, mac};

/// The guest that means harm: the number in its address and of its context.
pub const BAD: u8 = 1;
/// The guest whose memory lies behind that of [`BAD`], and which does nothing wrong.
pub const NEIGHBOUR: u8 = 2;
/// Ordinary pages of each guest: 2 MiB, so that their memory follows each other in the machine.
pub const PAGES: usize = 512;
/// What the neighbour keeps for itself, and where.
pub const SECRET: &[u8] = b"what only the neighbour knows, and what nobody else may read";
pub const SECRET_PAGE: usize = 5;

/// The wire.
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

/// The card's process: what is gone when it is killed.
pub struct CardProcess {
    pub card: Card<CardBus, Net>,
}

/// How a world begins.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    /// The index of the first descriptor of all rings.
    pub start: u32,
    /// Pages of the bad guest that can change hands.
    pub exchange_pages: usize,
}

pub struct World {
    pub machine: Machine,
    pub protection: Protection,
    setup: Setup,
    pub contexts: Arc<Contexts<Domain>>,
    pub process: CardProcess,
    pub vectors: VectorConsumer<Arc<Region>>,
    /// By number, from 1; none that was killed.
    guests: [Option<Guest>; 2],
    now: Duration,
}

fn index(number: u8) -> usize {
    usize::from(number) - 1
}

fn owned(files: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
    files.iter().map(|file| file.try_clone_to_owned().unwrap()).collect()
}

fn start_card() -> (CardProcess, VectorConsumer<Arc<Region>>) {
    let page = Arc::new(Region::anonymous(vectors::PAGE_LEN).unwrap());
    let card_side = RegionVectors::new(page.slice(0..vectors::PAGE_LEN).unwrap()).unwrap();
    let card = Card::new(Config::default(), CardBus::new(), Net::default(), card_side);
    (CardProcess { card }, VectorConsumer::new(page).unwrap())
}

impl World {
    pub fn new(protection: Protection, setup: Setup) -> Self {
        let machine = Machine::new();
        let (process, vectors) = start_card();
        let contexts = Arc::new(Contexts::new(&process.card.announcement()).unwrap());
        let (guests, now) = ([None, None], Duration::ZERO);
        let mut this = Self { machine, protection, setup, contexts, process, vectors, guests, now };
        for number in [BAD, NEIGHBOUR] {
            let exchange_pages = if number == BAD { setup.exchange_pages } else { 0 };
            this.add_domain(number, exchange_pages);
        }
        this.guest(NEIGHBOUR).memory().copy_in(SECRET_PAGE * PAGE, SECRET).unwrap();
        this.settle();
        this
    }

    fn add_domain(&mut self, number: u8, exchange_pages: usize) {
        let size =
            MemorySize { pages: PAGES, grant_pages: 1, exchange_pages, ..Default::default() };
        let domain = self.machine.create(size).unwrap();
        self.add_memory(&domain);
        let inside = MachineGuest::inside(&self.machine, &domain).unwrap();
        let assigned = self.assign(number, &domain);
        let guest = Guest::new(number, domain, inside, assigned);
        self.guests[index(number)] = Some(guest);
        self.serve(number);
    }

    /// The card gets a domain's memory, as the daemon gives it.
    fn add_memory(&mut self, domain: &Domain) {
        let len = domain.size().pages * PAGE;
        let memory = Region::map(domain.memory_file(), 0, len).unwrap();
        let base = domain.machine_pages().start * PAGE as u64;
        self.process.card.bus().memory().insert(base, Arc::new(memory));
    }

    /// Makes the files of an assignment.
    fn assign(&mut self, number: u8, domain: &Arc<Domain>) -> Assigned {
        let (protection, start) = (self.protection, self.setup.start);
        let io_pages = Assignment::pages_of(&**domain);
        let table_len = iommu::table_len(io_pages);
        let files = Files::create(protection.for_card(), start, table_len).unwrap();
        let memory = ContextMemory {
            rings: files.rings().clone(),
            completions: files.completion().clone(),
            table: files.table().cloned(),
        };
        let assignment = Assignment { owner: domain, protection, memory, start, io_pages };
        let generation = self.contexts.assign(ContextId::new(number), assignment).unwrap();
        Assigned { files, generation, start }
    }

    /// The card maps the files, the daemon seals them, and the card serves the context.
    fn serve(&mut self, number: u8) {
        let Self { process, guests, protection, setup, .. } = self;
        let guest = guests[index(number)].as_mut().unwrap();
        let CardFiles { context, rings, completion, doorbell: _, table } =
            CardFiles::map(owned(&guest.files.for_card())).unwrap();
        guest.map(*protection);
        let bus = process.card.bus();
        if let Some(table) = table {
            let geometry = Geometry { entries: 64, ways: 4 };
            bus.translate(guest.context, table, completion.clone(), geometry).unwrap();
        }
        let completion = completion.slice(0..completion::PAGE_LEN).unwrap();
        let pages = RegionPages::new(context, rings, completion).unwrap();
        let assignment = cdna::message::Assignment {
            context: guest.context,
            generation: guest.generation,
            mac: mac(number),
            permissions: Permissions::default(),
            protection: protection.for_card(),
            start: setup.start,
        };
        assert!(process.card.assign(assignment, pages).is_ok());
        guest.enable();
    }

    pub fn guest(&mut self, number: u8) -> &mut Guest {
        self.guests[index(number)].as_mut().unwrap()
    }

    /// Those that were not killed.
    pub fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter().flatten()
    }

    /// A guest and the hypervisor's part that it calls.
    pub fn caller(&mut self, number: u8) -> (&mut Guest, &Contexts<Domain>, Duration) {
        (self.guests[index(number)].as_mut().unwrap(), &self.contexts, self.now)
    }

    pub fn net(&mut self) -> &mut Net {
        self.process.card.wire()
    }

    /// A step of the card; what it reports goes to the hypervisor, whose interrupts are not delivered.
    pub fn step(&mut self) -> Next {
        self.now += Duration::from_micros(100);
        let next = self.process.card.step(self.now).next;
        let reports: Vec<_> = self.process.card.faults().collect();
        for report in reports {
            let Report::Fault { generation, fault } = report else { panic!("{report:?}") };
            assert!(self.contexts.fault(generation, fault).is_some());
        }
        self.contexts.tick(self.now);
        next
    }

    /// Steps until the card has nothing to do now, and delivers interrupts.
    pub fn settle(&mut self) {
        while self.step() == Next::Now {}
        self.vectors.take().unwrap();
    }

    /// The card waits for doorbells during a call that waits for it.
    pub fn while_asleep<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        self.process.card.bus().sleep();
        let result = call(self);
        self.process.card.bus().wake();
        result
    }

    /// How a guest's context ended.
    pub fn ended(&self, number: u8) -> Option<Ended> {
        self.contexts.status(ContextId::new(number)).unwrap().ended
    }

    /// Takes a context away, as the daemon does.
    pub fn revoke(&mut self, number: u8, reason: Reason) {
        let context = ContextId::new(number);
        let Some(generation) = self.contexts.revoke(context, reason) else { return };
        let report = self.process.card.revoke(context, generation);
        assert_eq!(report, Report::Revoked { context, generation });
        self.contexts.revoked(context, generation);
    }

    /// The card's process is killed. Returns how many contexts had an owner.
    pub fn kill_card(&mut self) -> usize {
        let (next, vectors) = start_card();
        drop(std::mem::replace(&mut self.process, next));
        self.vectors = vectors;
        let ended = self.contexts.card_ended().len();
        for guest in self.guests.iter().flatten() {
            guest.files.completion().write(completion::STATUS, Status::Down as u32).unwrap();
        }
        ended
    }

    /// The next card gets the memory and serves all guests again.
    pub fn reassign_all(&mut self) {
        self.contexts = Arc::new(Contexts::new(&self.process.card.announcement()).unwrap());
        for number in [BAD, NEIGHBOUR] {
            let domain = self.guest(number).domain.clone();
            self.add_memory(&domain);
            let assigned = self.assign(number, &domain);
            self.guest(number).replace(assigned);
            self.serve(number);
        }
        self.settle();
    }

    /// The process of a guest is killed. Returns its domain, which lives as long as somebody keeps it.
    pub fn kill(&mut self, number: u8) -> Weak<Domain> {
        let guest = self.guests[index(number)].take().unwrap();
        self.machine.destroy(guest.domain.id());
        Arc::downgrade(&guest.domain)
    }
}
