//! The daemon on platform `machine`, which contains the hypervisor and the toolstack. Each guest of
//! the configuration may join once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use control_socket::Status;
use hypervisor::{DomId, Meter, Metered};
use machine::toolstack::{create_domain, create_vif, remove_domain, set_memory_target};
use machine::{DRIVER_DOMAIN, Listener, Machine, MemorySize, Toolstack};
use netback::{Anonymous, Offered, RxChannel, VifError};
use offload::Features;
use shm::PageSize;
use tracing::info;
use xenstore::{Store, StoreError};

use crate::config::{Config, Guest};
use crate::daemon::backends::{Backends, VifId};
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::memory;
use crate::daemon::platform::{Backend, Platform, VifBackend};
use crate::daemon::thread::spawn;

/// The embedded machine, and the socket at which guests join.
pub(super) struct MachinePlatform {
    machine: Metered<Machine>,
    store: Arc<dyn Store>,
    backends: Backends,
    listener: Arc<Listener>,
    admission: AdmissionSettings,
}

impl MachinePlatform {
    /// Starts a machine without guests.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let machine = Metered::new(Machine::new());
        // Bound before the control socket, which an earlier daemon may have left behind.
        let join_socket = config.join_socket();
        let listener = Listener::bind(&join_socket).map_err(Error::path(&join_socket))?;
        let listener = Arc::new(listener);
        let store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
        let backends = Backends::new(DRIVER_DOMAIN, "vif");
        let admission = AdmissionSettings::new(config);
        info!(socket = %join_socket.display(), "guests join here");
        Ok(Self { machine, store, backends, listener, admission })
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

    fn look_for_guests(&self, events: mpsc::Sender<Event>) -> Result<Box<dyn FnOnce()>, Error> {
        let admission = Arc::new(Admission::new(&self.admission, self.store.clone(), events));
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

    fn keeps_guests(&self) -> bool {
        false
    }

    fn ends_with_its_node(&self) -> bool {
        false
    }

    /// Writes the node that the guest's balloon watches.
    fn set_memory(&self, _: &str, id: VifId, mib: usize) -> Result<(), String> {
        set_memory_target(&*self.store, id.domain, mib * 1024).map_err(|error| error.to_string())
    }

    fn measure(&self, status: &mut Status) {
        memory::measure(status, &self.machine);
    }
}

/// Pages that a queue needs to receive by page flipping: a ring of them at the guest, and as many
/// in transit.
const EXCHANGE_PAGES: usize = 2 * netfront::RING_LEN;

/// Which guests may join.
#[derive(Clone)]
struct AdmissionSettings {
    /// The default number of queues of a guest.
    queues: u32,
    guests: HashMap<String, Guest>,
}

impl AdmissionSettings {
    fn new(config: &Config) -> Self {
        let guests = config.guests.iter().map(|guest| (guest.name.clone(), guest.clone()));
        let queues = u32::try_from(config.daemon.workers).unwrap_or(1);
        Self { queues, guests: guests.collect() }
    }
}

/// Admits guests, creates their devices and announces them to the control thread.
struct Admission {
    store: Arc<dyn Store>,
    settings: AdmissionSettings,
    present: Mutex<HashSet<String>>,
    events: Mutex<mpsc::Sender<Event>>,
}

impl Admission {
    fn new(
        settings: &AdmissionSettings,
        store: Arc<dyn Store>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self { store, settings: settings.clone(), present: Mutex::default(), events: events.into() }
    }

    /// Does what libxl does for a new domain.
    fn create_devices(&self, domain: DomId, guest: &Guest) -> Result<(), StoreError> {
        let store = &*self.store;
        create_domain(store, domain, &guest.name)?;
        let mac = guest.mac.map(|mac| mac.to_string()).unwrap_or_default();
        create_vif(store, domain, 0, &mac)?;
        self.describe(domain, guest)?;
        set_memory_target(store, domain, guest.memory_mib * 1024)
    }

    /// The configuration for `pvnet guest`, in the nodes that a domain on Xen uses for it.
    fn describe(&self, domain: DomId, guest: &Guest) -> Result<(), StoreError> {
        let data = format!("/local/domain/{domain}/data");
        let bit = |on| if on { "1" } else { "0" };
        let Features { sg, csum_v4, tso_v4, .. } = guest.features();
        for (key, value) in [
            ("addresses", guest.addresses.join(" ").as_str()),
            ("scatter-gather", bit(sg)),
            ("checksum-offload", bit(csum_v4)),
            ("group-pages", bit(guest.group_pages)),
            ("tcp-segmentation-offload", bit(tso_v4)),
        ] {
            self.store.write(None, &format!("{data}/{key}"), value)?;
        }
        Ok(())
    }

    fn present(&self) -> MutexGuard<'_, HashSet<String>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the control thread an event, and waits for the answer.
    fn ask<T>(&self, event: impl FnOnce(mpsc::Sender<T>) -> Event) -> Option<T> {
        let (answer, answered) = mpsc::channel();
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.send(event(answer)).ok()?;
        answered.recv().ok()
    }
}

impl Toolstack for Admission {
    fn admit(&self, name: &str) -> Result<MemorySize, String> {
        let Some(guest) = self.settings.guests.get(name) else {
            let mut known: Vec<_> = self.settings.guests.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(format!(
                "no guest {name:?} in the configuration (there are: {}); add a [[guest]] and \
                 restart the daemon",
                known.join(", ")
            ));
        };
        if !self.present().insert(name.to_owned()) {
            return Err(format!("guest {name:?} has joined already"));
        }
        let queues = guest.queues.unwrap_or(self.settings.queues) as usize;
        let flip = guest.rx == RxChannel::Flip;
        Ok(MemorySize {
            pages: guest.memory_mib * 256,
            exchange_pages: if flip { queues * EXCHANGE_PAGES } else { 0 },
            page_size: if guest.huge_pages { PageSize::Huge } else { PageSize::Small },
            ..MemorySize::default()
        })
    }

    fn created(&self, domain: DomId, name: &str) -> Result<(), String> {
        let guest = self.settings.guests.get(name).ok_or("unknown guest")?;
        self.create_devices(domain, guest).map_err(|error| error.to_string())?;
        let guest = Box::new(guest.clone());
        let plugged = self.ask(|answer| Event::Plugged { id: only(domain), guest, answer });
        plugged.unwrap_or_else(|| Err("the daemon is stopping".into()))
    }

    fn destroyed(&self, domain: DomId, name: &str) {
        // Waits until no worker uses the domain's memory.
        self.ask(|answer| Event::Unplugged { id: only(domain), answer });
        // An error does not matter: nodes that remain are removed with the domain.
        let _ = remove_domain(&*self.store, domain);
        self.present().remove(name);
    }
}

/// A guest of this platform has one interface.
fn only(domain: DomId) -> VifId {
    VifId { domain, handle: 0 }
}
