//! Moves frames between queues, as a worker does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use offload::{Checksum, Gso};
use port::{Broken, Budget, Egress, Ingress, Offer, Outcome, Received, WINDOW, linearise};
use port_testing::FakeEgress;

/// A frame that came out of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

/// An egress queue that notes what it is offered.
pub fn sink() -> (FakeEgress, Arc<Mutex<Vec<Out>>>) {
    let seen = Arc::<Mutex<Vec<Out>>>::default();
    let noted = seen.clone();
    let egress = FakeEgress::new(move |frame, body| {
        let mut bytes = vec![0; frame.len as usize];
        if let Err(fault) = linearise(frame, body, &mut bytes) {
            return Ok(fault);
        }
        let (checksum, gso) = (frame.checksum, frame.gso);
        noted.lock().unwrap().push(Out { bytes, checksum, gso });
        Ok(Outcome::Delivered)
    });
    (egress, seen)
}

/// Moves what one queue has to another one. Returns what was received, and the outcome of each frame in hand.
pub fn pass(
    from: &mut dyn Ingress,
    to: &mut dyn Egress,
    now: Duration,
) -> Result<(Received, Vec<Outcome>), Broken> {
    let mut received = Received::default();
    from.receive(&mut Budget::default(), &mut received)?;
    let mut outcomes = [Outcome::Waiting; WINDOW];
    let mut seen = Vec::new();
    let mut result = Ok(());
    from.with_body(&mut |body| {
        let window = from.window();
        let order = window.order();
        let mut offers: Vec<_> = order.iter().map(|slot| Offer::new(window.frame(*slot))).collect();
        result = to.deliver(body, &mut offers, now);
        for (slot, offer) in order.iter().zip(&offers) {
            outcomes[usize::from(*slot)] = offer.outcome;
            seen.push(offer.outcome);
        }
    });
    result?;
    from.finish(&outcomes);
    Ok((received, seen))
}
