//! What happens to ports, and what follows.

use std::sync::Arc;
use std::time::Duration;

use control_socket::Reason;
use port::{Ingress, Queue, Task};
use vhost_user::Condition;

use crate::config;
use crate::daemon::backends::VifId;

/// A port, in the order in which they are listed. The numbers are never given again, as names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::daemon) enum PortId {
    /// A guest's interface.
    Vif(VifId),
    /// A virtual machine's port.
    Machine(u64),
    Uplink(u64),
}

/// What happened to a port.
pub(in crate::daemon) enum PortEvent {
    /// Its other side serves these queues, as was agreed with a virtual machine's front-end.
    Ready { queues: Vec<Queue>, agreed: Option<Arc<config::Port>> },
    /// It does not any more.
    Gone(Reason),
    /// It could not be agreed with.
    Refused(Reason),
    /// Something happened to a virtual machine's front-end.
    FrontEnd(FrontEndChange),
    /// Its notifications have held workers up for such a time.
    HeldUp(Duration),
    /// Something happened to a queue that it keeps for a guest.
    Queue(QueueChange),
    /// The state of an interface's frontend, in the store, has changed.
    Frontend,
    /// The toolstack has written something for an interface: perhaps that its script has run.
    Script,
    /// The toolstack has changed what it wants of an interface.
    Wish,
}

/// What happened to the front-end of a virtual machine's port.
pub(in crate::daemon) enum FrontEndChange {
    /// Its session has come to this.
    Settled(Condition),
    /// Its session has ended, for this reason.
    Ended(String),
}

/// What happened to a queue that is a card's context.
pub(in crate::daemon) enum QueueChange {
    /// The card serves it, for an interface.
    Up { id: VifId, ingress: Box<dyn Ingress> },
    /// It does not any more.
    Down { id: VifId },
}

/// What the control thread does with a port after something has happened to it.
pub(in crate::daemon) enum Transition {
    None,
    /// Attaches these queues and tasks; then see `Source::attached`.
    Connect {
        queues: Vec<Queue>,
        tasks: Vec<Box<dyn Task>>,
    },
    /// Drops its queues, for this reason; then see `Source::detached`.
    Disconnect(Reason),
    /// Drops its queues, and forgets it; see `Source::close`.
    Remove,
}
