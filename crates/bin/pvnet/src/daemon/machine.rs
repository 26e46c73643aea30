//! The daemon on platform `machine`, which contains the hypervisor and the toolstack. Each guest of
//! the configuration may join once.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};

use control_socket::{MemoryStatus, Status, View};
use hypervisor::{DomId, Hypervisor, Meter, Metered, PAGE_SIZE};
use machine::toolstack::set_memory_target;
use machine::{AddressSpace, Coverage, DRIVER_DOMAIN, Domain, Listener, Machine};
use netback::{Anonymous, Offered, VifError};
use shm::PageSize;
use tracing::info;
use xenstore::Store;

use crate::config::Config;
use crate::daemon::admission::{Admission, AdmissionSettings, GuestList};
use crate::daemon::backends::{Backends, VifId};
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::limits::Limits;
use crate::daemon::nics::Nics;
use crate::daemon::platform::{Backend, Platform, VifBackend};
use crate::daemon::socket_file::give_to_group;
use crate::daemon::thread::spawn;

/// The embedded machine, and the socket at which guests join.
pub(super) struct MachinePlatform {
    machine: Metered<Machine>,
    store: Arc<dyn Store>,
    backends: Backends,
    listener: Arc<Listener>,
    guests: GuestList,
    nics: Arc<Nics>,
}

impl MachinePlatform {
    /// Starts a machine without guests.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let machine = Metered::new(Machine::new());
        // Bound before the control socket, which an earlier daemon may have left behind.
        let join_socket = config.join_socket();
        let listener = Listener::bind(&join_socket, config.daemon.join_mode)
            .map_err(Error::path(&join_socket))?;
        if let Some(group) = config.daemon.join_group {
            give_to_group(&join_socket, group, "join_group").map_err(Error::path(&join_socket))?;
        }
        let listener = Arc::new(listener);
        let store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
        let backends = Backends::new(DRIVER_DOMAIN, "vif");
        let guests = GuestList::new(AdmissionSettings::new(config)?);
        info!(socket = %join_socket.display(), "guests join here");
        let nics = Nics::new(config, &machine);
        Ok(Self { machine, store, backends, listener, guests, nics })
    }
}

impl Platform for MachinePlatform {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn backends(&self) -> &Backends {
        &self.backends
    }

    fn meter(&self) -> &Arc<Meter> {
        self.machine.meter()
    }

    fn adopt(&self, id: VifId, offered: Offered) -> Result<Box<dyn Backend>, VifError> {
        // The guests' memory, and so the rings, end with the daemon.
        let ledgers = Arc::new(Anonymous::default());
        let (machine, store) = (self.machine.clone(), self.store.clone());
        VifBackend::adopt(machine, store, &self.backends.path(id), offered, ledgers)
    }

    fn watch_for_guests(
        &self,
        limits: Arc<Limits>,
        events: mpsc::Sender<Event>,
    ) -> Result<Box<dyn FnOnce()>, Error> {
        let (store, nics) = (self.store.clone(), self.nics.clone());
        let admission = Arc::new(Admission::new(&self.guests, store, nics, limits, events));
        let (listener, machine) = (self.listener.clone(), Machine::clone(&self.machine));
        let accepting = spawn("guests", move || listener.serve(&machine, &admission))?;
        let listener = self.listener.clone();
        Ok(Box::new(move || {
            listener.stop();
            if accepting.join().is_err() {
                tracing::error!("the thread that accepts guests panicked");
            }
        }))
    }

    fn nics(&self) -> Option<&Arc<Nics>> {
        Some(&self.nics)
    }

    fn keeps_guests(&self) -> bool {
        false
    }

    fn ends_with_its_node(&self) -> bool {
        false
    }

    fn prepare_guests(&self, config: &Config) -> Result<Box<dyn FnOnce()>, Error> {
        let (guests, settings) = (self.guests.clone(), AdmissionSettings::new(config)?);
        Ok(Box::new(move || guests.replace(settings)))
    }

    fn end_guest(&self, name: &str) {
        self.guests.end(name);
    }

    fn refuse_guest(&self, name: &str, what: &str) {
        self.guests.refuse(name, what);
    }

    fn refused_guest(&self, name: &str) -> Option<String> {
        self.guests.refused(name)
    }

    fn memory_in_use(&self, domain: DomId) -> Option<u64> {
        self.machine.peer(domain).ok()?.memory_in_use()
    }

    /// Writes the node that the guest's balloon watches.
    fn set_memory(&self, _: &str, domain: DomId, mib: usize) -> Result<(), String> {
        set_memory_target(&*self.store, domain, mib * 1024).map_err(|error| error.to_string())
    }

    fn measure(&self, status: &mut Status) {
        measure_memory(status, &self.machine);
    }
}

/// Adds each guest's memory to the first of its ports in a status, or else of its contexts.
fn measure_memory(status: &mut Status, machine: &Machine) {
    let daemon = AddressSpace::of_self().ok();
    let mut measured = HashSet::new();
    let ports = status.ports.iter_mut().map(|port| (port.domain, &mut port.memory));
    let contexts = status.nics.iter_mut().flat_map(|nic| &mut nic.contexts);
    let contexts = contexts.map(|context| (context.domain, &mut context.memory));
    for (domain, shown) in ports.chain(contexts) {
        let first = domain.filter(|id| measured.insert(*id));
        let domain = first.and_then(|id| machine.peer(DomId(id)).ok());
        *shown = domain.map(|domain| memory(&domain, daemon.as_ref()));
    }
}

fn memory(domain: &Domain, daemon: Option<&AddressSpace>) -> MemoryStatus {
    let size = domain.size();
    let process = domain.process().and_then(|process| AddressSpace::of_process(process).ok());
    let view = |space| {
        let Coverage { large, total } = domain.coverage(space);
        View { large, total }
    };
    MemoryStatus {
        reservation: ((size.pages - domain.pages_out()) * PAGE_SIZE) as u64,
        huge_pages: size.page_size == PageSize::Huge,
        daemon: daemon.map(view),
        guest: process.as_ref().map(view),
    }
}
