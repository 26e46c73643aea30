//! Moves frames between queues, as a worker does.

use std::time::Duration;

use port::{Broken, Outcome, Queue, Received};

/// Moves what one queue has to another one. Returns frames and malformed packets received, and the outcome of each frame.
pub fn pass(from: &mut Queue, to: &mut Queue) -> Result<(Received, Vec<Outcome>), Broken> {
    pass_at(from, to, Duration::ZERO)
}

pub fn pass_at(
    from: &mut Queue,
    to: &mut Queue,
    now: Duration,
) -> Result<(Received, Vec<Outcome>), Broken> {
    port_testing::pass(&mut *from.ingress, &mut *to.egress, now)
}
