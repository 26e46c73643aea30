//! The events of the control thread.

use std::sync::mpsc;

use capture::{Capture, Request};
use control_socket::{Reason, Status};
use datapath::Failure;
use hypervisor::DomId;
use xenstore::WatchEvent;

use crate::config::Vif;
use crate::daemon::backends::VifId;
use crate::daemon::guest_queues::QueueChange;

/// An interface that a toolstack has created.
pub(super) struct NewInterface {
    pub(super) id: VifId,
    /// Its guest's name in the configuration.
    pub(super) guest: String,
    /// Its port's name.
    pub(super) name: String,
    pub(super) vif: Vif,
}

/// A message to the control thread.
pub(super) enum Event {
    /// The toolstack has created an interface.
    Plugged { interface: Box<NewInterface>, answer: mpsc::Sender<Result<(), String>> },
    /// An interface is gone, perhaps with its domain.
    Unplugged { id: VifId, answer: mpsc::Sender<()> },
    /// Something changed in the store. The next change is reported once `done` is dropped.
    Store { event: WatchEvent, done: mpsc::Sender<()> },
    /// A queue broke.
    Failure(Failure),
    /// A card serves an uplink's context.
    UplinkUp { name: String, queue: Box<port::Queue> },
    /// It does not any more. Its memory is not used once this is answered.
    UplinkDown { name: String, why: Reason, answer: mpsc::Sender<()> },
    /// The rings of a virtual machine can be served.
    RingsReady { name: String, queues: Vec<port::Queue> },
    /// They must not be used any more, and are not once this is answered.
    RingsStopped { name: String, why: Reason, answer: mpsc::Sender<()> },
    /// Something happened to a queue of an uplink for a guest.
    Queue { uplink: String, change: QueueChange },
    /// A client asks for the status.
    Status(mpsc::Sender<Status>),
    /// A client sets a guest's memory, in MiB. A guest without vifs is found by its contexts.
    Balloon {
        name: String,
        with_contexts: Option<DomId>,
        mib: usize,
        answer: mpsc::Sender<Result<(), String>>,
    },
    /// A client starts a capture of a port's frames.
    Capture { request: Request, answer: mpsc::Sender<Result<Capture, String>> },
    /// The daemon must stop.
    Stop,
}
