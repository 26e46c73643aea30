//! The contexts of one card.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cdna::{Announcement, ContextId, Fault, layout, ring};
use hypervisor::{DomId, PageOwner, PageUser};

use crate::assign::{AssignError, Assignment, Unsupported};
use crate::context::Context;
use crate::refusal::Refusal;
use crate::state::{ContextStatus, Ended, Reason, State};
use crate::writer::Writer;

/// The contexts of one card, whose owners are domains `O`.
#[derive(Debug)]
pub struct Contexts<O> {
    slots: Box<[Mutex<Slot<O>>]>,
    pub(crate) writer: Writer,
    faults: Mutex<FaultLog>,
}

/// A context that is assigned, or not.
#[derive(Debug)]
pub(crate) struct Slot<O> {
    pub(crate) generation: u32,
    pub(crate) context: Option<Context<O>>,
    ended: Option<Ended>,
}

impl<O> Default for Slot<O> {
    fn default() -> Self {
        Self { generation: 0, context: None, ended: None }
    }
}

impl<O: PageOwner> Slot<O> {
    pub(crate) fn of(&mut self, caller: DomId) -> Result<&mut Context<O>, Refusal> {
        let context = self.context.as_mut().ok_or(Refusal::NotYours)?;
        context.check_caller(caller)?;
        Ok(context)
    }

    /// Ends the assignment: the card is quiet.
    fn end(&mut self, reason: Reason) {
        if let Some(context) = self.context.take() {
            let (owner, generation) = (context.owner(), self.generation);
            let reason = context.end().unwrap_or(reason);
            self.ended = Some(Ended { owner, generation, reason });
        }
    }

    fn is_assignment(&self, generation: u32) -> bool {
        self.context.is_some() && self.generation == generation
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O: PageOwner> Contexts<O> {
    /// The contexts of a card, by what it announced.
    ///
    /// # Errors
    /// This hypervisor cannot serve such a card.
    pub fn new(announcement: &Announcement) -> Result<Self, Unsupported> {
        let Announcement { version, contexts, slots, layout, .. } = *announcement;
        if version != layout::VERSION {
            return Err(Unsupported::Version(version));
        }
        if slots != ring::SLOTS {
            return Err(Unsupported::Slots(slots));
        }
        let count = usize::try_from(contexts).ok();
        let count = count.filter(|count| (1..=cdna::context::CONTEXTS_MAX).contains(count));
        let count = count.ok_or(Unsupported::Contexts(contexts))?;
        let writer = Writer::new(layout).ok_or(Unsupported::Layout)?;
        let slots = (0..count).map(|_| Mutex::default()).collect();
        Ok(Self { slots, writer, faults: Mutex::default() })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none. There always are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn slot(&self, context: ContextId) -> Option<MutexGuard<'_, Slot<O>>> {
        self.slots.get(context.index()).map(lock)
    }

    fn all(&self) -> impl Iterator<Item = (ContextId, MutexGuard<'_, Slot<O>>)> {
        (0..=u8::MAX).map(ContextId::new).zip(self.slots.iter().map(lock))
    }

    /// Assigns a context that is free. Returns the generation, for the card. A static table is
    /// filled before this returns.
    ///
    /// # Errors
    /// It is not free, its memory does not do, or the domain has ended.
    pub fn assign(
        self: &Arc<Self>,
        context: ContextId,
        assignment: Assignment<'_, O>,
    ) -> Result<u32, AssignError>
    where
        O: 'static,
    {
        let owner = assignment.owner;
        // Before the context takes references, and without the slot's lock: the domain may be reclaiming pages at this time.
        let user: Weak<Self> = Arc::downgrade(self);
        owner.attach(user);
        let mut slot = self.slot(context).ok_or(AssignError::NoContext)?;
        if slot.context.is_some() {
            return Err(AssignError::InUse);
        }
        if !owner.is_alive() {
            return Err(AssignError::OwnerEnded);
        }
        slot.context = Some(Context::new(assignment, self.writer)?);
        slot.generation = slot.generation.wrapping_add(1);
        Ok(slot.generation)
    }

    /// Goes on with what is due: deferred unmappings.
    pub fn tick(&self, now: Duration) {
        for (_, mut slot) in self.all() {
            if let Some(context) = &mut slot.context {
                context.tick(now);
            }
        }
    }

    /// Takes a context away, also one that is [stopped](State::Stopped) already. Returns the
    /// generation if the card has to be told to revoke it. Its references stay until the card is quiet.
    pub fn revoke(&self, context: ContextId, reason: Reason) -> Option<u32> {
        let mut slot = self.slot(context)?;
        let generation = slot.generation;
        slot.context.as_mut()?.revoke(reason).then_some(generation)
    }

    /// Takes away the contexts of a domain that has ended. Returns those that the card has to revoke.
    pub fn owner_ended(&self, owner: DomId) -> Vec<(ContextId, u32)> {
        let mut revoked = Vec::new();
        for (id, mut slot) in self.all() {
            let generation = slot.generation;
            let context = slot.context.as_mut().filter(|context| context.owner() == owner);
            if context.is_some_and(|context| context.revoke(Reason::OwnerEnded)) {
                revoked.push((id, generation));
            }
        }
        revoked
    }

    /// The card has revoked a context and is quiet: its references are released, and it is free. Returns
    /// how it ended; none if the report is not of its present assignment, or the card was not told to revoke it.
    pub fn revoked(&self, context: ContextId, generation: u32) -> Option<Ended> {
        let mut slot = self.slot(context)?;
        let state = slot.context.as_ref()?.state();
        let State::Revoking(reason) = state else { return None };
        if !slot.is_assignment(generation) {
            return None;
        }
        slot.end(reason);
        slot.ended
    }

    /// The card has stopped a context for a fault of its guest, and is quiet: as
    /// [`revoked`](Self::revoked). The fault is kept.
    pub fn fault(&self, generation: u32, fault: Fault) -> Option<Ended> {
        let mut slot = self.slot(fault.context)?;
        if !slot.is_assignment(generation) {
            return None;
        }
        let owner = slot.context.as_ref()?.owner();
        slot.end(Reason::Fault(fault));
        let ended = slot.ended;
        drop(slot);
        lock(&self.faults).record(FaultRecord { owner, generation, fault });
        ended
    }

    /// The card's process has ended, so nothing uses a page any more: all contexts are free. Returns
    /// those that had an owner.
    pub fn card_ended(&self) -> Vec<(ContextId, Ended)> {
        let mut ended = Vec::new();
        for (id, mut slot) in self.all() {
            if slot.context.is_some() {
                slot.end(Reason::CardEnded);
                ended.extend(slot.ended.map(|how| (id, how)));
            }
        }
        ended
    }

    /// One context.
    #[must_use]
    pub fn status(&self, context: ContextId) -> Option<ContextStatus> {
        self.slot(context).map(|slot| slot.status(context))
    }

    /// All contexts.
    #[must_use]
    pub fn list(&self) -> Vec<ContextStatus> {
        self.all().map(|(id, slot)| slot.status(id)).collect()
    }

    /// How many faults the card has reported, and the newest of them, oldest first.
    #[must_use]
    pub fn faults(&self) -> (u64, Vec<FaultRecord>) {
        let faults = lock(&self.faults);
        (faults.total, faults.newest.iter().copied().collect())
    }
}

impl<O: PageOwner> Slot<O> {
    fn status(&self, context: ContextId) -> ContextStatus {
        let assigned = self.context.as_ref();
        let count = assigned.map(|context| context.count).unwrap_or_default();
        ContextStatus {
            context,
            state: assigned.map_or(State::Free, Context::state),
            assigned: assigned.map(|context| (context.owner(), context.protection)),
            generation: self.generation,
            ended: self.ended,
            references: assigned.map_or(0, Context::references),
            pending: assigned.map(Context::pending).unwrap_or_default(),
            calls: count.calls,
            descriptors: count.descriptors,
            mapped: count.mapped,
            refused: count.refused,
        }
    }
}

impl<O: PageOwner> PageUser for Contexts<O> {
    fn reclaim(&self, domain: DomId, pages: Range<usize>) {
        for (_, mut slot) in self.all() {
            if let Some(context) = slot.context.as_mut().filter(|c| c.owner() == domain) {
                context.reclaim(pages.clone());
            }
        }
    }

    fn restore(&self, domain: DomId, pages: Range<usize>) {
        for (_, mut slot) in self.all() {
            if let Some(context) = slot.context.as_mut().filter(|c| c.owner() == domain) {
                context.restore(pages.clone());
            }
        }
    }
}

/// Faults that are kept: the newest.
pub const FAULTS_KEPT: usize = 64;

/// A fault, and whose it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// The domain that had the context.
    pub owner: DomId,
    /// Which assignment of it.
    pub generation: u32,
    /// What the card found.
    pub fault: Fault,
}

/// The newest faults, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct FaultLog {
    pub(crate) newest: VecDeque<FaultRecord>,
    pub(crate) total: u64,
}

impl FaultLog {
    pub(crate) fn record(&mut self, record: FaultRecord) {
        self.total += 1;
        if self.newest.len() == FAULTS_KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back(record);
    }
}
