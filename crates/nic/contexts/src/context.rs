//! An assigned context.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cdna::call::{ENTRIES_MAX, MapEntry};
use cdna::{Descriptor, Direction};
use hypervisor::{DomId, PageOwner};
use iommu::Ticket;

use crate::assign::{AssignError, Assignment, ContextMemory};
use crate::enqueue::{BadConsumer, Ring};
use crate::mapping::Mappings;
use crate::refusal::Refusal;
use crate::state::Protection;
use crate::state::{Reason, State};
use crate::writer::Writer;

/// Counts of a context's calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallCount {
    pub(crate) calls: u64,
    pub(crate) descriptors: u64,
    pub(crate) mapped: u64,
    pub(crate) refused: u64,
}

/// A context and its owner, whose memory stays as long as this does.
#[derive(Debug)]
pub(crate) struct Context<O> {
    owner: Arc<O>,
    pub(crate) protection: Protection,
    memory: ContextMemory,
    rings: [Ring; 2],
    mappings: Option<Mappings>,
    /// Active, stopped or revoking.
    state: State,
    pub(crate) count: CallCount,
}

impl<O: PageOwner> Context<O> {
    pub(crate) fn new(assignment: Assignment<'_, O>, writer: Writer) -> Result<Self, AssignError> {
        let Assignment { owner, protection, memory, start, io_pages } = assignment;
        memory.check()?;
        let mappings = match protection {
            Protection::None | Protection::Hypervisor => None,
            Protection::Iommu(mode) => {
                let table = memory.table.as_ref().ok_or(AssignError::NoTable)?;
                let own = owner.machine_pages();
                let mut mappings = Mappings::new(mode, own, io_pages, table, &memory.completions)?;
                mappings.restore(&**owner, 0..io_pages as usize);
                Some(mappings)
            }
        };
        let rings = [Direction::Tx, Direction::Rx].map(|direction| {
            writer.clear(&memory.rings, direction, start);
            Ring::new(direction, start)
        });
        Ok(Self {
            owner: owner.clone(),
            protection,
            memory,
            rings,
            mappings,
            state: State::Active,
            count: CallCount::default(),
        })
    }

    /// Its domain.
    pub(crate) fn owner(&self) -> DomId {
        self.owner.id()
    }

    /// Active, stopped or revoking.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// References that it holds.
    pub(crate) fn references(&self) -> usize {
        let rings: usize = self.rings.iter().map(Ring::references).sum();
        rings + self.mappings.as_ref().map_or(0, Mappings::references)
    }

    /// Descriptors of each ring that are not consumed.
    pub(crate) fn pending(&self) -> [u32; 2] {
        [self.rings[0].pending(), self.rings[1].pending()]
    }

    /// Whether `caller` may make calls now.
    pub(crate) fn check_caller(&self, caller: DomId) -> Result<(), Refusal> {
        if self.owner.id() != caller {
            return Err(Refusal::NotYours);
        }
        match self.state {
            State::Active if self.owner.is_alive() => Ok(()),
            State::Active => Err(Refusal::OwnerEnded),
            _ => Err(Refusal::Stopped),
        }
    }

    /// Releases what the card has consumed, then enqueues. Stops the context if the card's index is
    /// impossible.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        writer: Writer,
        direction: Direction,
        batch: &[Descriptor],
    ) -> Result<u32, Refusal> {
        if self.protection != Protection::Hypervisor {
            return Err(Refusal::WrongProtection);
        }
        if batch.len() > ENTRIES_MAX {
            return Err(Refusal::TooMany);
        }
        let Self { owner, memory, rings, .. } = self;
        let ring = &mut rings[direction as usize];
        let producer = match ring.enqueue(&**owner, memory, writer, batch) {
            Ok(enqueued) => enqueued?,
            Err(BadConsumer(consumer)) => {
                self.stop(Reason::BadConsumer { ring: direction, consumer });
                return Err(Refusal::Stopped);
            }
        };
        self.count.calls += 1;
        self.count.descriptors += batch.len() as u64;
        Ok(producer)
    }

    fn stop(&mut self, reason: Reason) {
        if self.state == State::Active {
            self.state = State::Stopped(reason);
        }
    }

    /// Notes that the card is told to revoke the context. Returns false if that was noted before. The first reason is kept.
    pub(crate) fn revoke(&mut self, reason: Reason) -> bool {
        let reason = match self.state {
            State::Free | State::Active => reason,
            State::Stopped(first) => first,
            State::Revoking(_) => return false,
        };
        self.state = State::Revoking(reason);
        true
    }

    fn dynamic_mappings(&mut self) -> Result<(&O, &mut Mappings), Refusal> {
        match &mut self.mappings {
            Some(mappings) if !mappings.is_static() => Ok((&*self.owner, mappings)),
            _ => Err(Refusal::WrongProtection),
        }
    }

    pub(crate) fn map(&mut self, entries: &[MapEntry], now: Duration) -> Result<u32, Refusal> {
        let (owner, mappings) = self.dynamic_mappings()?;
        mappings.give_back(owner);
        let pages = mappings.map(owner, entries, now)?;
        self.count.calls += 1;
        self.count.mapped += u64::from(pages);
        Ok(pages)
    }

    pub(crate) fn unmap(
        &mut self,
        entries: &[MapEntry],
        now: Duration,
    ) -> Result<Option<Ticket>, Refusal> {
        let (owner, mappings) = self.dynamic_mappings()?;
        let ticket = mappings.unmap(entries, now)?;
        mappings.give_back(owner);
        self.count.calls += 1;
        Ok(ticket)
    }

    /// Asks the card now about all pages that are not given back.
    pub(crate) fn flush(&mut self) -> Result<Option<Ticket>, Refusal> {
        let (_, mappings) = self.dynamic_mappings()?;
        Ok(mappings.flush())
    }

    /// Whether an unmapping is done.
    pub(crate) fn is_unmapped(&mut self, ticket: Ticket) -> bool {
        let Some(mappings) = &mut self.mappings else { return true };
        let confirmed = mappings.is_confirmed(ticket);
        if confirmed {
            mappings.give_back(&*self.owner);
        }
        confirmed
    }

    /// Goes on with unmappings whose time has come.
    pub(crate) fn tick(&mut self, now: Duration) {
        if let Some(mappings) = &mut self.mappings {
            mappings.tick(now);
            mappings.give_back(&*self.owner);
        }
    }

    /// The owner wants to give up some pages.
    pub(crate) fn reclaim(&mut self, pages: Range<usize>) {
        // Where the guest writes descriptors, nothing is known about them, and no page is held for them.
        if self.protection == Protection::Hypervisor {
            self.reap();
        }
        if let Some(mappings) = &mut self.mappings {
            mappings.reclaim(&*self.owner, pages);
        }
    }

    fn reap(&mut self) {
        for direction in [Direction::Tx, Direction::Rx] {
            let ring = &mut self.rings[direction as usize];
            let mut references = self.owner.references().lock();
            let reaped = ring.reap(&mut references, &self.memory.completions);
            drop(references);
            // After an impossible index, references are kept until the card is quiet.
            if let Err(BadConsumer(consumer)) = reaped {
                self.stop(Reason::BadConsumer { ring: direction, consumer });
            }
        }
    }

    /// The owner has pages again, or keeps them.
    pub(crate) fn restore(&mut self, pages: Range<usize>) {
        if let (Some(mappings), State::Active) = (&mut self.mappings, self.state) {
            mappings.restore(&*self.owner, pages);
        }
    }

    /// Releases everything: the card is quiet. Returns why the context was stopped, if it was.
    pub(crate) fn end(mut self) -> Option<Reason> {
        let mut references = self.owner.references().lock();
        self.rings.iter_mut().for_each(|ring| ring.release(&mut references));
        drop(references);
        if let Some(mappings) = &mut self.mappings {
            mappings.release(&*self.owner);
        }
        match self.state {
            State::Stopped(reason) | State::Revoking(reason) => Some(reason),
            State::Free | State::Active => None,
        }
    }
}
