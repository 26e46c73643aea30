//! A card of the configuration, with its process while there is one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cdna::message::Permissions;
use cdna::{Announcement, Command, ContextId, Report};
use contexts::{Contexts, Ended, IommuMode, Protection, Unsupported};
use hypervisor::{PAGE_SIZE, PageOwner};
use machine::Domain;
use nic_session::host::Connection;
use nic_session::message::{ToCard, ToDaemon};
use nic_session::{Settings, WireSettings};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing::{info, warn};

use super::slot::{Interrupts, Phase, Planned, Slot};
use crate::config::{Config, Nic, Uplink, Wire};

/// How long a card may take to be quiet after a revocation.
pub(super) const QUIET_LIMIT: Duration = Duration::from_secs(2);

/// A guest's context: its card, and its slot there.
pub(super) type Place = (Arc<NicCard>, usize);

/// A card's process.
pub(super) struct Attached {
    pub(super) connection: Connection,
    pub(super) contexts: Arc<Contexts<Domain>>,
    pub(super) announcement: Announcement,
    /// Vectors that were taken.
    pub(super) vectors: AtomicU64,
}

impl Attached {
    /// Sends a message. A card that does not take it is ended.
    pub(super) fn send(&self, message: &ToCard, files: &[BorrowedFd<'_>]) {
        if let Err(error) = self.connection.send(message, files) {
            warn!(%error, "a card takes no messages: it is ended");
            self.connection.close();
        }
    }

    pub(super) fn command(&self, command: Command) {
        self.send(&ToCard::Command(command), &[]);
    }

    pub(super) fn add_memory(&self, domain: &Domain) {
        let (base, len) = (base(domain), (domain.size().pages * PAGE_SIZE) as u64);
        self.send(&ToCard::AddMemory { base, len }, &[domain.memory_file()]);
    }
}

/// The machine address of a domain's first page.
pub(super) fn base(domain: &Domain) -> u64 {
    domain.machine_pages().start * cdna::address::PAGE_SIZE
}

#[derive(Default)]
pub(super) struct State {
    pub(super) attached: Option<Arc<Attached>>,
    pub(super) slots: Vec<Slot>,
    /// Domains that have ended, whose memory the card still has.
    pub(super) leaving: Vec<Arc<Domain>>,
    /// The number of the process that is the card, or will be.
    process: Option<u32>,
    /// How often a card's process came.
    pub(super) attachments: u64,
}

pub(super) struct NicCard {
    nic: Nic,
    state: Mutex<State>,
    /// The state has changed.
    pub(super) changed: Condvar,
    /// The contexts of the process, for hypercalls: they do not wait for the state.
    contexts: Mutex<Option<Arc<Contexts<Domain>>>>,
    /// One for each slot.
    interrupts: Vec<Interrupts>,
    /// The context of each slot: 1, 2 and so on, then perhaps the driver domain's.
    ids: Vec<ContextId>,
    began: Instant,
}

/// The contexts that a configuration gives away: guests' from 1 on, then the driver domain's.
fn planned(nic: &Nic, config: &Config) -> Vec<Planned> {
    let planned = |guest: &str, mac| Planned {
        // Set below.
        context: ContextId::MANAGEMENT,
        guest: guest.to_owned(),
        index: 0,
        is_queue: false,
        mac,
        permissions: Permissions::default(),
        protection: nic.protection,
        coalescing: nic.interrupts(),
    };
    let guests = config.contexts_of(&nic.name).map(|(guest, index, context)| Planned {
        index,
        protection: context.protection.unwrap_or(nic.protection),
        coalescing: context.interrupts(nic),
        ..planned(&guest.name, context.mac)
    });
    let queues = config.queues_of(&nic.name).filter_map(|(guest, index, vif)| {
        Some(Planned { index, is_queue: true, ..planned(&guest.name, vif.settings.mac?) })
    });
    let guests = guests.chain(queues).zip(1..=u8::MAX);
    let guests =
        guests.map(|(planned, number)| Planned { context: ContextId::new(number), ..planned });
    let is_ours = |uplink: &&Uplink| uplink.nic.as_ref() == Some(&nic.name);
    let uplinks = config.uplinks.iter().filter(is_ours).filter_map(|uplink| {
        Some(Planned {
            permissions: Permissions(Permissions::PROMISCUOUS.0 | Permissions::ANY_SOURCE.0),
            protection: uplink.protection,
            ..planned(&uplink.name, uplink.settings.mac?)
        })
    });
    guests.chain(uplinks).collect()
}

impl NicCard {
    pub(super) fn new(nic: &Nic, config: &Config) -> Self {
        let slots: Vec<_> = planned(nic, config).into_iter().map(Slot::new).collect();
        let ids = slots.iter().map(|slot| slot.planned.context).collect();
        let interrupts = slots.iter().map(|_| Interrupts::default()).collect();
        let state = Mutex::new(State { slots, ..State::default() });
        let (nic, contexts) = (nic.clone(), Mutex::default());
        let (changed, began) = (Condvar::new(), Instant::now());
        Self { nic, state, changed, contexts, interrupts, ids, began }
    }

    pub(super) fn name(&self) -> &str {
        &self.nic.name
    }

    pub(super) fn nic(&self) -> &Nic {
        &self.nic
    }

    pub(super) fn interrupts(&self) -> &[Interrupts] {
        &self.interrupts
    }

    pub(super) fn context_of(&self, slot: usize) -> ContextId {
        self.ids[slot]
    }

    pub(super) fn slot_of(&self, context: ContextId) -> Option<usize> {
        let slot = context.index().checked_sub(1).unwrap_or(self.ids.len().saturating_sub(1));
        self.ids.get(slot).filter(|own| **own == context).map(|_| slot)
    }

    /// The settings that the card's process gets.
    pub(super) fn settings(&self) -> Settings {
        let Nic { contexts, rate_mbps, tso, wire, .. } = &self.nic;
        let Wire { tap, namespace, addresses, checksum_offload } = wire.clone();
        let wire = WireSettings { tap, namespace, addresses, checksum_offload };
        Settings { contexts: *contexts, rate_mbps: *rate_mbps, tso: *tso, wire }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The time for all calls about its contexts: what one call defers, another does when it is due.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The contexts of the card's process, while there is one.
    pub(super) fn contexts(&self) -> Option<Arc<Contexts<Domain>>> {
        self.contexts.lock().clone()
    }

    /// Whether some context defers unmappings, which need a check now and then.
    pub(super) fn has_deferred(&self) -> bool {
        let is_deferred = |slot: &Slot| {
            let mode = slot.planned.protection.mode;
            matches!(mode, Protection::Iommu(IommuMode::Deferred { .. }))
        };
        self.state().slots.iter().any(is_deferred)
    }

    /// A process will be the card, until the result is dropped.
    ///
    /// # Errors
    /// The number of the process that is the card.
    pub(super) fn take_seat(self: &Arc<Self>, process: u32) -> Result<Seat, u32> {
        let mut state = self.state();
        if let Some(other) = state.process {
            return Err(other);
        }
        state.process = Some(process);
        Ok(Seat(self.clone()))
    }

    /// The number of the process that is the card.
    pub(super) fn process(&self) -> Option<u32> {
        self.state().process
    }

    /// Waits until a condition holds, or a time has passed. Returns whether it holds.
    pub(super) fn wait_until(
        &self,
        limit: Duration,
        mut holds: impl FnMut(&State) -> bool,
    ) -> bool {
        let (mut state, deadline) = (self.state(), Instant::now() + limit);
        loop {
            if holds(&state) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// The slots of a guest, each with its index among the guest's contexts.
    pub(super) fn slots_of(&self, guest: &str) -> Vec<(usize, usize)> {
        let state = self.state();
        let slots = state.slots.iter().enumerate();
        let own = |planned: &Planned| planned.guest == guest && !planned.is_queue;
        let own = slots.filter(|(_, slot)| own(&slot.planned));
        own.map(|(number, slot)| (slot.planned.index, number)).collect()
    }

    /// The slot of the context that is the receive queue of a guest's interface, by the interface's index.
    pub(super) fn queue_slot(&self, guest: &str, vif: usize) -> Option<usize> {
        let is_its =
            |planned: &Planned| planned.is_queue && planned.guest == guest && planned.index == vif;
        self.state().slots.iter().position(|slot| is_its(&slot.planned))
    }

    /// Whether the card reaches a guest's memory.
    pub(super) fn reaches(&self, guest: &str) -> bool {
        self.state().slots.iter().any(|slot| slot.planned.guest == guest)
    }
}

/// A process that is a card, or will be.
pub(super) struct Seat(Arc<NicCard>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.detach();
        self.0.state().process = None;
    }
}

pub(super) fn of(state: &mut State, context: ContextId) -> Option<&mut Slot> {
    state.slots.iter_mut().find(|slot| slot.planned.context == context)
}

/// Copies of them. They are sent without a lock, since a guest may be slow to read.
pub(super) struct GuestFiles([OwnedFd; 4]);

impl GuestFiles {
    pub(super) fn copies(files: &[BorrowedFd<'_>; 4]) -> io::Result<Self> {
        let [a, b, c, d] = files.map(|file| file.try_clone_to_owned());
        Ok(Self([a?, b?, c?, d?]))
    }

    pub(super) fn borrowed(&self) -> [BorrowedFd<'_>; 4] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}

impl NicCard {
    /// A process is the card from now on. It has these domains' memory first; then its contexts are assigned to
    /// the guests that want them.
    ///
    /// # Errors
    /// This daemon cannot serve such a card.
    pub(super) fn attach<'a>(
        &self,
        connection: Connection,
        announcement: Announcement,
        domains: impl Iterator<Item = &'a Arc<Domain>>,
    ) -> Result<Arc<Attached>, Unsupported> {
        let contexts = Arc::new(Contexts::new(&announcement)?);
        let mut state = self.state();
        let vectors = AtomicU64::new(0);
        let attached = Arc::new(Attached { connection, contexts, announcement, vectors });
        *self.contexts.lock() = Some(attached.contexts.clone());
        domains.for_each(|domain| attached.add_memory(domain));
        state.attached = Some(attached.clone());
        state.attachments += 1;
        (0..state.slots.len()).for_each(|slot| self.prepare(&mut state, slot));
        info!(card = self.name(), contexts = announcement.contexts, "card connected");
        Ok(attached)
    }

    /// The card's process has ended: no memory is used any more, and the guests' links are down.
    fn detach(&self) {
        let mut state = self.state();
        let Some(attached) = state.attached.take() else { return };
        *self.contexts.lock() = None;
        attached.contexts.card_ended();
        for slot in &mut state.slots {
            if let Some(assignment) = slot.assignment.take() {
                assignment.set_down();
            }
            slot.is_asked = false;
            if let Some(user) = &slot.user {
                user.notify();
            }
        }
        let gone = std::mem::take(&mut state.leaving);
        drop(state);
        drop(gone);
        self.changed.notify_all();
        info!(card = self.name(), "card gone; its guests' links are down until the next one comes");
    }

    /// Serves a message of the card.
    pub(super) fn serve(&self, attached: &Attached, message: ToDaemon) {
        let (mut state, mut gone) = (self.state(), Vec::new());
        match message {
            ToDaemon::Prepared { context, generation } => {
                if let Some(slot) = of(&mut state, context)
                    && let Some(assignment) = &mut slot.assignment
                    && assignment.generation == generation
                    && assignment.phase == Phase::Preparing
                {
                    assignment.phase = Phase::Prepared;
                    if let Some(user) = &slot.user {
                        user.notify();
                    }
                }
            }
            ToDaemon::Report(Report::Revoked { context, generation }) => {
                let ended = attached.contexts.revoked(context, generation);
                gone = self.ended(&mut state, context, ended);
            }
            ToDaemon::Report(Report::Fault { generation, fault }) => {
                let ended = attached.contexts.fault(generation, fault);
                if ended.is_some()
                    && let Some(slot) = of(&mut state, fault.context)
                {
                    let guest = &slot.planned.guest;
                    warn!(card = self.name(), guest, %fault, "protection fault: context stopped");
                    if let Some(user) = &mut slot.user {
                        user.is_barred = true;
                    }
                }
                gone = self.ended(&mut state, fault.context, ended);
            }
            ToDaemon::Report(Report::Statistics { context, statistics }) => {
                if let Some(slot) = of(&mut state, context) {
                    (slot.statistics, slot.is_asked) = (statistics, false);
                }
            }
            ToDaemon::Report(Report::Hello(_)) => warn!(card = self.name(), "a second hello"),
        }
        drop(state);
        drop(gone);
        self.changed.notify_all();
    }

    /// A context's assignment has ended, and the card is quiet. Returns the domains whose memory it has no more.
    fn ended(
        &self,
        state: &mut State,
        context: ContextId,
        ended: Option<Ended>,
    ) -> Vec<Arc<Domain>> {
        if ended.is_none() {
            return Vec::new();
        }
        if let Some(slot) = of(state, context) {
            slot.assignment = None;
            if let Some(user) = &slot.user {
                user.notify();
            }
        }
        let gone = self.remove_memory(state);
        if let Some(slot) = self.slot_of(context) {
            self.prepare(state, slot);
        }
        gone
    }
}
