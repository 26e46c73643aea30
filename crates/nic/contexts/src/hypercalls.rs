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

/// How often a call to map is tried while its pages are not given back. Before each further try, the card has confirmed
/// the unmappings that stood in its way.
const MAP_TRIES: u32 = 4;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Performed {
    /// It was answered.
    Answered(Answer),
    /// It gets this answer when the unmapping is done. If the answer is a refusal, the call can be performed again then.
    Waits(Unmapping, Answer),
}

/// What became of a request to map.
enum Mapped {
    /// This many pages were mapped.
    Pages(u32),
    /// Nothing was: a page is not given back yet. It can be asked for again when the unmapping is done.
    Waits(Unmapping, Refusal),
}

/// A domain that makes calls about a context.
#[derive(Debug)]
pub struct Caller<'a, O: PageOwner> {
    contexts: &'a Contexts<O>,
    context: ContextId,
    domain: DomId,
}

impl<O: PageOwner> Contexts<O> {
    /// Calls of a domain about a context. All are refused if the context is not the domain's.
    #[inline]
    #[must_use]
    pub fn caller(&self, context: ContextId, domain: DomId) -> Caller<'_, O> {
        Caller { contexts: self, context, domain }
    }

    /// Whether the card has confirmed an unmapping, or the unmapping's assignment has ended. Nothing is
    /// locked between two checks.
    pub fn is_unmapped(&self, unmapping: Unmapping) -> bool {
        let Unmapping { context, generation, ticket } = unmapping;
        let Some(mut slot) = self.slot(context) else { return true };
        let current = slot.generation == generation;
        slot.context.as_mut().filter(|_| current).is_none_or(|context| context.is_unmapped(ticket))
    }
}

impl<O: PageOwner> Caller<'_, O> {
    /// Checks descriptors and puts them on a ring: all, or on an error none. Their sequence numbers
    /// are set. Returns the new producer index, which the guest writes to its mailbox.
    ///
    /// # Errors
    /// The reason, with the first bad descriptor.
    #[inline]
    pub fn enqueue(
        &self,
        direction: Direction,
        descriptors: &[Descriptor],
    ) -> Result<u32, Refusal> {
        let writer = self.contexts.writer;
        self.with(|context| context.enqueue(writer, direction, descriptors))
    }

    /// Maps pages in the context's table: all, or on an error none. Returns how many. `now` counts
    /// from any moment.
    ///
    /// # Errors
    /// The reason, with the first bad entry.
    pub fn map(&self, entries: &[MapEntry], now: Duration) -> Result<u32, Refusal> {
        self.with(|context| context.map(entries, now))
    }

    /// As [`map`](Self::map), but waits for pages whose unmapping the card has not confirmed: `wait` waits as in
    /// [`serve`](Self::serve).
    ///
    /// # Errors
    /// As [`map`](Self::map), and if the card confirms nothing.
    pub fn map_when_confirmed(
        &self,
        entries: &[MapEntry],
        now: Duration,
        mut wait: impl FnMut(Unmapping) -> bool,
    ) -> Result<u32, Refusal> {
        for _ in 1..MAP_TRIES {
            match self.map_or_flush(entries, now)? {
                Mapped::Pages(pages) => return Ok(pages),
                Mapped::Waits(unmapping, _) if wait(unmapping) => {}
                Mapped::Waits(..) => {
                    self.count_refusal();
                    return Err(Refusal::Stopped);
                }
            }
        }
        self.map(entries, now)
    }

    /// Maps pages, or asks the card to confirm what stands in their way. Both are done under one lock. Otherwise another
    /// thread could give a page back between them, which would leave a refusal and nothing to wait for.
    fn map_or_flush(&self, entries: &[MapEntry], now: Duration) -> Result<Mapped, Refusal> {
        let mut slot = self.contexts.slot(self.context).ok_or(Refusal::NotYours)?;
        let generation = slot.generation;
        let assigned = slot.of(self.domain)?;
        let refusal = match assigned.map(entries, now) {
            Ok(pages) => return Ok(Mapped::Pages(pages)),
            Err(refusal) => refusal,
        };
        if refusal.is_pending()
            && let Some(ticket) = assigned.flush()?
        {
            return Ok(Mapped::Waits(
                Unmapping { context: self.context, generation, ticket },
                refusal,
            ));
        }
        assigned.count.refused += 1;
        Err(refusal)
    }

    fn count_refusal(&self) {
        if let Some(mut slot) = self.contexts.slot(self.context)
            && let Ok(context) = slot.of(self.domain)
        {
            context.count.refused += 1;
        }
    }

    /// Unmaps pages: all, or on an error none. If the context is strict, the call is done when
    /// [`is_unmapped`](Contexts::is_unmapped) says so.
    ///
    /// # Errors
    /// The reason, with the first bad entry.
    pub fn unmap(&self, entries: &[MapEntry], now: Duration) -> Result<Option<Unmapping>, Refusal> {
        let mut slot = self.contexts.slot(self.context).ok_or(Refusal::NotYours)?;
        let generation = slot.generation;
        let assigned = slot.of(self.domain)?;
        let ticket = assigned.unmap(entries, now).inspect_err(|_| assigned.count.refused += 1)?;
        Ok(ticket.map(|ticket| Unmapping { context: self.context, generation, ticket }))
    }

    #[inline]
    fn with<T>(
        &self,
        call: impl FnOnce(&mut Context<O>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut slot = self.contexts.slot(self.context).ok_or(Refusal::NotYours)?;
        let context = slot.of(self.domain)?;
        call(context).inspect_err(|_| context.count.refused += 1)
    }

    /// Performs a call that was copied from its page. Where the card has to confirm something, `wait` waits until
    /// [`is_unmapped`](Contexts::is_unmapped) says so, and returns whether it was in time.
    pub fn serve(
        &self,
        call: &Call,
        now: Duration,
        mut wait: impl FnMut(Unmapping) -> bool,
    ) -> Answer {
        let mut tries = 0;
        let refused = loop {
            tries += 1;
            match self.perform(call, now) {
                Performed::Answered(answer) => return answer,
                Performed::Waits(unmapping, answer) => match wait(unmapping) {
                    true if answer.status == 0 => return answer,
                    true if tries == MAP_TRIES => break answer,
                    true => {}
                    false => break Refusal::Stopped.answer(call.serial()),
                },
            }
        };
        // Counts the refusal that the guest sees, not each try.
        self.count_refusal();
        refused
    }

    /// As [`serve`](Self::serve), without waiting.
    pub fn perform(&self, call: &Call, now: Duration) -> Performed {
        let done = |value| Answer { serial: call.serial(), status: 0, value, reserved: 0 };
        let enqueue = |direction| self.enqueue(direction, call.descriptors());
        let result = match call.operation() {
            Operation::EnqueueTx => enqueue(Direction::Tx),
            Operation::EnqueueRx => enqueue(Direction::Rx),
            Operation::Map => match self.map_or_flush(call.mappings(), now) {
                Ok(Mapped::Pages(pages)) => Ok(pages),
                Ok(Mapped::Waits(unmapping, refusal)) => {
                    return Performed::Waits(unmapping, refusal.answer(call.serial()));
                }
                Err(refusal) => Err(refusal),
            },
            Operation::Unmap => match self.unmap(call.mappings(), now) {
                Ok(Some(unmapping)) if !self.contexts.is_unmapped(unmapping) => {
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
