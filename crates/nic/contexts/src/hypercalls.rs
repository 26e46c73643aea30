//! What guests ask for: enqueue, map and unmap.

use std::time::Duration;

use cdna::call::{Answer, MapEntry, Operation};
use cdna::{ContextId, Descriptor, Direction};
use hypervisor::{DomId, PageOwner};
use iommu::{MapError, Ticket};

use crate::call::Call;
use crate::context::Context;
use crate::contexts::Contexts;
use crate::mapping::Unmapping;
use crate::refusal::{EntryError, Refusal};

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
        let mut tries = 0;
        loop {
            tries += 1;
            let result = self.map(context, caller, entries, now);
            let Err(Refusal::Entry { why: EntryError::Mapping(MapError::Pending(_)), .. }) = result
            else {
                return result;
            };
            match self.flush(context, caller)? {
                _ if tries == MAP_TRIES => return result,
                Some(unmapping) if !wait(unmapping) => return Err(Refusal::Stopped),
                // Confirmed, perhaps since the page was looked at.
                Some(_) | None => {}
            }
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
        self.begin_unmapping(context, caller, |context| context.unmap(entries, now))
    }

    /// Asks the card now about all pages of a context that are not given back. They can be mapped again when
    /// [`is_unmapped`](Self::is_unmapped) says so; none if there are no such pages.
    ///
    /// # Errors
    /// It is not the caller's, or its protection has no such pages.
    pub fn flush(&self, context: ContextId, caller: DomId) -> Result<Option<Unmapping>, Refusal> {
        self.begin_unmapping(context, caller, Context::flush)
    }

    fn begin_unmapping(
        &self,
        context: ContextId,
        caller: DomId,
        call: impl FnOnce(&mut Context<O>) -> Result<Option<Ticket>, Refusal>,
    ) -> Result<Option<Unmapping>, Refusal> {
        let mut slot = self.slot(context).ok_or(Refusal::NotYours)?;
        let generation = slot.generation;
        let assigned = slot.of(caller)?;
        let ticket = call(assigned).inspect_err(|_| assigned.count.refused += 1)?;
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
    /// two looks.
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
        loop {
            tries += 1;
            match self.perform(context, caller, call, now) {
                Performed::Answered(answer) => return answer,
                Performed::Waits(unmapping, answer) => {
                    let serial = call.serial();
                    match wait(unmapping) {
                        true if answer.status == 0 || tries == MAP_TRIES => return answer,
                        true => {}
                        false => return Refusal::Stopped.answer(serial),
                    }
                }
            }
        }
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
            Operation::Map => self.map(context, caller, call.mappings(), now),
            Operation::Unmap => match self.unmap(context, caller, call.mappings(), now) {
                Ok(Some(unmapping)) if !self.is_unmapped(unmapping) => {
                    return Performed::Waits(unmapping, done(0));
                }
                result => result.map(|_| 0),
            },
        };
        if let Err(
            refusal @ Refusal::Entry { why: EntryError::Mapping(MapError::Pending(_)), .. },
        ) = result
        {
            // It can be mapped when the card has confirmed that it was unmapped.
            if let Ok(Some(unmapping)) = self.flush(context, caller) {
                return Performed::Waits(unmapping, refusal.answer(call.serial()));
            }
        }
        Performed::Answered(match result {
            Ok(value) => done(value),
            Err(refusal) => refusal.answer(call.serial()),
        })
    }
}
