//! The contract between the datapath and the ports of its switch.
//!
//! A port is one or more queues. Each queue has two sides: an [`Ingress`] takes frames from the
//! port into the switch, an [`Egress`] takes frames from the switch out of the port. A port may
//! also have [`Task`]s: other work, such as a control ring, done in small steps between the
//! frames.
//!
//! ```text
//!            ┌───────────────── one worker ─────────────────┐
//!  port A    │  receive ──► window ──► switch ──► deliver ───┼──►  port B
//!  Ingress ──┼──►  ▲          │ with_body          │         │     Egress
//!            │     └── finish ◄── outcomes ◄────────┘  reap   │
//!            └───────────────────────────────────────────────┘
//! ```
//!
//! # The life of a frame
//! 1. [`Ingress::receive`] takes frames into the queue's [`Window`]. It copies each frame's first
//!    bytes once, checks that copy, and leaves the body where the sender put it.
//! 2. The switch decides from the ingress port and the private header where each frame goes.
//!    Frames for the same egress queue form one batch.
//! 3. [`Ingress::with_body`] lends the memory that the bodies lie in, for the time of the batch.
//!    [`Egress::deliver`] fetches the bodies from there and sets the outcome of each frame.
//! 4. [`Ingress::finish`] gets the outcomes. It sends a response for every frame with a final
//!    outcome and keeps the others in the window: they wait for room, or a device still reads them.
//!
//! Every call but the constructors is made once per batch, through one dynamic call. None is made
//! per frame.
//!
//! # What a port must not do
//! - Block. Workers carry the frames of many ports.
//! - Panic on data that the other side of the port wrote. A port that cannot continue returns
//!   [`Broken`]; the datapath drops it and reports the reason to the operator. Other ports are not
//!   affected.
//! - Read memory that another domain can write twice.
//!
//! # Wrappers
//! A wrapper has the same traits around another port: it sees what goes through and may refuse it.
//! It implements [`IngressWrapper`] or [`EgressWrapper`], with only what it changes. Wrappers compose
//! in any order, and a port without one pays nothing.
//!
//! # Frames in their receiver's buffers
//! A device with a queue for each receiver can put a frame where its receiver wants it, so that nobody
//! copies it. The ingress queue borrows buffers from the receiver's egress queue
//! ([`Lender`], [`Egress::lend`]), lets the device fill them, and says in the frame where it lies
//! ([`Frame::lent`]). From then on the frame is one like any other: it passes the switch and all
//! wrappers. An egress queue that finds its own buffers in [`Egress::deliver`] hands them over.
//!
//! # How to write a port
//! This one echoes: what is sent out of it comes back in, with source and destination swapped.
//! `examples/two_ports.rs` is a whole program.
//!
//! ```
//! use std::collections::VecDeque;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use port::{
//!     Armed, Body, Broken, Budget, Doorbell, Egress, Event, Ingress, Offer, Outcome, Outcomes,
//!     Received, Window, linearise,
//! };
//! use shm::Region;
//!
//! /// Frames on their way from the egress side to the ingress side.
//! #[derive(Clone)]
//! struct Echo {
//!     queue: Arc<Mutex<VecDeque<Vec<u8>>>>,
//!     doorbell: Arc<Doorbell>,
//! }
//!
//! struct EchoIngress {
//!     echo: Echo,
//!     window: Window,
//!     /// Frames of this port have no body: they fit into the private header.
//!     no_body: Arc<[Region]>,
//! }
//!
//! impl Ingress for EchoIngress {
//!     fn event(&self) -> Arc<dyn Event> {
//!         self.echo.doorbell.clone()
//!     }
//!
//!     fn window(&self) -> &Window {
//!         &self.window
//!     }
//!
//!     fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
//!         while !budget.is_spent() && !self.window.is_full() {
//!             let Some(bytes) = self.echo.queue.lock().unwrap().pop_front() else { break };
//!             let Some((_, frame)) = self.window.push() else { break };
//!             budget.charge(1, bytes.len());
//!             match frame.set_header(&bytes) {
//!                 Ok(()) => received.fresh += 1,
//!                 Err(_) => {
//!                     self.window.undo_push();
//!                     received.malformed += 1;
//!                 }
//!             }
//!         }
//!         Ok(())
//!     }
//!
//!     fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
//!         work(Body::Regions(&self.no_body));
//!     }
//!
//!     fn finish(&mut self, outcomes: &Outcomes) {
//!         self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
//!     }
//!
//!     fn arm(&mut self) -> Result<Armed, Broken> {
//!         // With a full window there is no work until a frame in hand is done with.
//!         let waits = self.window.is_full() || self.echo.queue.lock().unwrap().is_empty();
//!         Ok(if waits { Armed::Asleep } else { Armed::Ready })
//!     }
//! }
//!
//! impl Egress for Echo {
//!     fn deliver(
//!         &mut self,
//!         body: Body<'_>,
//!         offers: &mut [Offer<'_>],
//!         _now: Duration,
//!     ) -> Result<(), Broken> {
//!         for offer in offers {
//!             let mut bytes = vec![0; offer.frame.len as usize];
//!             offer.outcome = match linearise(offer.frame, body, &mut bytes) {
//!                 Ok(_) => Outcome::Delivered,
//!                 Err(fault) => fault,
//!             };
//!             let (destination, rest) = bytes.split_at_mut(6);
//!             destination.swap_with_slice(&mut rest[..6]);
//!             self.queue.lock().unwrap().push_back(bytes);
//!         }
//!         self.doorbell.ring();
//!         Ok(())
//!     }
//! }
//! # fn main() {}
//! ```

#![forbid(unsafe_code)]

mod budget;
mod event;
mod metric;
mod steering;
mod supply;
mod wrapper;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use offload::Features;
use shm::Region;

pub use budget::Budget;
pub use event::Coalescing;
pub use event::{Doorbell, Event};
pub use frame::{
    ALL_SEGMENTS, Allocate, Body, BodyHold, Bounce, DropReason, FRAGMENTS_MAX, FRAME_MAX, Finisher,
    FlowHash, Fragment, Frame, Gather, HEADER_MAX, HEADER_ROOM, HashInput, KeptFrame, LENT_MAX,
    Lent, Linear, Memory, Offer, Outcome, Outcomes, Place, ReceiveBuffers, Run, SEGMENTS_MAX,
    ScatterList, Segments, Steering, TAIL_MAX, Ticket, WINDOW, Window, linearise, queue_of,
};
pub use metric::{Metric, whole};
pub use steering::{SteeringCell, SteeringGuard};
pub use supply::BufferSupply;
pub use wrapper::{EgressWrapper, IngressWrapper};

/// A queue that cannot be used any more. The text is the reason, for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

impl Broken {
    /// A queue that broke for this reason.
    #[expect(clippy::needless_pass_by_value, reason = "an error, as `map_err` passes it")]
    pub fn new(reason: impl ToString) -> Self {
        Self(reason.to_string())
    }
}

/// What [`Ingress::receive`] took. The datapath hands in an empty one.
#[derive(Debug, Default)]
pub struct Received {
    /// How many frames are new in the window. They are the last in its order.
    pub fresh: usize,
    /// How many packets were malformed and did not become frames.
    pub malformed: u64,
    /// How many packets were requests to the port itself, not frames.
    pub requests: u64,
    /// How many unsegmented frames claimed a complete checksum, and got a blank one.
    pub gso_checksum_fixups: u64,
    /// The new frames that must be dropped, by slot of the window, and why. Wrappers add to it;
    /// the datapath counts them and hands their outcome to [`Ingress::finish`].
    pub refused: Vec<(u8, DropReason)>,
}

impl Received {
    /// Empties it for the next call, and keeps its allocations.
    pub fn clear(&mut self) {
        self.fresh = 0;
        self.malformed = 0;
        self.requests = 0;
        self.gso_checksum_fixups = 0;
        self.refused.clear();
    }
}

/// How a queue or a task waits for its next work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// It does not wait: there is work.
    Ready,
    /// Its [event](Ingress::event) announces the next work.
    Asleep,
    /// As [`Asleep`](Self::Asleep), and it has another turn some milliseconds after this instant at the latest. No timer is set for it, because
    /// on Xen a timer costs a hypercall for each sleep.
    AsleepPast(Instant),
    /// There is work, but not before this instant. Its event may come earlier.
    Until(Instant),
}

/// The side of a queue from which frames come into the switch. One worker owns it.
///
/// The datapath calls `receive`, then `with_body` if there are frames to deliver, then `finish`.
/// When `receive` has taken nothing for a while, it calls `arm`.
pub trait Ingress: Any + Send {
    /// What announces new frames after [`arm`](Self::arm) has returned [`Armed::Asleep`]. Called
    /// once, before any other method.
    fn event(&self) -> Arc<dyn Event>;

    /// Whether a full window slows the sender down. If not, as on a wire, half of the window is kept
    /// free of frames that wait for room: it is needed for what comes next. Called once; a wrapper passes it on.
    fn has_back_pressure(&self) -> bool {
        true
    }

    /// The frames in hand.
    fn window(&self) -> &Window;

    /// Whether a turn would have work: new frames, or frames in hand. A polling worker asks this between two turns. May return true
    /// spuriously; the default does. If it returns false although there is work, the work waits for the worker's next turn, some polls
    /// later.
    fn has_work(&mut self) -> bool {
        true
    }

    /// Takes new frames into the window, until there are none, the window is full or the budget is
    /// spent. It never waits: no new frame is not an error.
    ///
    /// Every unit of work is charged to the budget, also for malformed packets: they cost the same
    /// time, and a sender could otherwise keep a worker busy with nothing else.
    ///
    /// # Errors
    /// The queue cannot be used any more. Its frames are dropped with it.
    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken>;

    /// Whether the last [`receive`](Self::receive) found no more frames, or leaves those to an event that [is of work](Event::is_of_work). A worker that does not poll then [arms](Self::arm) the queue at once,
    /// which polls for frames that came meanwhile: another poll would be a system call, or code that is not in the cache. The default is false.
    fn is_drained(&self) -> bool {
        false
    }

    /// Calls `work` once with the memory that the bodies of the frames in hand lie in. Pages
    /// that are mapped for the batch stay mapped until `work` returns.
    fn with_body(&self, work: &mut dyn FnMut(Body<'_>));

    /// Takes the outcomes of the frames, by slot. Frames whose outcome [is
    /// final](Outcome::is_final) leave the window, and the sender gets their responses and those
    /// of malformed packets. It is notified at most once.
    ///
    /// Called after every `receive` that took anything, even where no frame is in hand.
    fn finish(&mut self, outcomes: &Outcomes);

    /// Prepares to wait. After [`Armed::Asleep`] the event comes with the next frame, even if it
    /// arrived during this call. A queue with a full window is asleep: it is asked again when a
    /// frame in hand is done with.
    ///
    /// # Errors
    /// The queue cannot be used any more.
    fn arm(&mut self) -> Result<Armed, Broken>;
}

/// A delivery under way, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Its number, from [`Outcome::InFlight`].
    pub ticket: Ticket,
    /// How it ended; none while the device reads.
    pub outcome: Option<Outcome>,
}

/// What an egress queue takes of frames that are merged from TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// What it takes as it is.
    pub features: Features,
    /// Bytes of the longest frame that it has room for.
    pub longest: usize,
}

/// The side of a queue by which frames leave the switch. Any worker may use it, one at a time.
pub trait Egress: Any + Send {
    /// Delivers frames in order and sets the outcome of each.
    ///
    /// When it has no room for a frame, it leaves this frame and all that follow, except frames that it has merged with an earlier one,
    /// [`Waiting`](Outcome::Waiting); the datapath offers them again after the
    /// [room event](Self::room_event), or after a while. If it is
    /// stalled, it drops the frame instead.
    ///
    /// Others wait for its lock and for the worker until it returns. So an egress for which a frame may
    /// be much work, as many segments with a system call each, does a bounded part of it: it sets
    /// [`Outcome::Partial`] and leaves all frames that follow [`Waiting`](Outcome::Waiting). The next
    /// call begins with that frame and says in [`Offer::sent`] how far it is. The first frame of a call
    /// is finished, or gets at least one segment further. An egress that never sets it need not look at
    /// [`Offer::sent`].
    ///
    /// An egress whose device reads a body after this call sets [`Outcome::InFlight`], and keeps
    /// the memory with a [`BodyHold`] until the device is done. It copies the header during the
    /// call.
    ///
    /// `now` is a clock that never goes back, the same for all workers.
    ///
    /// # Errors
    /// The port cannot be used any more: the datapath closes it.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken>;

    /// Sets the outcomes of the deliveries that have ended. The datapath passes each delivery until
    /// it has an outcome.
    fn reap(&mut self, deliveries: &mut [InFlight]) {
        for delivery in deliveries {
            // An egress without deliveries in flight gives out no tickets.
            delivery.outcome.get_or_insert(Outcome::Dropped(DropReason::PortGone));
        }
    }

    /// Whether it may hold back notifications, so that [`flush`](Self::flush) must be called. Asked once, and again after a
    /// [`Rewrap`].
    fn coalesces(&self) -> bool {
        false
    }

    /// Sets how long it may hold back notifications. One that is held back already is sent when it was due.
    fn set_coalescing(&mut self, coalescing: Option<Coalescing>) {
        let _ = coalescing;
    }

    /// Sends a notification that is held back if it is due at `now`, or if the worker `is_idle`: it has no more frames to
    /// deliver at once. Returns when it is due if it is still held back.
    ///
    /// Called after every `deliver`, and then until it returns none, at the returned time and when the worker is idle.
    fn flush(&mut self, now: Duration, is_idle: bool) -> Option<Duration> {
        let _ = (now, is_idle);
        None
    }

    /// These deliveries are not [reaped](Self::reap) any more, because their sender is gone. Their
    /// holds last until the device is done with them.
    fn cancel(&mut self, tickets: &[Ticket]) {
        let _ = tickets;
    }

    /// What announces room after a frame was left waiting, and the end of deliveries in flight.
    /// None if neither can happen. Called once.
    fn room_event(&self) -> Option<Arc<dyn Event>> {
        None
    }

    /// Whether the other side is stalled: frames for it are dropped.
    fn is_stalled(&self) -> bool {
        false
    }

    /// Which frames it takes that are merged from TCP segments ([`Frame::append`]); none by default. Called by a wrapper that merges. Such a
    /// frame is delivered in one call: it is never [in flight](Outcome::InFlight).
    fn merging(&self) -> Option<Merging> {
        None
    }

    /// Where the port publishes how its flows are spread over its queues, the same for all queues; none if
    /// the datapath decides. Called once, on the first queue.
    fn steering(&self) -> Option<Arc<SteeringCell>> {
        None
    }

    /// The memory in which buffers lie that this queue lends; none if it lends none.
    fn lent_memory(&self) -> Option<LentMemory> {
        None
    }

    /// Lends buffers that the other side posted, and adds them to `lent`: as many as are wanted, or
    /// fewer. Each comes back with a frame in it that this queue [delivers](Self::deliver), or by
    /// [`take_back`](Self::take_back).
    ///
    /// # Errors
    /// The port cannot be used any more.
    fn lend(&mut self, wanted: Wanted, lent: &mut Vec<LentBuffer>) -> Result<(), Broken> {
        let _ = (wanted, lent);
        Ok(())
    }

    /// Takes back lent buffers that hold no frame. Tokens of buffers that came back with a frame are
    /// ignored.
    fn take_back(&mut self, tokens: &[u32]) {
        let _ = tokens;
    }
}

/// Work of a port other than frames, done between them in small steps. One worker owns it.
pub trait Task: Send {
    /// What announces work. Called once.
    fn event(&self) -> Arc<dyn Event>;

    /// Does a step, which takes about as long as a batch of frames. Returns whether there was anything
    /// to do.
    ///
    /// # Errors
    /// The port cannot be used any more.
    fn step(&mut self) -> Result<bool, Broken>;

    /// Prepares to wait, as [`Ingress::arm`] does.
    ///
    /// # Errors
    /// The port cannot be used any more.
    fn arm(&mut self) -> Result<Armed, Broken>;
}

/// Puts wrappers around the queues of a port that is in use, or takes them off. One that is not there costs nothing.
pub trait Rewrap: Send + Sync {
    /// Returns this side of a queue with the wrapper, or without it.
    fn ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress>;

    /// The same for the other side.
    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress>;
}

/// A wrapper, as its settings want it: around one side of a queue, both, or neither. The defaults leave a side as it is.
pub trait Layer: Send + Sync {
    /// Takes it off a side whose outermost wrapper it is. A wrapper finds itself again by its type: `strip` of [`dyn Ingress`](Ingress).
    fn strip_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        ingress
    }

    /// The same for the other side.
    fn strip_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress
    }

    /// Puts it around a side that does not have it.
    fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        ingress
    }

    /// The same for the other side.
    fn wrap_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress
    }
}

/// The layers of a port's queues, outermost first. Those that are around a queue already are taken off before they are put around it.
pub struct Layers(pub Vec<Box<dyn Layer>>);

impl Rewrap for Layers {
    fn ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let bare = self.0.iter().fold(ingress, |side, layer| layer.strip_ingress(side));
        self.0.iter().rev().fold(bare, |side, layer| layer.wrap_ingress(side))
    }

    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        let bare = self.0.iter().fold(egress, |side, layer| layer.strip_egress(side));
        self.0.iter().rev().fold(bare, |side, layer| layer.wrap_egress(side))
    }
}

/// One queue of a port: both sides of it.
pub struct Queue {
    /// From the port into the switch.
    pub ingress: Box<dyn Ingress>,
    /// From the switch out of the port.
    pub egress: Box<dyn Egress>,
}

/// Lends the receive buffers of an egress queue, from any thread.
pub trait Lender: Send + Sync {
    /// See [`Egress::lend`]. A port that is gone lends nothing.
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>);

    /// See [`Egress::take_back`].
    fn take_back(&self, tokens: &[u32]);
}

/// Where lent buffers lie.
#[derive(Debug)]
pub struct LentMemory {
    /// The number of the egress queue, for [`Lent::lender`](crate::Lent).
    pub lender: u64,
    /// The memory. The other side writes to it at any time.
    pub region: Region,
    /// What the other side can take of a frame. What needs more should not be put there.
    pub features: Features,
}

/// What an ingress queue wants to borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many buffers.
    pub buffers: usize,
    /// Whether the lender must keep the pages in place. Not needed where the device has references
    /// to them.
    pub held: bool,
}

/// A lent buffer: a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentBuffer {
    /// Its number, which is not used again.
    pub token: u32,
    /// Its first byte in the [memory](LentMemory).
    pub offset: u64,
}
