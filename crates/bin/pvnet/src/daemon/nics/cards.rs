//! All cards of the configuration.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cdna::Announcement;
use contexts::Unsupported;
use control_socket::NicStatus;
use hypervisor::{DomId, Hypervisor};
use machine::{Domain, Machine};
use nic_session::host::Connection;
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};

use super::card::{Attached, NicCard, Place};
use super::channel::Channel;
use crate::config::Config;
use crate::daemon::thread::spawn_for_client;

/// All cards.
pub struct Nics {
    machine: Machine,
    cards: Vec<Arc<NicCard>>,
    /// The domains whose memory is in the machine as the cards see it, with their guests: those with contexts.
    domains: Mutex<Vec<(String, Arc<Domain>)>>,
    /// The channels of guests, of which each has one at a time.
    channels: Mutex<HashMap<DomId, Arc<OwnedFd>>>,
}

impl Nics {
    /// The cards of a configuration. None of them is there yet.
    pub fn new(config: &Config, machine: &Machine) -> Arc<Self> {
        let cards = config.nics.iter().map(|nic| Arc::new(NicCard::new(nic, config)));
        let (machine, cards) = (machine.clone(), cards.collect());
        let (domains, channels) = (Mutex::default(), Mutex::default());
        Arc::new(Self { machine, cards, domains, channels })
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The contexts of a guest, by their index among the guest's.
    fn places(&self, guest: &str) -> Vec<Place> {
        let of_card = |card: &Arc<NicCard>| {
            let card = card.clone();
            card.slots_of(guest).into_iter().map(move |(index, slot)| (index, (card.clone(), slot)))
        };
        let mut places: Vec<_> = self.cards.iter().flat_map(of_card).collect();
        places.sort_by_key(|(index, _)| *index);
        places.into_iter().map(|(_, place)| place).collect()
    }

    /// Whether a card reaches a guest's memory.
    pub fn reaches(&self, guest: &str) -> bool {
        self.cards.iter().any(|card| card.reaches(guest))
    }

    /// The context that is the receive queue of a guest's interface, by the interface's index.
    pub(super) fn queue_place(&self, guest: &str, vif: usize) -> Option<Place> {
        self.cards.iter().find_map(|card| Some((card.clone(), card.queue_slot(guest, vif)?)))
    }

    /// The only context of an uplink.
    pub(super) fn place(&self, uplink: &str) -> Result<Place, String> {
        self.places(uplink).pop().ok_or_else(|| format!("no card has a context for {uplink:?}"))
    }

    /// A guest has got its domain: all cards get its memory, if it has contexts.
    pub fn joined(&self, guest: &str, domain: DomId) {
        if !self.reaches(guest) {
            return;
        }
        let Ok(domain) = self.machine.peer(domain) else { return };
        let mut domains = self.domains.lock();
        self.cards.iter().for_each(|card| card.add_memory(&domain));
        domains.push((guest.to_owned(), domain));
    }

    /// A guest's domain has ended: its contexts are taken away. Its memory stays until the cards are quiet.
    pub fn left(&self, domain: DomId) {
        if let Some(channel) = self.channels.lock().get(&domain) {
            // Another process may hold the other end. If it fails, it has ended already.
            let _ = shutdown(&**channel, Shutdown::Both);
        }
        let mut domains = self.domains.lock();
        let Some(place) = domains.iter().position(|(_, other)| other.id() == domain) else {
            return;
        };
        let (_, domain) = domains.remove(place);
        self.cards.iter().for_each(|card| card.owner_ended(&domain));
    }

    /// Opens a guest's channel about its contexts. Returns the guest's end.
    ///
    /// # Errors
    /// A sentence for the guest's operator.
    pub fn open_channel(self: &Arc<Self>, guest: &str, domain: DomId) -> Result<OwnedFd, String> {
        let places = self.places(guest);
        if places.is_empty() {
            return Err(format!("guest {guest:?} has no context in the configuration"));
        }
        let failed = |error: &dyn std::fmt::Display| format!("the daemon cannot open it: {error}");
        let (ours, theirs) = seqpacket::pair().map_err(|error| failed(&error))?;
        let ours = Arc::new(ours);
        let mut channels = self.channels.lock();
        if channels.contains_key(&domain) {
            return Err("the guest has its channel already".to_owned());
        }
        let channel = Channel::new(ours.clone(), self.machine.clone(), domain, places);
        let channel = channel.map_err(|error| failed(&error))?;
        let nics = self.clone();
        let serve = move || {
            channel.serve();
            let socket = nics.channels.lock().remove(&domain);
            // Without the lock, as in `Connections::end`.
            drop(socket);
        };
        spawn_for_client("contexts", serve).map_err(|error| failed(&error))?;
        channels.insert(domain, ours);
        Ok(theirs)
    }

    /// Takes away the contexts that a guest has of a card, until the guest starts again.
    pub fn revoke(&self, card: &str, guest: &str) -> Result<(), String> {
        let unknown =
            || format!("no card {card:?} in the configuration (there are: {})", self.names());
        self.card(card).ok_or_else(unknown)?.revoke(guest)
    }

    /// A process is the card from now on: see [`NicCard::attach`].
    pub(super) fn attach(
        &self,
        card: &NicCard,
        connection: Connection,
        announcement: Announcement,
    ) -> Result<Arc<Attached>, Unsupported> {
        // A domain that joins now waits, and is added then.
        let domains = self.domains.lock();
        let all = domains.iter().map(|(_, domain)| domain);
        card.attach(connection, announcement, all)
    }

    /// The names of all cards, for an operator.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.cards.iter().map(|card| card.name()).collect();
        names.join(", ")
    }

    pub(super) fn card(&self, name: &str) -> Option<&Arc<NicCard>> {
        self.cards.iter().find(|card| card.name() == name)
    }

    /// The domain of a guest with contexts, while it is running.
    pub fn domain(&self, guest: &str) -> Option<DomId> {
        self.domains.lock().iter().find(|(name, _)| name == guest).map(|(_, domain)| domain.id())
    }

    /// All cards, for `pvnet status`. Waits a moment for the cards' counters.
    pub fn status(&self) -> Vec<NicStatus> {
        self.cards.iter().map(|card| card.status()).collect()
    }
}
