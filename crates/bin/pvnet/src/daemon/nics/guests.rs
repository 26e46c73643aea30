//! What guests ask about their contexts, and what operators do with them.

use std::io;
use std::sync::Arc;

use cdna::Command;
use contexts::Reason;
use hypervisor::DomId;
use machine::{Domain, HostEvent};
use nic_session::channel::{Assigned, Opened};

use super::card::{GuestFiles, NicCard, QUIET_LIMIT, State, base};
use super::slot::{Assignment, Phase, Slot, User};

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
