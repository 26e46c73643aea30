//! A wrapper around a port that an operator has set down: every frame from it and to it is dropped and counted.
//!
//! Frames from the port are taken out of its rings, as from a cable that is not plugged in: left there, they would be sent late, when
//! the port is up again.

#![forbid(unsafe_code)]

use std::time::Duration;

use port::{
    Body, Broken, Budget, DropReason, Egress, EgressWrapper, Ingress, IngressWrapper, Layer, Offer,
    Outcome, Received,
};

/// One side of a queue that lets nothing pass.
struct Gate<S: ?Sized>(Box<S>);

/// The gate of a port.
pub struct GateLayer {
    /// Whether frames pass.
    pub is_open: bool,
}

impl Layer for GateLayer {
    fn strip_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        ingress.strip(|Gate(inner)| inner)
    }

    fn strip_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress.strip(|Gate(inner)| inner)
    }

    fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        if self.is_open { ingress } else { Box::new(Gate(ingress)) }
    }

    fn wrap_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        if self.is_open { egress } else { Box::new(Gate(egress)) }
    }
}

impl IngressWrapper for Gate<dyn Ingress> {
    port::wraps!(0: Ingress);

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.0.receive(budget, received)?;
        let order = self.0.window().order();
        let fresh = &order[order.len().saturating_sub(received.fresh)..];
        received.refused.clear();
        received.refused.extend(fresh.iter().map(|slot| (*slot, DropReason::SetDown)));
        Ok(())
    }
}

impl EgressWrapper for Gate<dyn Egress> {
    port::wraps!(0: Egress);

    fn deliver(
        &mut self,
        _: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            offer.outcome = Outcome::Dropped(DropReason::SetDown);
        }
        Ok(())
    }
}
