//! Frames beyond what a port may flood.

use std::time::Duration;

use arrayvec::ArrayVec;
use port::{DropReason, Outcome, Outcomes, WINDOW, Window};
use switch::StormControl;

use crate::port::Port;
use crate::targets::Targets;

/// Those frames of a group (slots of the window) that `from` may flood to some ports, within this
/// budget. Drops and counts the others.
pub(crate) fn admit(
    (from, control): (&Port, &StormControl),
    targets: Targets<'_>,
    window: &Window,
    group: &[u8],
    now: Duration,
    outcomes: &mut Outcomes,
) -> ArrayVec<u8, WINDOW> {
    let others = targets.count(from.id());
    let may_go = |slot: &u8| control.admit(window.frame(*slot), others, now);
    let (admitted, dropped): (ArrayVec<_, WINDOW>, ArrayVec<_, WINDOW>) =
        group.iter().copied().partition(may_go);
    for slot in &dropped {
        outcomes[usize::from(*slot)] = Outcome::Dropped(DropReason::Storm);
    }
    if !dropped.is_empty() {
        from.add_drops(DropReason::Storm, dropped.len() as u64);
    }
    admitted
}
