//! Admission on platform `machine`: who may join, and what it gets.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hypervisor::DomId;
use machine::toolstack::{create_domain, create_vif, remove_domain, set_memory_target};
use machine::{Admitted, Applicant, MemorySize, Session, Token, Toolstack};
use netback::RxChannel;
use offload::Features;
use parking_lot::{Mutex, RwLock};
use shm::PageSize;
use token_bucket::Pace;
use xenstore::{Store, StoreError};

use crate::config::{Config, Guest, Vif, default_queues};
use crate::daemon::backends::VifId;
use crate::daemon::error::Error;
use crate::daemon::event::{Event, NewInterface, ask, request};
use crate::daemon::limits::{Cost, Held, Limits, PortsCost};
use crate::daemon::nics::Nics;

/// Pages that a queue needs to receive by page flipping: a ring of them at the guest, and as many
/// in transit.
const EXCHANGE_PAGES: usize = 2 * netfront::RING_LEN;

/// Pages of the grant table for a queue: references for two rings of pages, the rings themselves, the
/// header channel, and a control ring.
const GRANT_PAGES: usize = 2;

/// Joins of a guest at once.
const JOINS: u32 = 20;
/// Joins of a guest per second after that: memory is made for each, and a guest that joins and leaves
/// in a loop would keep a CPU busy.
const JOINS_PER_SECOND: u32 = 1;

/// Which guests may join.
#[derive(Clone)]
pub(super) struct AdmissionSettings {
    /// The default number of queues of a guest.
    queues: u32,
    guests: HashMap<String, Guest>,
    /// How many interfaces of each guest receive through a card's context that the driver domain drives.
    card_queues: HashMap<String, usize>,
    /// What the virtual machines' ports may take.
    ports: PortsCost,
    /// The secrets of those guests that have one.
    tokens: HashMap<String, Token>,
}

impl AdmissionSettings {
    /// Reads the guests' secrets.
    ///
    /// # Errors
    /// A secret cannot be read, or everybody can read it.
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let guests = config.guests.iter().map(|guest| (guest.name.clone(), guest.clone()));
        let queues = default_queues();
        let mut tokens = HashMap::new();
        for guest in &config.guests {
            if let Some(path) = &guest.token_file {
                let token = read_token(path).map_err(Error::path(path))?;
                tokens.insert(guest.name.clone(), token);
            }
        }
        let mut card_queues = HashMap::new();
        for (guest, ..) in config.nics.iter().flat_map(|nic| config.queues_of(&nic.name)) {
            *card_queues.entry(guest.name.clone()).or_default() += 1;
        }
        let ports = PortsCost::of(&config.ports);
        Ok(Self { queues, guests: guests.collect(), card_queues, ports, tokens })
    }

    /// The guest that an applicant is, if it proves it.
    fn identify(&self, applicant: &Applicant) -> Result<&Guest, String> {
        let Applicant { name, token, process, user } = applicant;
        let Some(guest) = self.guests.get(name) else {
            let mut known: Vec<_> = self.guests.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(format!(
                "no guest {name:?} in the configuration (there are: {}); add a [[guest]], \
                 then `pvnet reload`",
                known.join(", ")
            ));
        };
        if guest.uid.is_some_and(|uid| uid != *user) {
            return Err(format!(
                "guest {name:?} belongs to another user than {user}, as which process {process} \
                 runs; see its uid in the configuration"
            ));
        }
        match (self.tokens.get(name), token) {
            (None, _) => Ok(guest),
            (Some(own), Some(shown)) if own == shown => Ok(guest),
            (Some(_), Some(_)) => Err(format!("the token is not that of guest {name:?}")),
            (Some(_), None) => Err(format!(
                "guest {name:?} must show a token: `pvnet guest --token-file FILE {name}`"
            )),
        }
    }
}

fn read_token(path: &Path) -> io::Result<Token> {
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(io::Error::other("everybody can use this token; `chmod o= FILE` forbids it"));
    }
    Token::read(path)
}

/// The guests that may join, and those that have.
#[derive(Clone)]
pub(super) struct GuestList {
    settings: Arc<RwLock<AdmissionSettings>>,
    present: Present,
    /// Guests of the configuration that have proven hostile, and by what.
    refused: Arc<Mutex<HashMap<String, String>>>,
}

impl GuestList {
    /// Nobody has joined yet.
    pub(super) fn new(settings: AdmissionSettings) -> Self {
        let (present, refused) = (Present::default(), Arc::default());
        Self { settings: Arc::new(settings.into()), present, refused }
    }

    /// Other guests may join from now on. Those that have joined stay. One that was refused may join when it was away from the configuration.
    pub(super) fn replace(&self, settings: AdmissionSettings) {
        self.refused.lock().retain(|name, _| settings.guests.contains_key(name));
        *self.settings.write() = settings;
    }

    /// A guest was found to do this on purpose: it must not join again.
    pub(super) fn refuse(&self, name: &str, what: &str) {
        self.refused.lock().insert(name.to_owned(), what.to_owned());
    }

    pub(super) fn refused(&self, name: &str) -> Option<String> {
        self.refused.lock().get(name).cloned()
    }

    /// Ends the session of a guest, if it has joined.
    pub(super) fn end(&self, name: &str) {
        let present = self.present.0.lock();
        if let Some(session) = present.get(name).and_then(|presence| presence.session.as_ref()) {
            session.end();
        }
    }
}

/// Admits guests, creates their devices and announces them to the control thread.
pub(super) struct Admission {
    store: Arc<dyn Store>,
    guests: GuestList,
    limits: Arc<Limits>,
    nics: Arc<Nics>,
    events: Mutex<mpsc::Sender<Event>>,
}

/// The guests that have joined once.
#[derive(Clone, Default)]
struct Present(Arc<Mutex<HashMap<String, Presence>>>);

struct Presence {
    /// The guest's process, while it is there.
    process: Option<u32>,
    /// Its session, from when it was admitted.
    session: Option<Session>,
    joins: Pace,
}

impl Present {
    /// Notes that a guest has joined, until the result is dropped.
    fn enter(&self, name: &str, process: u32) -> Result<PresentName, String> {
        let now = Instant::now();
        let mut present = self.0.lock();
        let fresh = || {
            let joins = Pace::new(JOINS, JOINS_PER_SECOND, now);
            Presence { process: None, session: None, joins }
        };
        let presence = present.entry(name.to_owned()).or_insert_with(fresh);
        if let Some(other) = presence.process {
            return Err(format!("guest {name:?} has joined already: it is process {other}"));
        }
        if !presence.joins.wait(now).is_zero() {
            return Err(format!("guest {name:?} joins too often; try again in a second"));
        }
        presence.joins.count(1, now);
        presence.process = Some(process);
        Ok(PresentName { present: self.clone(), name: name.to_owned() })
    }
}

/// A name in use.
struct PresentName {
    present: Present,
    name: String,
}

impl Drop for PresentName {
    fn drop(&mut self) {
        if let Some(presence) = self.present.0.lock().get_mut(&self.name) {
            (presence.process, presence.session) = (None, None);
        }
    }
}

pub(super) struct JoinedGuest {
    config: Guest,
    _name: PresentName,
    _held: Held,
}

impl Admission {
    pub(super) fn new(
        guests: &GuestList,
        store: Arc<dyn Store>,
        nics: Arc<Nics>,
        limits: Arc<Limits>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self { store, guests: guests.clone(), limits, nics, events: events.into() }
    }

    /// Does what libxl does for a new domain.
    fn create_devices(&self, domain: DomId, guest: &Guest) -> Result<(), StoreError> {
        let store = &*self.store;
        create_domain(store, domain, &guest.name)?;
        for (handle, vif) in (0..).zip(&guest.vifs) {
            let mac = vif.settings.mac.map(|mac| mac.to_string()).unwrap_or_default();
            create_vif(store, domain, handle, &mac)?;
            self.describe(domain, handle, vif)?;
        }
        for (number, context) in guest.contexts.iter().enumerate() {
            let addresses = format!("/local/domain/{domain}/data/context/{number}/addresses");
            store.write(None, &addresses, &context.addresses.join(" "))?;
        }
        let group_pages = format!("/local/domain/{domain}/data/group-pages");
        store.write(None, &group_pages, bit(guest.group_pages))?;
        let copy_pool = format!("/local/domain/{domain}/data/copy-pool");
        store.write(None, &copy_pool, &guest.copy_pool.to_string())?;
        set_memory_target(store, domain, guest.memory_mib * 1024)
    }

    /// A vif's configuration for `pvnet guest`, below the node that a domain on Xen uses for such.
    fn describe(&self, domain: DomId, handle: u32, vif: &Vif) -> Result<(), StoreError> {
        let data = format!("/local/domain/{domain}/data/vif/{handle}");
        let Features { sg, csum_v4, tso_v4, .. } = vif.features();
        for (key, value) in [
            ("addresses", vif.settings.addresses.join(" ").as_str()),
            ("scatter-gather", bit(sg)),
            ("checksum-offload", bit(csum_v4)),
            ("tcp-segmentation-offload", bit(tso_v4)),
        ] {
            self.store.write(None, &format!("{data}/{key}"), value)?;
        }
        Ok(())
    }

    /// Announces a vif of a new domain to the control thread, and waits until it serves the vif.
    fn plug(&self, interface: NewInterface) -> Result<(), String> {
        let interface = Box::new(interface);
        request(&self.events(), Duration::MAX, |answer| Event::Plugged { interface, answer })
    }

    fn events(&self) -> mpsc::Sender<Event> {
        self.events.lock().clone()
    }
}

/// A flag's value in the store.
fn bit(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// The memory of a guest whose vifs have `queues` queues by default.
fn memory_size(guest: &Guest, queues: u32, is_reached_by_card: bool) -> MemorySize {
    let vifs = || guest.vifs.iter();
    let flipping = vifs().filter(|vif| vif.rx == RxChannel::Flip);
    let exchange_pages = flipping.map(|vif| vif.queues(queues) * EXCHANGE_PAGES).sum();
    let all_queues: usize = vifs().map(|vif| vif.queues(queues)).sum();
    // Pages that are flipped are mapped later.
    let is_fixed = !guest.balloon && exchange_pages == 0;
    MemorySize {
        pages: guest.memory_mib * 256,
        grant_pages: MemorySize::default().grant_pages.max(all_queues * GRANT_PAGES),
        exchange_pages,
        page_size: if guest.huge_pages { PageSize::Huge } else { PageSize::Small },
        sealed: is_fixed && !is_reached_by_card,
        // A card that starts later must map it.
        secret: is_fixed && is_reached_by_card && !guest.huge_pages,
    }
}

impl Toolstack for Admission {
    type Guest = JoinedGuest;

    fn admit(&self, applicant: &Applicant) -> Result<Admitted<JoinedGuest>, String> {
        let settings = self.guests.settings.read();
        let config = settings.identify(applicant)?.clone();
        let card_queues = settings.card_queues.get(&config.name).copied().unwrap_or_default();
        let (queues, guests, ports) = (settings.queues, settings.guests.len(), settings.ports);
        drop(settings);
        if let Some(what) = self.guests.refused(&config.name) {
            return Err(format!(
                "guest {:?} is refused: {what}; take it out of the configuration, `pvnet reload`, and add it again",
                config.name
            ));
        }
        let name = self.guests.present.enter(&config.name, applicant.process)?;
        let size = memory_size(&config, queues, self.nics.reaches(&config.name));
        let cost = Cost::of(&config, queues, size.exchange_pages, card_queues);
        let held = self
            .limits
            .take(&cost, guests, ports)
            .map_err(|why| format!("guest {:?} {why}", config.name))?;
        let share = held.share();
        Ok(Admitted { size, share, guest: JoinedGuest { config, _name: name, _held: held } })
    }

    fn opened(&self, JoinedGuest { config, .. }: &JoinedGuest, session: Session) {
        if let Some(presence) = self.guests.present.0.lock().get_mut(&config.name) {
            presence.session = Some(session);
        }
    }

    fn created(
        &self,
        domain: DomId,
        JoinedGuest { config, .. }: &JoinedGuest,
    ) -> Result<(), String> {
        self.create_devices(domain, config).map_err(|error| error.to_string())?;
        for ((id, name), vif) in vifs(domain, config).zip(config.vif_names()).zip(&config.vifs) {
            let (guest, vif) = (config.clone(), vif.clone());
            self.plug(NewInterface { id, guest, name, vif })?;
        }
        self.nics.joined(&config.name, domain);
        Ok(())
    }

    fn open_contexts(
        &self,
        domain: DomId,
        JoinedGuest { config, .. }: &JoinedGuest,
    ) -> Result<OwnedFd, String> {
        self.nics.open_channel(&config.name, domain)
    }

    fn destroyed(&self, domain: DomId, JoinedGuest { config, .. }: &JoinedGuest) {
        self.nics.left(domain);
        for id in vifs(domain, config) {
            // Waits until no worker uses the domain's memory.
            let _ = ask(&self.events(), Duration::MAX, |answer| Event::Unplugged { id, answer });
        }
        // An error does not matter: nodes that remain are removed with the domain.
        let _ = remove_domain(&*self.store, domain);
    }
}

fn vifs(domain: DomId, guest: &Guest) -> impl Iterator<Item = VifId> {
    (0..).zip(&guest.vifs).map(move |(handle, _)| VifId { domain, handle })
}

#[cfg(test)]
mod tests;
