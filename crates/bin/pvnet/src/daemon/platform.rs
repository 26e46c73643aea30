//! The daemon's interface to the platform whose guests it serves.
//!
//! The control thread uses platforms and backends through these traits only. It does not know which
//! hypervisor its guests run on.

use std::io;
use std::sync::{Arc, Weak, mpsc};

use control_socket::{
    GuestCopyStatus, KeptPages, OwnPagesStatus, PersistentStatus, PortStatus, Reason, Status,
};
use hypervisor::{DomId, GuestCopies, GuestCopyCounts, Hypervisor, Meter, PAGE_SIZE};
use netback::{DirectionUsage, GrantUsage, GrantUse, Ledgers, Offered, Vif, VifChange, VifError};
use shm::Region;
use switch::MacAddr;
use tracing::warn;
use xenstore::{Store, XenbusState};

use crate::config::Config;
use crate::daemon::backends::{Backends, VifId};
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::limits::Limits;
use crate::daemon::nics::Nics;
use crate::daemon::ports::port_event::Transition;

/// Gives private memory of a length in bytes.
pub(super) type BufferMemory = dyn Fn(usize) -> io::Result<Region> + Send + Sync;

/// What the devices that the daemon opens get from the platform.
#[derive(Clone)]
pub(super) struct DeviceServices {
    pub(super) meter: Arc<Meter>,
    /// Where their receive buffers come from.
    pub(super) memory: Arc<BufferMemory>,
}

impl DeviceServices {
    /// Of a platform whose copies reach all memory at the same cost.
    pub(super) fn with_ordinary_memory(meter: Arc<Meter>) -> Self {
        Self { meter, memory: Arc::new(Region::anonymous) }
    }
}

pub(super) trait Platform: Send + Sync {
    fn store(&self) -> &Arc<dyn Store>;

    /// The backends' nodes in the store.
    fn backends(&self) -> &Backends;

    /// The meter of the hypervisor's work.
    fn meter(&self) -> &Arc<Meter>;

    /// Where the receive buffers of devices come from: see [`Hypervisor::buffer_memory`].
    fn buffer_memory(&self) -> Arc<BufferMemory> {
        Arc::new(Region::anonymous)
    }

    /// What devices get from it.
    fn device_services(&self) -> DeviceServices {
        DeviceServices { meter: self.meter().clone(), memory: self.buffer_memory() }
    }

    /// How many pages this domain grants to itself, if it can.
    fn own_pages(&self) -> Option<OwnPagesStatus> {
        None
    }

    /// Serves an interface that the toolstack has created, or continues one that an earlier daemon
    /// left connected.
    ///
    /// # Errors
    /// The toolstack's node is incomplete, or the store failed.
    fn adopt(&self, id: VifId, offered: Offered) -> Result<Box<dyn Backend>, VifError>;

    /// Begins to watch for guests. Returns a function that stops it.
    ///
    /// # Errors
    /// A thread could not start.
    fn watch_for_guests(
        &self,
        limits: Arc<Limits>,
        events: mpsc::Sender<Event>,
    ) -> Result<Box<dyn FnOnce()>, Error>;

    /// Whether guests stay connected when the daemon stops, for the next daemon.
    fn keeps_guests(&self) -> bool;

    /// Whether an interface ends when the toolstack removes it. Otherwise it ends with its guest's
    /// process.
    fn ends_with_its_node(&self) -> bool;

    /// Prepares to admit the guests of another configuration. Nothing changes until the result is called.
    ///
    /// # Errors
    /// A guest's secret cannot be read.
    fn prepare_guests(&self, _config: &Config) -> Result<Box<dyn FnOnce()>, Error> {
        Ok(Box::new(|| ()))
    }

    /// Ends a guest's session, if this daemon decides about that.
    fn end_guest(&self, _name: &str) {}

    /// A guest was found to do this on purpose: it must not join again, if this daemon decides about that, until it is added to the
    /// configuration again.
    fn refuse_guest(&self, _name: &str, _what: &str) {}

    fn refused_guest(&self, _name: &str) -> Option<String> {
        None
    }

    /// How many bytes a guest's memory has now; none if the guest cannot take memory out of it while it is in use.
    fn memory_in_use(&self, _domain: DomId) -> Option<u64> {
        None
    }

    /// Whether pages that guests grant are there until they are given back, whatever becomes of the guests.
    fn grants_are_pinned(&self) -> bool {
        false
    }

    /// Sets how much memory the guest `name`, which is `domain`, should have.
    ///
    /// # Errors
    /// Why this daemon cannot do it, for an operator.
    fn set_memory(&self, name: &str, domain: DomId, mib: usize) -> Result<(), String>;

    /// The cards with contexts, if it can have some.
    fn nics(&self) -> Option<&Arc<Nics>> {
        None
    }

    /// Adds the parts of a status that take long to determine.
    fn measure(&self, _status: &mut Status) {}
}

/// The backend of one interface.
pub(super) trait Backend: Send {
    /// The path of the frontend's keys.
    fn frontend(&self) -> &str;

    /// The address that the toolstack gave the interface.
    fn mac(&self) -> MacAddr;

    /// This end's state.
    fn state(&self) -> XenbusState;

    /// Reacts to a change of the frontend's state. See [`Vif::frontend_changed`].
    fn frontend_changed(&mut self) -> Result<Transition, VifError>;

    /// Called when the queues are attached to the datapath.
    fn connected(&mut self) -> Result<(), VifError>;

    /// Called when the queues are dropped.
    fn disconnected(&mut self) -> Result<(), VifError>;

    /// Removes the remaining nodes from the store.
    fn remove(self: Box<Self>) -> Result<(), VifError>;

    /// Adds what the frontend uses of its channels: pages that stay mapped, and guest copies.
    fn describe(&self, status: PortStatus) -> PortStatus;
}

/// The backend of an interface on the platform `H`.
pub(super) struct VifBackend<H: Hypervisor> {
    vif: Vif<H>,
    /// How the pages that stay mapped are used, while it is connected: the queues own the counts.
    usage: Vec<Weak<GrantUse>>,
    /// What the guest copies from, while it is connected: the queues own it.
    copies: Vec<Weak<dyn GuestCopies>>,
}

impl<H: Hypervisor> VifBackend<H> {
    /// See [`Vif::adopt`].
    pub(super) fn adopt(
        hypervisor: H,
        store: Arc<dyn Store>,
        path: &str,
        offered: Offered,
        ledgers: Arc<dyn Ledgers>,
    ) -> Result<Box<dyn Backend>, VifError> {
        let vif = Vif::adopt(hypervisor, store, path, offered, ledgers)?;
        Ok(Box::new(Self { vif, usage: Vec::new(), copies: Vec::new() }))
    }
}

impl<H: Hypervisor> Backend for VifBackend<H> {
    fn frontend(&self) -> &str {
        self.vif.frontend()
    }

    fn mac(&self) -> MacAddr {
        self.vif.mac()
    }

    fn state(&self) -> XenbusState {
        self.vif.state()
    }

    fn frontend_changed(&mut self) -> Result<Transition, VifError> {
        Ok(match self.vif.frontend_changed()? {
            VifChange::None => Transition::None,
            VifChange::Connect(connection) => {
                if let Some(what) = connection.out_of() {
                    let frontend = self.vif.frontend();
                    warn!(frontend, "out of {what}; frames for it are copied by the driver domain");
                }
                self.usage = connection.usage();
                self.copies = connection.guest_copies().map(Arc::downgrade).collect();
                let (queues, tasks) = connection.into_port();
                Transition::Connect { queues, tasks }
            }
            VifChange::Disconnect => Transition::Disconnect(Reason::FrontendClosed),
            VifChange::Remove => Transition::Remove,
        })
    }

    fn connected(&mut self) -> Result<(), VifError> {
        self.vif.connected()
    }

    fn disconnected(&mut self) -> Result<(), VifError> {
        self.vif.disconnected()
    }

    fn remove(self: Box<Self>) -> Result<(), VifError> {
        self.vif.remove()
    }

    fn describe(&self, status: PortStatus) -> PortStatus {
        let (persistent_grants, guest_copy) = (self.persistent_grants(), self.guest_copy());
        PortStatus { persistent_grants, guest_copy, ..status }
    }
}

impl<H: Hypervisor> VifBackend<H> {
    /// The frontend's pages that stay mapped; none if none may.
    fn persistent_grants(&self) -> Option<PersistentStatus> {
        let all: Vec<_> = self.usage.iter().filter_map(Weak::upgrade).collect();
        let GrantUsage { bound, tx, rx } = all.iter().map(|one| one.usage()).sum();
        let bytes = ((tx.mapped + rx.mapped) * PAGE_SIZE) as u64;
        let kept = |DirectionUsage { mapped, hits, misses, evictions }| KeptPages {
            mapped,
            hits,
            misses,
            evictions,
        };
        let status = PersistentStatus { bound, bytes, tx: kept(tx), rx: kept(rx) };
        (!all.is_empty()).then_some(status)
    }

    /// What the guest copies itself; none if its frontend does not.
    fn guest_copy(&self) -> Option<GuestCopyStatus> {
        let copies: Vec<_> = self.copies.iter().filter_map(Weak::upgrade).collect();
        let pools = copies.iter().filter_map(|copies| copies.pool());
        let pool_pages = pools.map(|pool| pool.len() / PAGE_SIZE).sum();
        let GuestCopyCounts { granted, expired, hypercalls, copies: done, bytes, refused } =
            copies.iter().map(|copies| copies.counts()).sum();
        (!copies.is_empty()).then_some(GuestCopyStatus {
            pool_pages,
            granted,
            expired,
            hypercalls,
            copies: done,
            bytes,
            refused,
        })
    }
}
