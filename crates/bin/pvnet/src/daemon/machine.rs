//! The daemon on platform `machine`: it holds the hypervisor and the toolstack as well. Who may
//! join are the guests of the configuration, each once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use hypervisor::{DomId, Store, StoreError};
use machine::toolstack::{create_domain, create_vif, remove_domain, set_memory_target};
use machine::{DRIVER_DOMAIN, Listener, Machine, MemorySize, Toolstack};
use netback::RxChannel;
use offload::Features;
use shm::PageSize;
use tracing::info;

use crate::config::{Config, Guest};
use crate::daemon::backends::{Backends, VifId};
use crate::daemon::control::Event;
use crate::daemon::{Error, House, Inbox, memory, spawn};

/// Runs until told to stop.
pub(super) fn run(
    config: Config,
    events: &mpsc::Sender<Event>,
    inbox: &Inbox,
) -> Result<(), Error> {
    let machine = Machine::new();
    // Bound before the house's own socket: whoever left that one behind is gone.
    let join_socket = config.join_socket();
    let listener = Arc::new(Listener::bind(&join_socket).map_err(Error::path(&join_socket))?);
    let measured = machine.clone();
    let measure = move |status: &mut _| memory::measure(status, &measured);
    let house = House::build(&config, machine.clone(), events, measure)?;
    let store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
    let admission = Arc::new(Admission::new(&config, store.clone(), events.clone()));
    let accepting = {
        let (listener, machine) = (listener.clone(), machine.clone());
        spawn("guests", move || listener.serve(&machine, &admission))?
    };
    let backends = Backends::new(DRIVER_DOMAIN, "vif");
    info!(socket = %join_socket.display(), workers = house.workers(), "ready");
    house.run(config, store, backends, inbox)?;
    listener.stop();
    if accepting.join().is_err() {
        tracing::error!("the thread that accepts guests panicked");
    }
    Ok(())
}

/// Pages that a queue needs to receive by page flipping: a ring of them at the guest, and as many
/// on their way there and back.
const EXCHANGE_PAGES: usize = 2 * netfront::RING_LEN;

/// Admits guests, makes their devices and tells the control thread of them.
struct Admission {
    store: Arc<dyn Store>,
    /// Queues of a guest for which the configuration names no number.
    queues: u32,
    guests: HashMap<String, Guest>,
    present: Mutex<HashSet<String>>,
    events: Mutex<mpsc::Sender<Event>>,
}

impl Admission {
    fn new(config: &Config, store: Arc<dyn Store>, events: mpsc::Sender<Event>) -> Self {
        let guests = config.guests.iter().map(|guest| (guest.name.clone(), guest.clone()));
        let queues = u32::try_from(config.daemon.workers).unwrap_or(1);
        let present = Mutex::default();
        Self { store, queues, guests: guests.collect(), present, events: events.into() }
    }

    /// Does what libxl does for a new domain.
    fn make_devices(&self, domain: DomId, guest: &Guest) -> Result<(), StoreError> {
        let store = &*self.store;
        create_domain(store, domain, &guest.name)?;
        let mac = guest.mac.map(|mac| mac.to_string()).unwrap_or_default();
        create_vif(store, domain, 0, &mac)?;
        self.describe(domain, guest)?;
        set_memory_target(store, domain, guest.memory_mib * 1024)
    }

    /// What `pvnet guest` needs to know, where a domain finds its configuration on Xen.
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

    /// Has the control thread do something, and waits for its answer.
    fn ask<T>(&self, event: impl FnOnce(mpsc::Sender<T>) -> Event) -> Option<T> {
        let (answer, answered) = mpsc::channel();
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.send(event(answer)).ok()?;
        answered.recv().ok()
    }
}

impl Toolstack for Admission {
    fn admit(&self, name: &str) -> Result<MemorySize, String> {
        let Some(guest) = self.guests.get(name) else {
            let mut known: Vec<_> = self.guests.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(format!(
                "no guest {name:?} in the configuration (there are: {}); add a [[guest]] and \
                 restart the daemon",
                known.join(", ")
            ));
        };
        if !self.present().insert(name.to_owned()) {
            return Err(format!("a guest {name:?} is here already"));
        }
        let queues = guest.queues.unwrap_or(self.queues) as usize;
        let flip = guest.rx == RxChannel::Flip;
        Ok(MemorySize {
            pages: guest.memory_mib * 256,
            exchange_pages: if flip { queues * EXCHANGE_PAGES } else { 0 },
            page_size: if guest.huge_pages { PageSize::Huge } else { PageSize::Small },
            ..MemorySize::default()
        })
    }

    fn created(&self, domain: DomId, name: &str) -> Result<(), String> {
        let guest = self.guests.get(name).ok_or("unknown guest")?;
        self.make_devices(domain, guest).map_err(|error| error.to_string())?;
        let guest = Box::new(guest.clone());
        let plugged = self.ask(|answer| Event::Plugged { id: only(domain), guest, answer });
        plugged.unwrap_or_else(|| Err("the daemon is stopping".into()))
    }

    fn destroyed(&self, domain: DomId, name: &str) {
        // Waited for: afterwards the domain's memory is not in use by any worker.
        self.ask(|answer| Event::Unplugged { id: only(domain), answer });
        // What is left goes with the domain.
        let _ = remove_domain(&*self.store, domain);
        self.present().remove(name);
    }
}

/// A guest of this platform has one interface.
fn only(domain: DomId) -> VifId {
    VifId { domain, handle: 0 }
}
