//! What a card's process does: it comes, answers and ends.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use cdna::{Announcement, ContextId, Report};
use contexts::{Contexts, Ended, Unsupported};
use machine::Domain;
use nic_session::host::Connection;
use nic_session::message::ToDaemon;
use tracing::{info, warn};

use super::card::{Attached, NicCard, State, of};
use super::slot::Phase;

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
        self.set_contexts(Some(attached.contexts.clone()));
        domains.for_each(|domain| attached.add_memory(domain));
        state.attached = Some(attached.clone());
        state.attachments += 1;
        (0..state.slots.len()).for_each(|slot| self.prepare(&mut state, slot));
        info!(card = self.name(), contexts = announcement.contexts, "card connected");
        Ok(attached)
    }

    fn set_contexts(&self, contexts: Option<Arc<Contexts<Domain>>>) {
        *self.contexts.lock().unwrap_or_else(PoisonError::into_inner) = contexts;
    }

    /// The card's process has ended: no memory is used any more, and the guests' links are down.
    pub(super) fn detach(&self) {
        let mut state = self.state();
        let Some(attached) = state.attached.take() else { return };
        self.set_contexts(None);
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
        state.leaving.clear();
        drop(state);
        self.changed.notify_all();
        info!(card = self.name(), "card gone; its guests' links are down until the next one comes");
    }

    /// Serves a message of the card.
    pub(super) fn serve(&self, attached: &Attached, message: ToDaemon) {
        let mut state = self.state();
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
                self.ended(&mut state, context, ended);
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
                self.ended(&mut state, fault.context, ended);
            }
            ToDaemon::Report(Report::Statistics { context, statistics }) => {
                if let Some(slot) = of(&mut state, context) {
                    (slot.statistics, slot.is_asked) = (statistics, false);
                }
            }
            ToDaemon::Report(Report::Hello(_)) => warn!(card = self.name(), "a second hello"),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A context's assignment has ended, and the card is quiet.
    fn ended(&self, state: &mut State, context: ContextId, ended: Option<Ended>) {
        if ended.is_none() {
            return;
        }
        if let Some(slot) = of(state, context) {
            slot.assignment = None;
            if let Some(user) = &slot.user {
                user.notify();
            }
        }
        self.remove_memory(state);
        if let Some(slot) = self.slot_of(context) {
            self.prepare(state, slot);
        }
    }
}
