//! Moves frames between queues, as a worker does.

use std::time::Duration;

use port::{Broken, Budget, Offer, Outcome, Queue, Received, WINDOW};

/// Moves what one queue has to another one, as a worker does. Returns frames and malformed packets received, and the
/// outcome of each frame.
pub fn pass(from: &mut Queue, to: &mut Queue) -> Result<(Received, Vec<Outcome>), Broken> {
    pass_at(from, to, Duration::ZERO)
}

pub fn pass_at(
    from: &mut Queue,
    to: &mut Queue,
    now: Duration,
) -> Result<(Received, Vec<Outcome>), Broken> {
    let mut received = Received::default();
    // A worker that looks must not miss what a turn would find.
    let has_work = from.ingress.has_work();
    from.ingress.receive(&mut Budget::default(), &mut received)?;
    let found = received.malformed > 0 || !from.ingress.window().is_empty();
    assert!(has_work || !found, "a look missed {received:?}");
    let mut outcomes = [Outcome::Waiting; WINDOW];
    let mut seen = Vec::new();
    let mut result = Ok(());
    from.ingress.with_body(&mut |body| {
        let window = from.ingress.window();
        let order = window.order();
        let mut offers: Vec<_> = order.iter().map(|slot| Offer::new(window.frame(*slot))).collect();
        result = to.egress.deliver(body, &mut offers, now);
        for (slot, offer) in order.iter().zip(&offers) {
            outcomes[usize::from(*slot)] = offer.outcome;
            seen.push(offer.outcome);
        }
    });
    result?;
    from.ingress.finish(&outcomes);
    Ok((received, seen))
}
