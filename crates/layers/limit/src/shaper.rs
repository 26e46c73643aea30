//! Frames from the port: those beyond the limit stay in the sender's ring.

use std::sync::Arc;
use std::time::{Duration, Instant};

use port::{Armed, Broken, Budget, Ingress, IngressWrapper, Received};

use crate::meter::{Meter, QueueId, Tokens};

/// The longest time until a queue tries again: a rate of zero never has tokens.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Shapes what comes from a queue. All queues of a port share its meter.
#[must_use]
pub fn shape(inner: Box<dyn Ingress>, meter: &Arc<Meter>) -> Box<dyn Ingress> {
    if meter.is_unlimited() {
        return inner;
    }
    Box::new(Shaper::new(inner, meter, Instant::now))
}

/// Takes off a limit with a clock like this one. Generic because the clock's type cannot be named.
pub(crate) fn unshape<C: Fn() -> Instant + Send + 'static>(
    ingress: Box<dyn Ingress>,
    _: C,
) -> Box<dyn Ingress> {
    ingress.strip(|Shaper::<C> { inner, .. }| inner)
}

/// A queue that takes no more than its meter allows.
pub(crate) struct Shaper<C> {
    inner: Box<dyn Ingress>,
    member: Member,
    clock: C,
}

/// A queue's place among those that share a meter.
struct Member {
    meter: Arc<Meter>,
    id: QueueId,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.meter.leave(self.id);
    }
}

impl<C: Fn() -> Instant> Shaper<C> {
    pub fn new(inner: Box<dyn Ingress>, meter: &Arc<Meter>, clock: C) -> Self {
        let member = Member { meter: Arc::clone(meter), id: meter.join() };
        Self { inner, member, clock }
    }

    /// The tokens that a turn used for its `fresh` frames, the last in the window, and its `malformed` packets.
    fn used(&self, fresh: usize, malformed: u64) -> Tokens {
        let window = self.inner.window();
        let order = window.order();
        let mut used = Tokens { bytes: 0, packets: malformed };
        for slot in &order[order.len().saturating_sub(fresh)..] {
            used += Tokens::of(window.frame(*slot));
        }
        used
    }
}

impl<C: Fn() -> Instant + Send + 'static> IngressWrapper for Shaper<C> {
    port::wraps!(inner: Ingress);

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        let now = self.member.meter.time((self.clock)());
        let Some(reserved) = self.member.meter.reserve(self.member.id, now) else { return Ok(()) };
        let (fresh, malformed) = (received.fresh, received.malformed);
        let result = budget
            .within(reserved.bytes, reserved.packets, |part| self.inner.receive(part, received));
        let used = self.used(received.fresh - fresh, received.malformed - malformed);
        self.member.meter.correct(reserved, used);
        result
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        let armed = self.inner.arm()?;
        if matches!(armed, Armed::Asleep | Armed::AsleepPast(_)) {
            self.member.meter.leave(self.member.id);
            return Ok(armed);
        }
        let now = (self.clock)();
        let Member { meter, id } = &self.member;
        let wait = meter.time_until_turn(*id, meter.time(now));
        if wait.is_zero() {
            return Ok(armed);
        }
        let turn = now + wait.min(LONGEST_WAIT);
        Ok(Armed::Until(match armed {
            Armed::Until(instant) => instant.max(turn),
            Armed::Ready | Armed::Asleep | Armed::AsleepPast(_) => turn,
        }))
    }
}
