//! The card: its parts, the hypervisor's commands, and the steps that its process makes.

use std::time::Duration;

use cdna::layout::{Announcement, features};
use cdna::message::Assignment;
use cdna::{ContextId, Report, Statistics, Status};

use crate::bus::{Bus, ContextPages, Wire};
use crate::contexts::Contexts;
use crate::interrupts::Interrupts;
use crate::receive::Receiver;
use crate::transmit::{Blocked, Transmitter};

/// How long the card waits before it checks whether the ring of interrupt vectors has room again.
const VECTORS_RETRY: u64 = 50_000;

/// What a card is like.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Contexts, with the management context: at most [`cdna::context::CONTEXTS_MAX`].
    pub contexts: usize,
    /// The wire's rate in Mbit/s in each direction; 0 is no limit.
    pub rate_mbps: u32,
    /// Whether it segments TCP.
    pub tso: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { contexts: cdna::context::CONTEXTS_DEFAULT, rate_mbps: 0, tso: false }
    }
}

/// When the next step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: there is more to do.
    Now,
    /// At this time, or earlier when a doorbell rings or the wire has a frame.
    At(Duration),
    /// When a doorbell rings or the wire has a frame.
    Event,
}

/// What a step did, and what its caller must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Frames that were taken from contexts and from the wire.
    pub frames: u32,
    /// The hypervisor must be interrupted.
    pub interrupts: bool,
    /// The wire is busy: the next step is also due when it can send again.
    pub is_wire_busy: bool,
    /// When the next step is.
    pub next: Next,
}

/// What a card counts beside the [`Statistics`] of its contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that went out on the wire.
    pub wire_tx: u64,
    /// Frames that came from the wire.
    pub wire_rx: u64,
    /// Frames from the wire that no context got.
    pub unclaimed: u64,
}

/// A card with a protected context for every guest.
pub struct Card<B: Bus, W> {
    config: Config,
    contexts: Contexts<B>,
    wire: W,
    transmitter: Transmitter,
    receiver: Receiver,
    interrupts: Interrupts<B::Vectors>,
    /// The sleep words are set.
    is_asleep: bool,
}

impl<B: Bus, W: Wire> Card<B, W> {
    /// A card without assigned contexts.
    pub fn new(config: Config, bus: B, wire: W, vectors: B::Vectors) -> Self {
        let count = config.contexts.clamp(1, cdna::context::CONTEXTS_MAX);
        Self {
            config,
            contexts: Contexts::new(bus, count),
            wire,
            transmitter: Transmitter::new(config.rate_mbps, config.tso),
            receiver: Receiver::new(config.rate_mbps),
            interrupts: Interrupts::new(vectors),
            is_asleep: false,
        }
    }

    /// What the card announces of itself.
    pub fn announcement(&self) -> Announcement {
        let tso = if self.config.tso { features::TSO } else { 0 };
        let features = features::CHECKSUM | features::SCATTER_GATHER | tso;
        // At most CONTEXTS_MAX.
        Announcement::new(u32::try_from(self.contexts.count()).unwrap_or(u32::MAX), features)
    }

    /// Serves a context from now on. One that is assigned already is taken from its owner. The next step is due at once: the
    /// guest may have written mailboxes before.
    ///
    /// # Errors
    /// The card has no such context. The pages are given back.
    pub fn assign(&mut self, assignment: Assignment, pages: B::Pages) -> Result<(), B::Pages> {
        if assignment.context.index() >= self.contexts.count() {
            return Err(pages);
        }
        self.release(assignment.context);
        pages.set_asleep(self.is_asleep);
        self.contexts.assign(assignment, pages);
        Ok(())
    }

    /// Takes a context from its owner, at any moment: frames that were not sent are dropped, and no buffer is written any
    /// more. When this returns, the card has no access to the context's memory.
    pub fn revoke(&mut self, context: ContextId, generation: u32) -> Report {
        self.release(context);
        Report::Revoked { context, generation }
    }

    fn release(&mut self, context: ContextId) {
        self.transmitter.release(context);
        self.interrupts.remove(context);
        self.contexts.release(context, Status::Revoked);
        self.contexts.forget(context);
    }

    /// What a context's counters say since it was assigned. They outlive a fault, but not a revocation.
    pub fn statistics(&self, context: ContextId) -> Statistics {
        self.contexts.statistics(context)
    }

    /// What the card counts beside that.
    pub fn counters(&self) -> Counters {
        Counters {
            wire_tx: self.transmitter.wire_frames,
            wire_rx: self.receiver.wire_frames,
            unclaimed: self.receiver.unclaimed,
        }
    }

    /// The faults since the last call, as reports for the hypervisor.
    pub fn faults(&mut self) -> impl Iterator<Item = Report> {
        let faults = self.contexts.faults.drain(..);
        faults.map(|(generation, fault)| Report::Fault { generation, fault })
    }

    /// The bus.
    pub fn bus(&mut self) -> &mut B {
        &mut self.contexts.bus
    }

    /// The wire.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Handles events, sends, receives, publishes and interrupts, within budgets. `now` is any clock that does not go back.
    pub fn step(&mut self, now: Duration) -> Step {
        if self.is_asleep {
            self.wake();
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.contexts.bus.serve();
        let transmitter = &mut self.transmitter;
        self.contexts.handle_events(now, |context| transmitter.activate(context));
        let sent = self.transmitter.run(&mut self.contexts, &mut self.wire, now);
        let received = self.receiver.run(&mut self.contexts, &mut self.wire, now);
        let announce_at = self.contexts.write_back(now, &mut self.interrupts);
        let interrupts = self.interrupts.flush();

        let is_receiving = received.has_more && received.blocked_until.is_none();
        let is_sending = sent.blocked.is_none() && self.transmitter.has_work();
        let sending_at = match sent.blocked {
            Some(Blocked::Until(at)) => Some(at),
            Some(Blocked::Wire) | None => None,
        };
        let vectors_at = self.interrupts.is_pending().then(|| now.saturating_add(VECTORS_RETRY));
        let times = [announce_at, sending_at, received.blocked_until, vectors_at];
        let next = if is_receiving || is_sending {
            Next::Now
        } else {
            let next = times.into_iter().flatten().min();
            next.map_or(Next::Event, |at| Next::At(Duration::from_nanos(at)))
        };
        Step {
            frames: sent.frames + received.frames,
            interrupts,
            is_wire_busy: sent.blocked == Some(Blocked::Wire),
            next,
        }
    }

    /// Prepares to wait for doorbells. Returns whether the caller may wait; if not, a mailbox was written meanwhile, and
    /// the next step is due at once. The next step ends the sleep.
    ///
    /// Without the final check of the event words, a mailbox that was written between the last step and the sleep word
    /// would wait for the next doorbell, which might never ring.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.contexts.bus.fall_asleep() {
            return false;
        }
        self.is_asleep = true;
        self.contexts.pages().for_each(|pages| pages.set_asleep(true));
        if let Some(pages) = self.contexts.pages().next() {
            pages.full_barrier();
        }
        let may_sleep = !self.contexts.has_events();
        if !may_sleep {
            self.wake();
        }
        may_sleep
    }

    fn wake(&mut self) {
        self.is_asleep = false;
        self.contexts.bus.wake();
        self.contexts.pages().for_each(|pages| pages.set_asleep(false));
    }
}
