//! Frames beyond what a port may flood.

use std::time::Duration;

use arrayvec::ArrayVec;
use port::{DropReason, Outcome, Outcomes, WINDOW, Window};
use switch::PortSet;

use crate::port::Port;

/// Those frames of a group (slots of the window) that `from` may flood to a set of ports, itself among them. Drops
/// and counts the others.
pub(crate) fn admit(
    from: &Port,
    ports: &PortSet,
    window: &Window,
    group: &[u8],
    now: Duration,
    outcomes: &mut Outcomes,
) -> ArrayVec<u8, WINDOW> {
    let others = ports.len().saturating_sub(1);
    let may_go = |slot: &u8| from.storm_control().admit(window.frame(*slot), others, now);
    let (admitted, dropped): (ArrayVec<_, WINDOW>, ArrayVec<_, WINDOW>) =
        group.iter().copied().partition(may_go);
    for slot in &dropped {
        outcomes[usize::from(*slot)] = Outcome::Dropped(DropReason::Storm);
    }
    if !dropped.is_empty() {
        from.counters().add_drops(DropReason::Storm, dropped.len() as u64);
    }
    admitted
}
