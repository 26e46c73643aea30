//! What guests ask for: enqueue, map and unmap.

use std::time::Duration;

use cdna::call::{Answer, MapEntry, Operation};
use cdna::{ContextId, Descriptor, Direction};
use hypervisor::{DomId, PageOwner};

use crate::call::Call;
use crate::context::Context;
use crate::contexts::Contexts;
use crate::mapping::Unmapping;
use crate::refusal::Refusal;

/// How often a call to map is performed that finds pages which are not given back. Each time the card has confirmed
/// those that there were.
const MAP_TRIES: u32 = 4;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Performed {
    /// It was answered.
    Answered(Answer),
    /// It is answered so when the unmapping is done. A refusal means that it can then be performed again.
    Waits(Unmapping, Answer),
}

/// What became of a request to map.
enum Mapped {
    /// So many pages were mapped.
    Pages(u32),
    /// Nothing was: a page is not given back yet. It can be asked for again when the unmapping is done.
    Waits(Unmapping, Refusal),
}

impl<O: PageOwner> Contexts<O> {
    /// Checks descriptors and puts them on a ring: all, or on an error none. Their sequence numbers
    /// are set. Returns the new producer index, which the guest writes to its mailbox.
    ///
    /// # Errors
    /// The reason, with the first bad descriptor.
    #[inline]
    pub fn enqueue(
        &self,
        context: ContextId,
        caller: DomId,
        direction: Direction,
        descriptors: &[Descriptor],
    ) -> Result<u32, Refusal> {
        let writer = self.writer;
        self.with(context, caller, |context| context.enqueue(writer, direction, descriptors))
    }

    /// Maps pages in the context's table: all, or on an error none. Returns how many. `now` counts
    /// from any moment.
    ///
    /// # Errors
    /// The reason, with the first bad entry.
    pub fn map(
        &self,
        context: ContextId,
        caller: DomId,
        entries: &[MapEntry],
        now: Duration,
    ) -> Result<u32, Refusal> {
        self.with(context, caller, |context| context.map(entries, now))
    }

    /// As [`map`](Self::map), but pages that were unmapped are waited for if the card has not confirmed that: `wait`
    /// waits as in [`serve`](Self::serve).
    ///
    /// # Errors
    /// As [`map`](Self::map), and if the card confirms nothing.
    pub fn map_when_confirmed(
        &self,
        context: ContextId,
        caller: DomId,
        entries: &[MapEntry],
        now: Duration,
        mut wait: impl FnMut(Unmapping) -> bool,
    ) -> Result<u32, Refusal> {
        for _ in 1..MAP_TRIES {
            match self.map_or_flush(context, caller, entries, now)? {
                Mapped::Pages(pages) => return Ok(pages),
                Mapped::Waits(unmapping, _) if wait(unmapping) => {}
                Mapped::Waits(..) => {
                    self.count_refusal(context, caller);
                    return Err(Refusal::Stopped);
                }
            }
        }
        self.map(context, caller, entries, now)
    }

    /// Maps pages, or asks the card to confirm what stands in their way. Both hold the lock once: a page that another
    /// thread gives back between them would leave a refusal and nothing to wait for.
    fn map_or_flush(
        &self,
        context: ContextId,
        caller: DomId,
        entries: &[MapEntry],
        now: Duration,
    ) -> Result<Mapped, Refusal> {
        let mut slot = self.slot(context).ok_or(Refusal::NotYours)?;
        let generation = slot.generation;
        let assigned = slot.of(caller)?;
        let refusal = match assigned.map(entries, now) {
            Ok(pages) => return Ok(Mapped::Pages(pages)),
            Err(refusal) => refusal,
        };
        if refusal.is_pending()
            && let Some(ticket) = assigned.flush()?
        {
            return Ok(Mapped::Waits(Unmapping { context, generation, ticket }, refusal));
        }
        assigned.count.refused += 1;
        Err(refusal)
    }

    fn count_refusal(&self, context: ContextId, caller: DomId) {
        if let Some(mut slot) = self.slot(context)
            && let Ok(context) = slot.of(caller)
        {
            context.count.refused += 1;
        }
    }

    /// Unmaps pages: all, or on an error none. If the context is strict, the call is done when
    /// [`is_unmapped`](Self::is_unmapped) says so.
    ///
    /// # Errors
    /// The reason, with the first bad entry.
    pub fn unmap(
        &self,
        context: ContextId,
        caller: DomId,
        entries: &[MapEntry],
        now: Duration,
    ) -> Result<Option<Unmapping>, Refusal> {
        let mut slot = self.slot(context).ok_or(Refusal::NotYours)?;
        let generation = slot.generation;
        let assigned = slot.of(caller)?;
        let ticket = assigned.unmap(entries, now).inspect_err(|_| assigned.count.refused += 1)?;
        Ok(ticket.map(|ticket| Unmapping { context, generation, ticket }))
    }

    #[inline]
    fn with<T>(
        &self,
        context: ContextId,
        caller: DomId,
        call: impl FnOnce(&mut Context<O>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut slot = self.slot(context).ok_or(Refusal::NotYours)?;
        let context = slot.of(caller)?;
        call(context).inspect_err(|_| context.count.refused += 1)
    }

    /// Whether the card has confirmed an unmapping, or has ended its context. Nothing is locked between
    /// two checks.
    pub fn is_unmapped(&self, unmapping: Unmapping) -> bool {
        let Unmapping { context, generation, ticket } = unmapping;
        let Some(mut slot) = self.slot(context) else { return true };
        let current = slot.generation == generation;
        slot.context.as_mut().filter(|_| current).is_none_or(|context| context.is_unmapped(ticket))
    }

    /// Performs a call that was copied from its page. Where the card has to confirm something, `wait` waits until
    /// [`is_unmapped`](Self::is_unmapped) says so, and returns whether it was in time.
    pub fn serve(
        &self,
        context: ContextId,
        caller: DomId,
        call: &Call,
        now: Duration,
        mut wait: impl FnMut(Unmapping) -> bool,
    ) -> Answer {
        let mut tries = 0;
        let refused = loop {
            tries += 1;
            match self.perform(context, caller, call, now) {
                Performed::Answered(answer) => return answer,
                Performed::Waits(unmapping, answer) => match wait(unmapping) {
                    true if answer.status == 0 => return answer,
                    true if tries == MAP_TRIES => break answer,
                    true => {}
                    false => break Refusal::Stopped.answer(call.serial()),
                },
            }
        };
        // What the guest is told counts, not each try.
        self.count_refusal(context, caller);
        refused
    }

    /// As [`serve`](Self::serve), without waiting.
    pub fn perform(
        &self,
        context: ContextId,
        caller: DomId,
        call: &Call,
        now: Duration,
    ) -> Performed {
        let done = |value| Answer { serial: call.serial(), status: 0, value, reserved: 0 };
        let enqueue = |direction| self.enqueue(context, caller, direction, call.descriptors());
        let result = match call.operation() {
            Operation::EnqueueTx => enqueue(Direction::Tx),
            Operation::EnqueueRx => enqueue(Direction::Rx),
            Operation::Map => match self.map_or_flush(context, caller, call.mappings(), now) {
                Ok(Mapped::Pages(pages)) => Ok(pages),
                Ok(Mapped::Waits(unmapping, refusal)) => {
                    return Performed::Waits(unmapping, refusal.answer(call.serial()));
                }
                Err(refusal) => Err(refusal),
            },
            Operation::Unmap => match self.unmap(context, caller, call.mappings(), now) {
                Ok(Some(unmapping)) if !self.is_unmapped(unmapping) => {
                    return Performed::Waits(unmapping, done(0));
                }
                result => result.map(|_| 0),
            },
        };
        Performed::Answered(match result {
            Ok(value) => done(value),
            Err(refusal) => refusal.answer(call.serial()),
        })
    }
}
