//! A card, the hypervisor's part and two guests in one thread, without processes or sockets between them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cdna::message::Permissions;
use cdna::{ContextId, completion, context, ring, vectors};
use cdnafront::{
    Access, CallPage, Context, FdEvent, Hypercalls, Memory, Pages, RX_PAGES, ReceivedFrame,
    TX_PAGES,
};
use clap::ValueEnum;
use contexts::{Assignment, ContextMemory, Contexts, IommuMode, Protection, VectorConsumer};
use firmware::regions::{RegionPages, RegionVectors};
use firmware::{Card, Config, Next};
use hypervisor::{DomId, PAGE_SIZE};
use iommu::Geometry;
use netdev::{Metadata, Queue as _};
use nic_bus::CardBus;
use rustix::event::{EventfdFlags, eventfd};
use shm::Region;
use wire::ethernet::MacAddr;

use super::calls::{Calls, Owner, SharedCard, Sink};
use crate::bench::guest::{addressed, text, thread_cpu};

/// Pages of a guest.
const PAGES: usize = TX_PAGES + RX_PAGES;
/// Frames that each guest sends at once.
const BATCH: usize = 128;
/// The distance of two guests' machine addresses.
const SPACING: u64 = 1 << 28;
/// The cache of an IOMMU, as the configuration has it by default.
const CACHE: Geometry = Geometry { entries: 64, ways: 4 };
/// A station that no context has.
const STATION: MacAddr = MacAddr([2, 0, 0, 0, 1, 0]);

/// The guests' destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The wire.
    Wire,
    /// The other guest's context.
    Context,
}

/// A measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Frames that the card has sent.
    pub frames: u64,
    /// CPU time of the card.
    pub card: Duration,
    /// CPU time of the guests and the hypervisor.
    pub host: Duration,
}

impl Sample {
    /// Millions of frames per second of the card's time.
    pub fn mpps(&self) -> f64 {
        self.frames as f64 / self.card.as_secs_f64().max(f64::EPSILON) / 1e6
    }

    /// Nanoseconds of CPU time of the guests and the hypervisor per frame.
    pub fn host_ns(&self) -> f64 {
        self.host.as_nanos() as f64 / self.frames.max(1) as f64
    }
}

/// The machine.
pub struct Machine {
    card: SharedCard,
    vectors: VectorConsumer<Arc<Region>>,
    guests: Vec<CardGuest>,
    begin: Instant,
    clock: Clock,
    calls: Arc<AtomicU64>,
}

/// Reads the CPU time of this thread.
pub type Clock = fn() -> Duration;

struct CardGuest {
    _interface: cdnafront::Interface,
    queue: cdnafront::CardQueue,
    frame: Vec<u8>,
    received: ReceivedFrame,
}

/// The address of a guest, counted from 1.
const fn mac(guest: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, guest])
}

fn region(len: usize) -> Result<Arc<Region>, String> {
    Region::anonymous(len).map(Arc::new).map_err(text)
}

/// Another handle of the same memory.
fn whole(region: &Arc<Region>) -> Result<Region, String> {
    region.slice(0..region.len()).map_err(text)
}

fn event() -> Result<OwnedFd, String> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(text)
}

fn lock(card: &SharedCard) -> MutexGuard<'_, Card<CardBus, Sink>> {
    card.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A card with two contexts under `protection`, whose guests send frames of `len` bytes.
    pub fn new(protection: Protection, to: To, len: usize) -> Result<Self, String> {
        let page = region(vectors::PAGE_LEN)?;
        let vectors = RegionVectors::new(whole(&page)?).map_err(text)?;
        let card = Card::new(Config::default(), CardBus::new(), Sink::default(), vectors);
        let contexts = Arc::new(Contexts::new(&card.announcement()).map_err(text)?);
        let card: SharedCard = Arc::new(Mutex::new(card));
        let vectors = VectorConsumer::new(page).map_err(text)?;
        let (guests, begin) = (Vec::new(), Instant::now());
        let calls = Arc::default();
        let mut this = Self { card, vectors, guests, begin, clock: thread_cpu, calls };
        for (guest, other) in [(1, 2), (2, 1)] {
            let context = this.assign(&contexts, guest, protection)?;
            let (interface, queue) = cdnafront::open(context, &cdnafront::Config::default());
            let to = if to == To::Wire { STATION } else { mac(other) };
            let frame = addressed(mac(guest), to, len);
            let received = ReceivedFrame::default();
            this.guests.push(CardGuest { _interface: interface, queue, frame, received });
        }
        Ok(this)
    }

    fn assign(
        &self,
        contexts: &Arc<Contexts<Owner>>,
        guest: u8,
        protection: Protection,
    ) -> Result<Context, String> {
        let (id, domain) = (ContextId::new(guest), DomId(guest.into()));
        let base = u64::from(guest) * SPACING;
        let memory = region(PAGES * PAGE_SIZE)?;
        let owner = Arc::new(Owner::new(domain, base / PAGE_SIZE as u64, PAGES));
        let io_pages = Assignment::pages_of(&*owner);
        let (rings, completions) = (region(ring::RINGS_LEN)?, region(completion::PAGE_LEN)?);
        let (shared, table) = (region(context::PAGE_LEN)?, region(iommu::table_len(io_pages))?);
        let own = ContextMemory {
            rings: rings.clone(),
            completions: completions.clone(),
            table: Some(table.clone()),
        };
        let assignment = Assignment { owner: &owner, protection, memory: own, start: 0, io_pages };
        let generation = contexts.assign(id, assignment).map_err(text)?;

        let mut card = lock(&self.card);
        card.bus().memory().insert(base, memory.clone());
        if let Protection::Iommu(_) = protection {
            card.bus().translate(id, table, completions.clone(), CACHE).map_err(text)?;
        }
        let (protection_of_card, mac) = (protection.for_card(), mac(guest));
        let assignment = cdna::message::Assignment {
            context: id,
            generation,
            mac,
            permissions: Permissions::default(),
            protection: protection_of_card,
            start: 0,
        };
        let pages = RegionPages::new(whole(&shared)?, whole(&rings)?, whole(&completions)?);
        card.assign(assignment, pages.map_err(text)?).map_err(|_| "no such context")?;

        let page = region(cdna::call::PAGE_LEN)?;
        let calls = Calls {
            card: self.card.clone(),
            contexts: contexts.clone(),
            context: id,
            domain,
            page: page.clone(),
            begin: self.begin,
            answered: self.calls.clone(),
        };
        let calls = CallPage::new(whole(&page)?, base / PAGE_SIZE as u64, calls).map_err(text)?;
        let handles = || [(); 2].map(|()| -> Box<dyn Hypercalls> { Box::new(calls.clone()) });
        let access = match protection {
            Protection::None | Protection::Iommu(IommuMode::Static) => Access::Direct,
            Protection::Hypervisor => Access::Enqueue(handles()),
            Protection::Iommu(_) => Access::MapEach(handles()),
        };
        let part = |first: usize, pages: usize| {
            let region = memory.slice(first * PAGE_SIZE..(first + pages) * PAGE_SIZE);
            let address = base + (first * PAGE_SIZE) as u64;
            Memory::new(region.map_err(text)?, pages, address, ()).map_err(text)
        };
        let pages = Pages::new(whole(&shared)?, whole(&rings)?, whole(&completions)?, event()?);
        Ok(Context {
            mac,
            features: card.announcement().features,
            access,
            start: 0,
            pages: pages.map_err(text)?,
            tx_memory: part(0, TX_PAGES)?,
            rx_memory: part(TX_PAGES, RX_PAGES)?,
            interrupt: Arc::new(FdEvent(event()?)),
            changed: Arc::new(FdEvent(event()?)),
            release: Box::new(|_: Duration| {}),
        })
    }

    /// Reads another clock from now on.
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Lets the guests send and receive for a time.
    pub fn run(&mut self, duration: Duration) -> Result<Sample, String> {
        let start = Instant::now();
        let mut sample = Sample::default();
        while start.elapsed() < duration {
            self.batch(&mut sample)?;
        }
        Ok(sample)
    }

    /// Lets the guests send and receive a number of batches.
    pub fn run_batches(&mut self, batches: u32) -> Result<Sample, String> {
        let mut sample = Sample::default();
        for _ in 0..batches {
            self.batch(&mut sample)?;
        }
        Ok(sample)
    }

    fn batch(&mut self, sample: &mut Sample) -> Result<(), String> {
        let now = self.clock;
        let begin = now();
        let mut sent = 0;
        for guest in &mut self.guests {
            sent += guest.send(BATCH as u64)?;
        }
        let card_begins = now();
        step_card(&mut lock(&self.card), self.begin);
        let card_ends = now();
        for guest in &mut self.guests {
            guest.receive()?;
        }
        self.vectors.deliver(|_| ()).map_err(text)?;
        let end = now();
        if let Some(fault) = lock(&self.card).faults().next() {
            return Err(format!("the card has stopped a context: {fault:?}"));
        }
        sample.frames += sent;
        sample.card += card_ends - card_begins;
        sample.host += (card_begins - begin) + (end - card_ends);
        Ok(())
    }

    /// Has the first guest send a number of frames, and the card carry them.
    pub fn send(&mut self, frames: u64) -> Result<(), String> {
        self.guests[0].send(frames)?;
        step_card(&mut lock(&self.card), self.begin);
        self.guests[0].receive()?;
        self.vectors.deliver(|_| ()).map(drop).map_err(text)
    }

    /// Calls of guests that the hypervisor has answered.
    pub fn hypercalls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Frames that the card has carried since it was made: on the wire, or to contexts.
    pub fn carried(&self) -> u64 {
        let card = lock(&self.card);
        let received = |guest| card.statistics(ContextId::new(guest)).rx_frames;
        card.counters().wire_tx + received(1) + received(2)
    }
}

impl CardGuest {
    /// Sends frames up to a number, as far as there is room. Returns how many.
    fn send(&mut self, frames: u64) -> Result<u64, String> {
        let Self { queue, frame, .. } = self;
        let mut sent = 0;
        for _ in 0..frames {
            if !queue.has_room() {
                break;
            }
            let Some(buffer) = queue.buffers().next() else { break };
            buffer.region.copy_in(buffer.offset, frame).map_err(text)?;
            let frame = Metadata { len: frame.len(), ..Metadata::default() };
            queue.submit(frame).map_err(text)?;
            sent += 1;
        }
        queue.kick();
        Ok(sent)
    }

    /// Takes the received frames, and frees the buffers of sent ones.
    fn receive(&mut self) -> Result<(), String> {
        while self.queue.receive(&mut self.received).map_err(text)?.is_some() {}
        self.queue.give_back();
        self.queue.reclaim().map_err(text)
    }
}

/// Steps until the card waits for an event or a time, as its process does. `pvnet-lab bench nic` counts this function's instructions by its name.
#[inline(never)]
pub fn step_card(card: &mut Card<CardBus, Sink>, begin: Instant) {
    loop {
        card.bus().serve();
        if card.step(begin.elapsed()).next != Next::Now {
            break;
        }
    }
}

named::named! {
    /// A protection of a card's contexts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub enum CardProtection {
        /// Guests write descriptors, and nobody checks them.
        None => "none",
        /// The hypervisor checks and writes descriptors.
        Hypervisor => "hypervisor",
        /// All of the guest's pages are mapped.
        IommuStatic => "iommu-static",
        /// Each buffer is mapped, and unmapped at once.
        IommuStrict => "iommu-strict",
        /// Each buffer is mapped, and unmapped together with others.
        IommuDeferred => "iommu-deferred",
    }
}

/// The daemon's values for a deferred unmapping.
const DEFERRED: IommuMode = IommuMode::Deferred { pages: 128, after: Duration::from_millis(10) };

impl CardProtection {
    /// The protection for the hypervisor's part.
    pub const fn protection(self) -> Protection {
        match self {
            Self::None => Protection::None,
            Self::Hypervisor => Protection::Hypervisor,
            Self::IommuStatic => Protection::Iommu(IommuMode::Static),
            Self::IommuStrict => Protection::Iommu(IommuMode::Strict),
            Self::IommuDeferred => Protection::Iommu(DEFERRED),
        }
    }

    /// The name of this protection's row of `case`. [`None`](Self::None) has no suffix, so the others are compared with
    /// it.
    pub fn row(self, case: &str) -> String {
        match self {
            Self::None => case.to_owned(),
            other => format!("{case}+{}", other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_arrives_with_every_protection() {
        for kind in CardProtection::ALL {
            for to in [To::Wire, To::Context] {
                let mut machine = Machine::new(kind.protection(), to, 64).unwrap();
                let sample = machine.run_batches(20).unwrap();
                assert!(sample.frames >= 20 * BATCH as u64, "{kind:?} {to:?} {sample:?}");
                assert_eq!(machine.carried(), sample.frames, "{kind:?} {to:?}");
            }
        }
    }

    #[test]
    fn a_sample_is_a_rate_of_the_cards_time() {
        let ms = Duration::from_millis;
        let sample = Sample { frames: 2_000_000, card: ms(250), host: ms(500) };
        assert!((sample.mpps() - 8.0).abs() < 1e-9 && (sample.host_ns() - 250.0).abs() < 1e-9);
    }

    #[test]
    fn protections_are_compared_with_none() {
        let names = CardProtection::ALL.map(|kind| kind.row("wire-64"));
        assert_eq!(names[0], "wire-64");
        assert!(names[1..].iter().all(|name| name.starts_with("wire-64+")), "{names:?}");
        let asked =
            CardProtection::value_variants().iter().map(|kind| kind.to_possible_value().unwrap());
        assert!(
            asked.zip(CardProtection::ALL).all(|(value, kind)| value.get_name() == kind.name())
        );
    }
}
