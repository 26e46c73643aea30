//! What differs from port to port.

use std::path::{Path, PathBuf};
use std::time::Duration;

use control_socket::{PortStatus, Reason};
use datapath::{Datapath, PortMemory};
use port::Coalescing;
use vhost_user::Mode;
use wire::ethernet::MacAddr;

use super::port_event::{PortEvent, Transition};
use super::record::{Host, Record};
use crate::config::{Config, Guest};
use crate::daemon::backends::VifId;
use crate::daemon::error::Error;
use crate::daemon::interfaces::Interfaces;

/// What only one port can have at a time.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Place {
    /// An interface on the host, in a namespace.
    Interface(Option<String>, String),
    Socket(PathBuf),
    /// A card's context for the driver domain.
    Context(String),
}

/// What a port needs to be opened, and while it is.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Needs {
    /// A socket is made in this folder.
    pub(in crate::daemon) folder: Option<PathBuf>,
    /// A socket of others is connected to.
    pub(in crate::daemon) connects: bool,
    /// A device of the host is opened.
    pub(in crate::daemon) device: bool,
    /// Its network namespace must be there, if it has one,
    pub(in crate::daemon) namespace: Option<String>,
    /// and in it this interface.
    pub(in crate::daemon) interface: Option<String>,
    /// Later, programs are run there,
    pub(in crate::daemon) programs: bool,
    /// the maps of BPF programs are changed;
    pub(in crate::daemon) bpf: bool,
    /// and sockets on a device are opened.
    pub(in crate::daemon) sockets: bool,
}

impl Needs {
    /// Of a socket that this side makes, or connects to.
    pub(super) fn of_socket(side: Mode, socket: &Path) -> Self {
        match side {
            Mode::Server => Self { folder: socket.parent().map(Path::to_owned), ..Self::default() },
            Mode::Client => Self { connects: true, ..Self::default() },
        }
    }

    /// What the daemon opens after its start, where it is not the socket that fails.
    pub(in crate::daemon) fn is_socket(&self) -> bool {
        !self.device && (self.connects || self.folder.is_some())
    }
}

/// Who can end a connection and have another begin, with other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum Agreed {
    ByDaemon,
    /// The toolstack alone, which made the interface.
    ByToolstack,
}

/// Where a port's queues come from.
pub(in crate::daemon) trait Source: Send {
    /// What it needs; nothing if others open it.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// What no other port can have while it has it.
    fn places(&self) -> Vec<Place> {
        Vec::new()
    }

    /// Opens that for which the daemon gives up its rights after its start.
    ///
    /// # Errors
    /// It is not there, or cannot be used; the end of a sentence about the port.
    fn prepare(&mut self, _config: &Config) -> Result<(), String> {
        Ok(())
    }

    /// Opens it, prepared or adopted.
    ///
    /// # Errors
    /// Something is not there, or cannot be used.
    fn open(&mut self, port: &mut Record, host: &Host) -> Result<(), Error>;

    /// Gives back what it has. Its port has no queues any more.
    fn close(self: Box<Self>, _port: Record, _host: &Host) {}

    /// Writes its running settings into `config`.
    fn write_running(&self, config: &mut Config);

    /// Who can have the settings agreed anew that are agreed with its other side; none if none are.
    fn agreed_by(&self) -> Option<Agreed> {
        None
    }

    /// Takes those settings of the host's configuration that change now.
    ///
    /// # Errors
    /// They contradict the toolstack.
    fn set(&mut self, port: &mut Record, host: &Host) -> Result<(), String>;

    /// Serves what happened to it.
    fn serve(&mut self, port: &mut Record, what: PortEvent, host: &Host) -> Transition;

    /// A queue of its port broke.
    fn fail(&mut self, _port: &mut Record, reason: &str) -> Transition {
        Transition::Disconnect(Reason::Disabled(reason.to_owned()))
    }

    /// Its queues are attached.
    ///
    /// # Errors
    /// They cannot be used after all.
    fn attached(&mut self, port: &Record) -> Result<(), Reason>;

    /// Its queues are dropped, if it had some, for the reason in its record.
    fn detached(&mut self, port: &Record, had_queues: bool);

    /// Ends what is agreed with its other side, which may come again, or may not until the port is added again.
    fn hang_up(&mut self, _may_return: bool) {}

    /// Its other side, which can take memory away, was found to do this on purpose: it is cut off. Returns what is to be said of it.
    fn condemn(&mut self, what: &str) -> Reason {
        self.hang_up(false);
        Reason::Disabled(what.to_owned())
    }

    /// What is to be said if its other side is cut off, because of what its process or guest did, here or at another port.
    fn condemned(&self) -> Option<Reason> {
        None
    }

    /// Whether its other side stays connected when the daemon ends, for the next one.
    fn outlives_the_daemon(&self, _host: &Host) -> bool {
        false
    }

    /// Checks whether what it has is still there. Called at least once a second.
    fn check(&mut self, _port: &mut Record, _host: &Host) -> Transition {
        Transition::None
    }

    /// Adds what it knows to a status; `devices` are the interfaces of the daemon's namespace.
    fn describe(&self, port: &Record, status: PortStatus, devices: &Interfaces) -> PortStatus;

    /// The address of what is behind it, if that is one station.
    fn mac(&self) -> Option<MacAddr> {
        None
    }

    /// When a worker is woken up for frames that come in.
    fn coalescing(&self) -> Option<Coalescing> {
        None
    }

    /// Whether everybody outside is behind it. Otherwise it is one guest or virtual machine, whose frames the guard checks.
    fn leads_out(&self) -> bool {
        false
    }

    /// Whether its flows have the queues that they send from ([`PortParts::steers_flows`](datapath::PortParts::steers_flows)).
    fn steers_flows(&self) -> bool {
        false
    }

    /// Its guest, with the settings of its join and later changes in place.
    fn guest(&self) -> Option<(VifId, &Guest)> {
        None
    }

    /// Whether an uplink may put frames into its buffers.
    fn lends(&self) -> bool {
        false
    }

    /// How many bytes the files of its guest's memory have now, if the guest can change that.
    fn memory_in_use(&self) -> Option<u64> {
        None
    }

    /// What a worker may find in its memory, and what becomes of its queues while one sleeps elsewhere.
    fn memory(&self) -> PortMemory;

    /// Gets new queues: a worker sleeps with this one's in the memory of another guest.
    fn renew(&mut self, _port: &Record, _datapath: &Datapath) {}

    /// The same, and nobody touches its memory for this time: it has [held workers up](super::suspicion) too long.
    fn rest(&mut self, port: &Record, datapath: &Datapath, _time: Duration) {
        self.renew(port, datapath);
    }

    /// A worker sleeps in the memory of a guest to which it carries frames from a queue of this port: another handle serves the others.
    fn replace_sleeping_ingress(&self, _port: &Record, _queue: usize, _datapath: &Datapath) {}

    /// The same of frames to this port.
    fn replace_sleeping_egress(&self, _port: &Record, _datapath: &Datapath) {}
}
