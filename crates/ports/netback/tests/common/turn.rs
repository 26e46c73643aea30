//! What the datapath does with a queue, one call at a time.

use std::time::Duration;

use port::{Body, Broken, Budget, Egress, Frame, Ingress, Offer, Outcome, Received};

/// One turn of a queue: what it took.
pub fn receive(queue: &mut impl Ingress) -> Result<Received, Broken> {
    let (mut budget, mut received) = (Budget::TURN, Received::default());
    // A worker that looks must not miss what a turn would find.
    let has_work = queue.has_work();
    let result = queue.receive(&mut budget, &mut received);
    let found = result.is_err() || budget != Budget::TURN || !queue.window().is_empty();
    assert!(has_work || !found, "a look missed {received:?}");
    result.map(|()| received)
}

/// Does `work` with the memory that the bodies of a queue's frames lie in.
pub fn with_body<R>(queue: &impl Ingress, mut work: impl FnMut(Body<'_>) -> R) -> R {
    let mut result = None;
    queue.with_body(&mut |body| result = Some(work(body)));
    result.expect("called once")
}

/// Offers one frame.
pub fn deliver(
    queue: &mut impl Egress,
    body: Body<'_>,
    frame: &Frame,
    now: Duration,
) -> Result<Outcome, Broken> {
    let mut offers = [Offer::new(frame)];
    queue.deliver(body, &mut offers, now)?;
    Ok(offers[0].outcome)
}
