//! Wrappers around a port: what they leave alone passes through.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use frame::{Body, Offer, Outcomes, Ticket, Window};

use crate::{
    Armed, Broken, Budget, Coalescing, Egress, Event, InFlight, Ingress, LentBuffer, LentMemory,
    Merging, Received, SteeringCell, Wanted,
};

/// A wrapper around the ingress side of a queue. It is an [`Ingress`] itself: the methods here are
/// those that a wrapper may change, and all others go to the inner side.
pub trait IngressWrapper: Any + Send {
    /// The wrapped side.
    fn inner(&self) -> &dyn Ingress;

    /// The same, to change it.
    fn inner_mut(&mut self) -> &mut dyn Ingress;

    /// See [`Ingress::has_work`]. A wrapper with frames of its own has work where they are.
    fn has_work(&mut self) -> bool {
        self.inner_mut().has_work()
    }

    /// See [`Ingress::receive`].
    ///
    /// # Errors
    /// The queue cannot be used any more.
    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.inner_mut().receive(budget, received)
    }

    /// See [`Ingress::finish`].
    fn finish(&mut self, outcomes: &Outcomes) {
        self.inner_mut().finish(outcomes);
    }

    /// See [`Ingress::arm`].
    ///
    /// # Errors
    /// The queue cannot be used any more.
    fn arm(&mut self) -> Result<Armed, Broken> {
        self.inner_mut().arm()
    }
}

impl<W: IngressWrapper> Ingress for W {
    fn event(&self) -> Arc<dyn Event> {
        self.inner().event()
    }

    fn has_back_pressure(&self) -> bool {
        self.inner().has_back_pressure()
    }

    fn window(&self) -> &Window {
        self.inner().window()
    }

    fn has_work(&mut self) -> bool {
        IngressWrapper::has_work(self)
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        IngressWrapper::receive(self, budget, received)
    }

    fn is_drained(&self) -> bool {
        self.inner().is_drained()
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.inner().with_body(work);
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        IngressWrapper::finish(self, outcomes);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        IngressWrapper::arm(self)
    }
}

/// A wrapper around the egress side of a queue. It is an [`Egress`] itself: all methods but
/// `deliver` go to the inner side.
pub trait EgressWrapper: Any + Send {
    /// The wrapped side.
    fn inner(&self) -> &dyn Egress;

    /// The same, to change it.
    fn inner_mut(&mut self) -> &mut dyn Egress;

    /// See [`Egress::deliver`].
    ///
    /// # Errors
    /// The port cannot be used any more.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken>;
}

impl<W: EgressWrapper> Egress for W {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        EgressWrapper::deliver(self, body, offers, now)
    }

    fn reap(&mut self, deliveries: &mut [InFlight]) {
        self.inner_mut().reap(deliveries);
    }

    fn coalesces(&self) -> bool {
        self.inner().coalesces()
    }

    fn set_coalescing(&mut self, coalescing: Option<Coalescing>) {
        self.inner_mut().set_coalescing(coalescing);
    }

    fn flush(&mut self, now: Duration, is_idle: bool) -> Option<Duration> {
        self.inner_mut().flush(now, is_idle)
    }

    fn cancel(&mut self, tickets: &[Ticket]) {
        self.inner_mut().cancel(tickets);
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        self.inner().room_event()
    }

    fn is_stalled(&self) -> bool {
        self.inner().is_stalled()
    }

    fn merging(&self) -> Option<Merging> {
        self.inner().merging()
    }

    fn steering(&self) -> Option<Arc<SteeringCell>> {
        self.inner().steering()
    }

    fn lent_memory(&self) -> Option<LentMemory> {
        self.inner().lent_memory()
    }

    fn lend(&mut self, wanted: Wanted, lent: &mut Vec<LentBuffer>) -> Result<(), Broken> {
        self.inner_mut().lend(wanted, lent)
    }

    fn take_back(&mut self, tokens: &[u32]) {
        self.inner_mut().take_back(tokens);
    }
}

/// The methods by which a wrapper leads to the side that it is around: its field of this name, a box.
#[macro_export]
macro_rules! wraps {
    ($field:tt: $side:ident) => {
        fn inner(&self) -> &dyn $crate::$side {
            &*self.$field
        }

        fn inner_mut(&mut self) -> &mut dyn $crate::$side {
            &mut *self.$field
        }
    };
}

/// Both sides are stripped the same way.
macro_rules! strip {
    ($side:ident) => {
        impl dyn $side {
            /// Takes a wrapper off: `inner` returns the wrapped side. Returns the side as it is if its outermost wrapper is
            /// of another type.
            #[must_use]
            pub fn strip<W: $side>(
                self: Box<Self>,
                inner: impl FnOnce(W) -> Box<dyn $side>,
            ) -> Box<dyn $side> {
                if !(&*self as &dyn Any).is::<W>() {
                    return self;
                }
                let any: Box<dyn Any> = self;
                inner(*any.downcast().expect("its type was asked for"))
            }
        }
    };
}

strip!(Ingress);
strip!(Egress);
