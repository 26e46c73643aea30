//! Frames that are not flooded: beyond what their port may flood, or to nobody.

use std::time::Duration;

use arrayvec::ArrayVec;
use port::{DropReason, Outcome, Outcomes, WINDOW, Window};
use switch::StormControl;

use crate::port::Port;
use crate::targets::Targets;

/// Those frames of a group (slots of the window) that `from` may flood to some ports, within this
/// budget. Drops and counts the others. Where there is no port, a frame to one station is lost; one to
/// several has reached all that there are.
pub(crate) fn admit(
    (from, control): (&Port, &StormControl),
    targets: Targets<'_>,
    window: &Window,
    group: &[u8],
    now: Duration,
    outcomes: &mut Outcomes,
) -> ArrayVec<u8, WINDOW> {
    let others = targets.count(from.id());
    let may_go = |slot: &u8| match (window.frame(*slot), others) {
        (frame, 0) => frame.destination().is_multicast(),
        (frame, others) => control.admit(frame, others, now),
    };
    let reason = if others == 0 { DropReason::NoPort } else { DropReason::Storm };
    let (admitted, dropped): (ArrayVec<_, WINDOW>, ArrayVec<_, WINDOW>) =
        group.iter().copied().partition(may_go);
    for slot in &dropped {
        outcomes[usize::from(*slot)] = Outcome::Dropped(reason);
    }
    if !dropped.is_empty() {
        from.add_drops(reason, dropped.len() as u64);
    }
    admitted
}
