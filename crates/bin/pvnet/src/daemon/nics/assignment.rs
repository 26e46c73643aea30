//! A context's way to a guest and back.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cdna::message::Protection;
use cdna::{Command, Statistics};
use contexts::{AssignError, ContextMemory, Reason};
use hypervisor::DomId;
use machine::{Domain, HostEvent};
use nic_session::channel::{Assigned, Opened};
use nic_session::files::Files;
use nic_session::message::ToCard;
use tracing::warn;

use super::card::{Attached, GuestFiles, NicCard, QUIET_LIMIT, State, base, of};
use super::slot::{Assignment, Phase, Planned, Slot, User};

/// The index of the first descriptor of a ring.
const START: u32 = 0;

impl NicCard {
    /// Begins to assign the context of a slot, if it is free, the card is there and a guest wants it.
    pub(super) fn prepare(&self, state: &mut State, number: usize) {
        let Some(attached) = state.attached.clone() else { return };
        let Some(slot) = state.slots.get_mut(number) else { return };
        let Some(user) = &slot.user else { return };
        if slot.assignment.is_some() || !user.is_wanting || user.is_barred {
            return;
        }
        match assign(&attached, &slot.planned, &user.domain) {
            Ok(assignment) => {
                slot.assignment = Some(assignment);
                slot.pace.count(1, Instant::now());
                slot.statistics = Statistics::default();
            }
            // The last assignment ends first.
            Err(Failed::Assign(AssignError::InUse | AssignError::OwnerEnded)) => {}
            Err(error) => {
                let guest = &slot.planned.guest;
                warn!(card = self.name(), guest, %error, "a context cannot be assigned");
            }
        }
    }

    /// How long a guest must wait before it may ask for the context of a slot.
    pub(super) fn wait_of(&self, number: usize) -> Duration {
        let state = self.state();
        state.slots.get(number).map_or(Duration::ZERO, |slot| slot.pace.wait(Instant::now()))
    }

    /// Tells the card to revoke the context of a slot.
    pub(super) fn end(&self, state: &mut State, number: usize, reason: Reason) {
        let Some(attached) = state.attached.clone() else { return };
        let Some(slot) = state.slots.get_mut(number) else { return };
        let context = slot.planned.context;
        let Some(assignment) = &mut slot.assignment else { return };
        if let Some(generation) = attached.contexts.revoke(context, reason) {
            attached.command(Command::Revoke { context, generation });
        }
        assignment.phase = Phase::Ending;
    }

    /// Tells the card to revoke the context of a slot, if the hypervisor has stopped it: the card wrote an
    /// impossible index.
    pub(super) fn revoke_stopped(&self, number: usize) {
        let mut state = self.state();
        let Some(attached) = state.attached.clone() else { return };
        let Some(context) = state.slots.get(number).map(|slot| slot.planned.context) else {
            return;
        };
        let status = attached.contexts.status(context);
        if let Some(contexts::State::Stopped(reason)) = status.map(|status| status.state) {
            warn!(card = self.name(), context = context.number(), %reason, "a context is stopped");
            self.end(&mut state, number, reason);
        }
    }

    /// The card gets a new domain's memory.
    pub(super) fn add_memory(&self, domain: &Domain) {
        if let Some(attached) = &self.state().attached {
            attached.add_memory(domain);
        }
    }

    /// A domain has ended.
    pub(super) fn owner_ended(&self, domain: &Arc<Domain>) {
        let mut state = self.state();
        for (slot, interrupts) in state.slots.iter_mut().zip(self.interrupts()) {
            if slot.is_used_by(domain.id()) {
                slot.user = None;
                interrupts.set(None);
            }
        }
        let Some(attached) = state.attached.clone() else { return };
        for (context, generation) in attached.contexts.owner_ended(domain.id()) {
            attached.command(Command::Revoke { context, generation });
            if let Some(assignment) = of(&mut state, context).and_then(|s| s.assignment.as_mut()) {
                assignment.phase = Phase::Ending;
            }
        }
        state.leaving.push(domain.clone());
        let gone = self.remove_memory(&mut state);
        drop(state);
        drop(gone);
    }

    /// Takes the memory of ended domains from the card, as soon as they have no context. Returns these domains, for the caller to drop without
    /// the lock: to free the memory takes time.
    #[must_use]
    pub(super) fn remove_memory(&self, state: &mut State) -> Vec<Arc<Domain>> {
        let Some(attached) = state.attached.clone() else { return Vec::new() };
        let State { slots, leaving, .. } = state;
        let is_unused = |domain: &mut Arc<Domain>| {
            let is_its = |assignment: &Assignment| assignment.owner == domain.id();
            !slots.iter().any(|slot| slot.assignment.as_ref().is_some_and(is_its))
        };
        let gone: Vec<_> = leaving.extract_if(.., is_unused).collect();
        for domain in &gone {
            attached.send(&ToCard::RemoveMemory { base: base(domain) }, &[]);
        }
        gone
    }
}

/// Why a context was not assigned.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Files(#[from] std::io::Error),
    #[error(transparent)]
    Assign(#[from] AssignError),
}

/// Makes the files of a context and sends them to the card.
fn assign(
    attached: &Attached,
    planned: &Planned,
    domain: &Arc<Domain>,
) -> Result<Assignment, Failed> {
    let (context, protection) = (planned.context, planned.protection.mode);
    let io_pages = match protection.for_card() {
        Protection::Iommu => contexts::Assignment::pages_of(&**domain),
        Protection::None | Protection::Hypervisor => 0,
    };
    let files = Files::create(protection.for_card(), START, iommu::table_len(io_pages))?;
    let memory = ContextMemory {
        rings: files.rings().clone(),
        completions: files.completion().clone(),
        table: files.table().cloned(),
    };
    let assignment =
        contexts::Assignment { owner: domain, protection, memory, start: START, io_pages };
    let generation = attached.contexts.assign(context, assignment)?;
    let cache_entries = planned.protection.cache_entries;
    attached.send(&ToCard::Prepare { context, generation, cache_entries }, &files.for_card());
    let (owner, phase) = (domain.id(), Phase::Preparing);
    Ok(Assignment { owner, generation, start: START, files, phase })
}

impl NicCard {
    /// A guest uses the context of a slot from now on.
    pub(super) fn open(
        &self,
        slot: usize,
        domain: &Arc<Domain>,
        changes: HostEvent,
        interrupts: HostEvent,
    ) -> Opened {
        let mut state = self.state();
        let planned = state.slots[slot].planned.clone();
        let is_barred = state.slots[slot]
            .user
            .as_ref()
            .is_some_and(|user| user.is_barred && user.domain.id() == domain.id());
        let user = User { domain: domain.clone(), changes, is_wanting: true, is_barred };
        state.slots[slot].user = Some(user);
        self.interrupts()[slot].set(Some(interrupts));
        self.prepare(&mut state, slot);
        Opened {
            mac: planned.mac,
            base: base(domain),
            protection: planned.protection.mode.for_card(),
            mappings: planned.mappings(),
            coalescing: planned.coalescing,
        }
    }

    /// The files of a slot's assignment, for the domain that uses it. None if there is none, or if the guest has
    /// mapped them: then they are sealed.
    pub(super) fn files(
        &self,
        number: usize,
        domain: DomId,
    ) -> io::Result<Option<(Assigned, GuestFiles)>> {
        let mut state = self.state();
        let attached = state.attached.clone();
        let Some(slot) = state.slots.get_mut(number) else { return Ok(None) };
        let Some(user) = slot.user.as_mut().filter(|user| user.domain.id() == domain) else {
            return Ok(None);
        };
        user.is_wanting = true;
        let is_ready = |assignment: &&Assignment| {
            assignment.phase == Phase::Prepared && assignment.owner == domain
        };
        let Some((assignment, attached)) = slot.assignment.as_ref().filter(is_ready).zip(attached)
        else {
            self.prepare(&mut state, number);
            return Ok(None);
        };
        let Assignment { generation, start, ref files, .. } = *assignment;
        let features = attached.announcement.features;
        let files = GuestFiles::copies(&files.for_guest()?)?;
        Ok(Some((Assigned { generation, start, features }, files)))
    }

    /// The guest has mapped the files of an assignment: the card serves the context from now on.
    pub(super) fn mapped(&self, number: usize, domain: DomId, generation: u32) -> io::Result<()> {
        let mut state = self.state();
        let attached = state.attached.clone();
        let Some(slot) = state.slots.get_mut(number) else { return Ok(()) };
        let Slot { planned, assignment, .. } = slot;
        let is_its = |assignment: &&mut Assignment| {
            let Assignment { owner, phase, generation: own, .. } = **assignment;
            owner == domain && own == generation && phase == Phase::Prepared
        };
        let Some((assignment, attached)) = assignment.as_mut().filter(is_its).zip(attached) else {
            return Ok(());
        };
        assignment.files.mapped()?;
        assignment.phase = Phase::Serving;
        attached.command(Command::Assign(cdna::message::Assignment {
            context: planned.context,
            generation,
            mac: planned.mac,
            permissions: planned.permissions,
            protection: planned.protection.mode.for_card(),
            start: assignment.start,
        }));
        Ok(())
    }

    /// The guest gives a context back. Returns whether the card is quiet.
    pub(super) fn close(&self, number: usize, domain: DomId) -> bool {
        let mut state = self.state();
        let Some(slot) = state.slots.get_mut(number) else { return true };
        match &mut slot.user {
            Some(user) if user.domain.id() == domain => user.is_wanting = false,
            _ => return true,
        }
        self.end(&mut state, number, Reason::Requested);
        drop(state);
        self.wait_until(QUIET_LIMIT, |state| state.slots[number].assignment.is_none())
    }

    /// Takes away the contexts of a guest, until the guest starts again.
    pub(super) fn revoke(&self, guest: &str) -> Result<(), String> {
        let slots = self.slots_of(guest);
        if slots.is_empty() {
            return Err(format!("guest {guest:?} has no context of card {:?}", self.name()));
        }
        let mut state = self.state();
        let mut is_used = false;
        for (_, number) in &slots {
            if let Some(user) = &mut state.slots[*number].user {
                (user.is_barred, is_used) = (true, true);
            }
            self.end(&mut state, *number, Reason::Requested);
        }
        drop(state);
        if !is_used {
            return Err(format!("guest {guest:?} is not running, and uses no context"));
        }
        let is_quiet = |state: &State| {
            slots.iter().all(|(_, number)| state.slots[*number].assignment.is_none())
        };
        match self.wait_until(QUIET_LIMIT, is_quiet) {
            true => Ok(()),
            false => {
                Err(format!("card {:?} does not answer; `pvnet status` shows more", self.name()))
            }
        }
    }
}
