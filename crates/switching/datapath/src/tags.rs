//! Frames whose tags change on their way from one port to another.

use port::{DropReason, Frame, Window};
use switch::{Membership, TagChange};

/// What happens to a frame before it leaves by a port.
#[derive(Clone, Copy)]
pub(crate) enum TagAction {
    /// It leaves as it is.
    Keep,
    /// This one of the changed frames leaves in its place.
    Changed(usize),
    /// It must not leave.
    Refused(DropReason),
}

/// Changes the tag of a frame that came from `from` and leaves by `to`. A frame that is changed is added to `changed`: its header, and
/// where its body lies; the body itself is not copied.
pub(crate) fn change(
    (from, to): (&Membership, &Membership),
    window: &Window,
    slot: u8,
    changed: &mut Vec<Frame>,
) -> TagAction {
    let frame = window.frame(slot);
    // It was routed, so its port may send it.
    let Some(domain) = from.domain_of(frame) else { return TagAction::Refused(DropReason::Vlan) };
    let frame = match to.change(domain, frame) {
        TagChange::Keep => return TagAction::Keep,
        TagChange::Refuse => return TagAction::Refused(DropReason::Vlan),
        TagChange::Pop => frame.without_tag(),
        TagChange::Push => match frame.with_tag(domain) {
            Some(frame) => frame,
            None => return TagAction::Refused(DropReason::TooLarge),
        },
    };
    changed.push(frame);
    TagAction::Changed(changed.len() - 1)
}
