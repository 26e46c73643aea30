//! The events of the control thread.

use std::sync::{Arc, mpsc};

use capture::{Capture, Request};
use control_socket::{Change, ChangeReport, Reason, Status};
use datapath::{Failure, Sleep};
use hypervisor::DomId;
use vhost_user::Condition;
use xenstore::WatchEvent;

use crate::config::{Guest, Loaded, Port, Vif};
use crate::daemon::backends::VifId;
use crate::daemon::guest_queues::QueueChange;

/// An interface that a toolstack has created.
pub(super) struct NewInterface {
    pub(super) id: VifId,
    /// Its guest in the configuration.
    pub(super) guest: Guest,
    /// Its port's name.
    pub(super) name: String,
    pub(super) vif: Vif,
}

/// What the ports are to become.
pub(super) struct NewConfig {
    pub(super) source: Source,
    /// Only say what would be done.
    pub(super) dry_run: bool,
    /// Cut connections, and open devices again, where that is needed.
    pub(super) reconnect: bool,
}

/// Where a new configuration comes from.
pub(super) enum Source {
    /// The file was read again.
    File(Box<Loaded>),
    /// A command changes the present one.
    Command(Change),
}

/// What happened to the front-end of a virtual machine's port.
pub(super) enum FrontEndChange {
    /// Its session has come to this.
    Settled(Condition),
    /// Its session has ended, for this reason.
    Ended(String),
}

/// What happened to the back-end of an uplink.
pub(super) enum BackEndChange {
    /// It serves these rings.
    Ready(Vec<port::Queue>),
    /// It does not any more. Its queues are not used once this is answered.
    Gone { why: Reason, answer: mpsc::Sender<()> },
    /// It could not be agreed with.
    Refused(Reason),
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
    /// A worker slept in the memory of a guest.
    Slept(Sleep),
    /// A card serves an uplink's context.
    UplinkUp { name: String, queue: Box<port::Queue> },
    /// It does not any more. Its memory is not used once this is answered.
    UplinkDown { name: String, why: Reason, answer: mpsc::Sender<()> },
    /// The rings of a virtual machine can be served, as agreed with its front-end.
    RingsReady { machine: u64, settings: Arc<Port>, queues: Vec<port::Queue> },
    /// They must not be used any more, and are not once this is answered.
    RingsStopped { machine: u64, why: Reason, answer: mpsc::Sender<()> },
    /// Something happened to a virtual machine's front-end.
    FrontEnd { machine: u64, what: FrontEndChange },
    /// Something happened to the back-end of the uplink whose back-ends have this number.
    BackEnd { uplink: u64, what: BackEndChange },
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
    /// A client, or a signal, changes the ports.
    Change { change: Box<NewConfig>, answer: mpsc::Sender<Result<ChangeReport, String>> },
    /// The daemon must stop.
    Stop,
}
