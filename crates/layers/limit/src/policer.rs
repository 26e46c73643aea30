//! Frames to the port: those beyond the limit are dropped.

use std::sync::Arc;
use std::time::Duration;

use port::{Body, Broken, DropReason, Egress, EgressWrapper, Offer, Outcome};

use crate::meter::{Meter, Tokens};

/// Polices what goes to a queue. All queues of a port share its meter.
#[must_use]
pub fn police(inner: Box<dyn Egress>, meter: &Arc<Meter>) -> Box<dyn Egress> {
    if meter.is_unlimited() {
        return inner;
    }
    Box::new(Policer { inner, meter: Arc::clone(meter) })
}

/// A queue that delivers no more than its meter allows.
pub(crate) struct Policer {
    pub(crate) inner: Box<dyn Egress>,
    meter: Arc<Meter>,
}

impl EgressWrapper for Policer {
    port::wraps!(inner: Egress);

    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        let mut rest = offers;
        // One round, unless the port drops frames: those behind may use their tokens.
        while !rest.is_empty() {
            let costs = rest.iter().map(cost);
            let (admitted, taken) = self.meter.admit(now, costs);
            let (run, beyond) = rest.split_at_mut(admitted);
            if run.is_empty() {
                for offer in beyond {
                    offer.outcome = Outcome::Dropped(DropReason::RateLimit);
                }
                return Ok(());
            }
            let result = self.inner.deliver(body, run, now);
            self.meter.correct(taken, used(run));
            result?;
            if run.iter().any(|offer| offer.outcome.is_offered_again()) {
                // Those behind are offered again too: the order is kept.
                return Ok(());
            }
            rest = beyond;
        }
        Ok(())
    }
}

/// What an offer costs. A frame that the port has sent in part has been paid for.
#[inline]
fn cost(offer: &Offer<'_>) -> Tokens {
    if offer.sent == 0 { Tokens::of(offer.frame) } else { Tokens::default() }
}

/// The tokens of the frames that the port took or began to send.
fn used(run: &[Offer<'_>]) -> Tokens {
    let mut used = Tokens::default();
    for offer in run {
        match offer.outcome {
            Outcome::Partial { segments: 0 } => {}
            Outcome::Delivered | Outcome::InFlight(_) | Outcome::Partial { .. } => {
                used += cost(offer);
            }
            Outcome::Waiting | Outcome::Dropped(_) | Outcome::SourceFault => {}
        }
    }
    used
}
