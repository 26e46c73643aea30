//! The contract between the datapath and whatever is plugged into its switch.
//!
//! A port is one or more queues. Each queue has two sides: an [`Ingress`] takes frames from the
//! port into the switch, an [`Egress`] takes frames from the switch out of the port. A port may
//! also have [`Task`]s: work that is not frames, such as a control ring, in small steps between
//! them.
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
//!    [`Egress::deliver`] fetches the bodies from there and says what became of each frame.
//! 4. [`Ingress::finish`] gets the outcomes. It answers the sender for every frame that is done
//!    with and keeps the others in the window: they wait for room, or a device still reads them.
//!
//! Every call but the constructors is made once per batch, through one dynamic call. None is made
//! per frame.
//!
//! # What a port must not do
//! - Block. Workers carry the frames of many ports.
//! - Panic on anything that the other side of the port wrote. A port that cannot go on returns
//!   [`Broken`]; the datapath drops it and tells the operator why. No other port notices.
//! - Read memory that another domain can write twice.
//!
//! # Wrappers
//! A wrapper implements the same traits around another port: it sees what goes through and may
//! refuse it. Wrappers compose in any order, and a port without one pays nothing.
//!
//! # A port of your own
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

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use budget::Budget;
pub use event::{Doorbell, Event};
pub use frame::{
    Body, BodyHold, Bounce, DropReason, FRAME_MAX, Finisher, Frame, Gather, HEADER_MAX, Memory,
    Offer, Outcome, Outcomes, PIECES_MAX, Piece, Place, SEGMENTS_MAX, ScatterList, Segments,
    Ticket, WINDOW, Window, linearise,
};

/// A queue that is of no use any more. The text tells an operator why.
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
    /// How many packets never became frames, because they cannot be sent.
    pub malformed: u64,
    /// Which of the new frames go nowhere, by slot of the window, and why. Wrappers add to it;
    /// the datapath counts them and hands their outcome to [`Ingress::finish`].
    pub refused: Vec<(u8, DropReason)>,
}

impl Received {
    /// Empties it for the next call; what it has allocated stays.
    pub fn clear(&mut self) {
        self.fresh = 0;
        self.malformed = 0;
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
    /// There is work, but not before this instant. Its event may come earlier.
    Until(Instant),
}

/// The side of a queue from which frames come into the switch. One worker owns it.
///
/// The datapath calls `receive`, then `with_body` if there are frames to deliver, then `finish`.
/// When `receive` has taken nothing for a while, it calls `arm`.
pub trait Ingress: Send {
    /// What announces new frames, once [`arm`](Self::arm) has said [`Armed::Asleep`]. Asked for
    /// once, before anything else.
    fn event(&self) -> Arc<dyn Event>;

    /// The frames in hand.
    fn window(&self) -> &Window;

    /// Takes new frames into the window, until there are none, the window is full or the budget is
    /// spent. The caller does not wait: nothing new is no error.
    ///
    /// Every unit of work is charged to the budget, work on packets that never become frames
    /// included: they cost the same, and a sender could have a worker do nothing else.
    ///
    /// # Errors
    /// The queue is of no use any more. Its frames are dropped with it.
    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken>;

    /// Calls `work` once with the memory that the bodies of the frames in hand lie in. What is
    /// mapped for the batch stays mapped until `work` returns.
    fn with_body(&self, work: &mut dyn FnMut(Body<'_>));

    /// Takes note of what became of the frames, by slot. Frames whose outcome
    /// [is final](Outcome::is_final) leave the window and are answered, those that were
    /// malformed on receipt as well. The sender is notified at most once.
    ///
    /// Called after every `receive` that took anything, even where no frame is in hand.
    fn finish(&mut self, outcomes: &Outcomes);

    /// Prepares to wait. After [`Armed::Asleep`] the event comes with the next frame, also with one
    /// that arrived while this was called. A queue with a full window is asleep: it is asked again
    /// when a frame in hand is done with.
    ///
    /// # Errors
    /// The queue is of no use any more.
    fn arm(&mut self) -> Result<Armed, Broken>;
}

/// A delivery under way, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Its number, from [`Outcome::InFlight`].
    pub ticket: Ticket,
    /// How it ended; none while it goes on.
    pub outcome: Option<Outcome>,
}

/// The side of a queue by which frames leave the switch. Any worker may use it, one at a time.
pub trait Egress: Send {
    /// Delivers frames in order and sets what became of each.
    ///
    /// When it has no room for a frame, it leaves this frame and all behind it
    /// [`Waiting`](Outcome::Waiting); the datapath offers them again after the
    /// [room event](Self::room_event), or after a while. It drops a frame instead where nothing
    /// should wait for it.
    ///
    /// A device that reads a body after this call returns says [`Outcome::InFlight`], and keeps
    /// the memory by a [`BodyHold`] until it is done. It copies the header now.
    ///
    /// `now` is a clock that never goes back, the same for all workers.
    ///
    /// # Errors
    /// The port is of no use any more: the datapath closes it.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken>;

    /// Sets the outcome of those deliveries under way that have ended. Each is asked for until it
    /// has an outcome, and then no more.
    fn reap(&mut self, deliveries: &mut [InFlight]) {
        for delivery in deliveries {
            // Without deliveries that go on, no ticket is from here.
            delivery.outcome.get_or_insert(Outcome::Dropped(DropReason::PortGone));
        }
    }

    /// Nobody asks for these deliveries any more, because their sender is gone. Their hold lasts
    /// until the device is done with them.
    fn cancel(&mut self, tickets: &[Ticket]) {
        let _ = tickets;
    }

    /// What announces room after a frame was left waiting, and the end of deliveries under way.
    /// None where neither happens. Asked for once.
    fn room_event(&self) -> Option<Arc<dyn Event>> {
        None
    }

    /// Whether the other side has taken nothing for so long that frames for it are dropped.
    fn is_stalled(&self) -> bool {
        false
    }
}

/// Work of a port that is not frames, done between them in small steps. One worker owns it.
pub trait Task: Send {
    /// What announces work. Asked for once.
    fn event(&self) -> Arc<dyn Event>;

    /// Takes a step, about as long as a batch of frames takes. Returns whether there was anything
    /// to do.
    ///
    /// # Errors
    /// The port is of no use any more.
    fn step(&mut self) -> Result<bool, Broken>;

    /// Prepares to wait, as [`Ingress::arm`] does.
    ///
    /// # Errors
    /// The port is of no use any more.
    fn arm(&mut self) -> Result<Armed, Broken>;
}

/// One queue of a port: both sides of it.
pub struct Queue {
    /// From the port into the switch.
    pub ingress: Box<dyn Ingress>,
    /// From the switch out of the port.
    pub egress: Box<dyn Egress>,
}
