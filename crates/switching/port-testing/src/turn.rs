//! What a worker does with a queue, one call at a time.

use std::time::Duration;

use port::{
    Body, Broken, Budget, Egress, Frame, Ingress, Offer, Outcome, Received, WINDOW, linearise,
};

/// One turn of a queue: what it took.
///
/// # Errors
/// The queue's.
pub fn receive(queue: &mut dyn Ingress) -> Result<Received, Broken> {
    let (mut budget, mut received) = (Budget::TURN, Received::default());
    // A worker that polls must not miss what a turn would find.
    let has_work = queue.has_work();
    let result = queue.receive(&mut budget, &mut received);
    let found = result.is_err() || budget != Budget::TURN || !queue.window().is_empty();
    assert!(has_work || !found, "a poll missed {received:?}");
    result.map(|()| received)
}

/// Does `work` with the memory that the bodies of a queue's frames lie in.
pub fn with_body<R>(queue: &dyn Ingress, mut work: impl FnMut(Body<'_>) -> R) -> R {
    let mut result = None;
    queue.with_body(&mut |body| result = Some(work(body)));
    result.expect("called once")
}

/// The bytes of a frame in a queue's window.
pub fn whole(queue: &dyn Ingress, frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; frame.len as usize];
    with_body(queue, |body| linearise(frame, body, &mut bytes).map(drop)).unwrap();
    bytes
}

/// Offers one frame.
///
/// # Errors
/// The queue's.
pub fn offer(
    queue: &mut dyn Egress,
    body: Body<'_>,
    frame: &Frame,
    now: Duration,
) -> Result<Outcome, Broken> {
    let mut offers = [Offer::new(frame)];
    queue.deliver(body, &mut offers, now)?;
    Ok(offers[0].outcome)
}

/// Offers frames in one batch. Returns the outcome of each.
pub fn deliver(
    queue: &mut dyn Egress,
    body: Body<'_>,
    frames: &[&Frame],
    now: Duration,
) -> Vec<Outcome> {
    let mut offers: Vec<_> = frames.iter().map(|frame| Offer::new(frame)).collect();
    queue.deliver(body, &mut offers, now).unwrap();
    offers.iter().map(|offer| offer.outcome).collect()
}

/// Moves what one queue has to another one. Returns what was received, and the outcome of each frame in hand.
///
/// # Errors
/// Those of the queues.
pub fn pass(
    from: &mut dyn Ingress,
    to: &mut dyn Egress,
    now: Duration,
) -> Result<(Received, Vec<Outcome>), Broken> {
    let received = receive(from)?;
    let window = from.window();
    let order = window.order();
    let mut offers: Vec<_> = order.iter().map(|slot| Offer::new(window.frame(*slot))).collect();
    with_body(from, |body| to.deliver(body, &mut offers, now))?;
    let seen: Vec<_> = offers.iter().map(|offer| offer.outcome).collect();
    let mut outcomes = [Outcome::Waiting; WINDOW];
    for (slot, outcome) in order.iter().zip(&seen) {
        outcomes[usize::from(*slot)] = *outcome;
    }
    from.finish(&outcomes);
    Ok((received, seen))
}
