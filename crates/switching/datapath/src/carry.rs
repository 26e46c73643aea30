//! From one ingress queue to wherever its frames go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use port::{Broken, Budget, DropReason, Ingress, Outcome, Received, Rewrap, WINDOW};

use crate::carrier::{Carrier, Pass};
use crate::deliver::{Batch, Hand, TURN};
use crate::head_of_line::Waits;
use crate::held::Held;
use crate::in_flight::Deliveries;
use crate::parts::Parts;
use crate::port::Port;
use crate::probes;
use crate::residence::Residence;
use crate::route::Routes;

/// What a pass over a queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Frames were taken or finished. The new ones, and their bytes.
    Worked { frames: usize, bytes: u64 },
    /// Nothing to do.
    Dry,
    /// Frames wait for room or for a device, and none was done with.
    Blocked,
}

/// An ingress queue that a worker owns.
pub(crate) struct IngressQueue {
    ingress: Box<dyn Ingress>,
    /// Its number among its port's queues; of none of them if it was added.
    number: usize,
    received: Received,
    deliveries: Deliveries,
    waits: Box<Waits>,
    parts: Box<Parts>,
    residence: Box<Residence>,
    /// Whether its turn comes before its event was taken: then it takes one frame.
    pub(crate) is_predicted: bool,
}

impl IngressQueue {
    pub(crate) fn new(number: usize, ingress: Box<dyn Ingress>) -> Self {
        let waits = Box::new(Waits::new(ingress.has_back_pressure()));
        Self {
            ingress,
            number,
            received: Received::default(),
            deliveries: Deliveries::default(),
            waits,
            parts: Box::default(),
            residence: Box::default(),
            is_predicted: false,
        }
    }

    pub(crate) fn ingress(&mut self) -> &mut dyn Ingress {
        &mut *self.ingress
    }

    /// Whether a turn may have work.
    #[inline]
    pub(crate) fn has_work(&mut self) -> bool {
        self.ingress.has_work()
    }

    /// Whether there is nothing to do before its next event: all frames were taken and are done with.
    pub(crate) fn is_drained(&self) -> bool {
        self.ingress.is_drained() && self.is_empty()
    }

    /// Whether no frame is in hand.
    pub(crate) fn is_empty(&self) -> bool {
        self.ingress.window().is_empty()
    }

    /// When it must have its next turn while frames wait, even if no room is announced.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.waits.due()
    }

    /// Records the last turn's duration and end. Calls `each` with the time of each batch that ended in it.
    #[inline]
    pub(crate) fn turn_ended(&mut self, took: Duration, end: Instant, each: impl FnMut(Duration)) {
        self.residence.turn_ended(took, end, each);
    }

    /// Wraps the queue anew. Frames in hand stay in hand.
    pub(crate) fn rewrap(self, rewrap: &dyn Rewrap) -> Self {
        Self { ingress: rewrap.ingress(self.ingress), ..self }
    }
}

impl Progress {
    /// What it came to together with what was done before.
    #[cold]
    pub(crate) fn after(self, before: Self) -> Self {
        match (before, self) {
            (Self::Worked { frames, bytes }, Self::Worked { frames: more, bytes: of_more }) => {
                Self::Worked { frames: frames + more, bytes: bytes + of_more }
            }
            (worked @ Self::Worked { .. }, _) | (_, worked @ Self::Worked { .. }) => worked,
            (Self::Blocked, _) | (_, Self::Blocked) => Self::Blocked,
            (Self::Dry, Self::Dry) => Self::Dry,
        }
    }
}

impl Carrier {
    /// Takes what is new on a queue and delivers what can be delivered, in a turn that begins `now`.
    pub(crate) fn carry(
        &self,
        port: &Arc<Port>,
        queue: &mut IngressQueue,
        held: &mut Held,
        now: Instant,
    ) -> Result<Progress, Broken> {
        let all = if queue.is_predicted { Budget::CALL } else { Budget::TURN };
        let number = queue.number;
        let IngressQueue { ingress, received, deliveries, waits, parts, residence, .. } = queue;
        received.clear();
        waits.begin(self.now);
        let mut budget = all;
        ingress.receive(&mut budget, received)?;
        let bytes = all.bytes() - budget.bytes();
        let malformed = received.malformed;
        if malformed > 0 {
            port.add_drops(DropReason::Malformed, malformed);
        }
        if received.gso_checksum_fixups > 0 {
            port.add_gso_checksum_fixups(received.gso_checksum_fixups);
        }
        let window = ingress.window();
        let before = window.len();
        let others = malformed + received.requests;
        if before == 0 && others == 0 {
            return Ok(Progress::Dry);
        }
        let frames = received.fresh;
        if frames > 0 {
            if let Some(batches) = port.batches_of(self.worker) {
                batches.taken(frames);
            }
            probes::ingress(port.name(), frames, bytes);
        }
        let mut outcomes = [Outcome::Waiting; WINDOW];
        let mut decided = deliveries.reap(window, &mut outcomes, self.worker);
        for (slot, reason) in &received.refused {
            port.add_drops(*reason, 1);
            outcomes[usize::from(*slot)] = Outcome::Dropped(*reason);
            decided |= 1 << slot;
        }
        let member = self.ports.member(port.id()).map(|(_, membership)| membership);
        let mut routes = Routes::new();
        let pass = Pass { port, window, fresh: frames, decided };
        self.route_all(&pass, &mut routes);
        if let Some(flows) = port.flow_queues() {
            for slot in &window.order()[window.len() - frames..] {
                flows.learn(window.frame(*slot), number, self.now);
            }
        }
        let mut cut = false;
        ingress.with_body(&mut |body| {
            let batch = Batch { pass: &pass, body, from_member: member };
            let end = now + TURN;
            let outcomes = &mut outcomes;
            let mut hand = Hand { deliveries, waits, parts, held, outcomes, end, cut: false };
            self.deliver_all(&batch, &routes, &mut hand);
            cut = hand.cut;
        });
        ingress.finish(&outcomes);
        waits.end(ingress.window());
        parts.end(ingress.window());
        residence.turn(ingress.window(), frames > 0, now);
        // A turn that was cut short may leave unblocked frames.
        let worked = cut || frames > 0 || others > 0 || ingress.window().len() < before;
        Ok(if worked { Progress::Worked { frames, bytes } } else { Progress::Blocked })
    }
}
