//! A card's status.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cdna::completion::Status;
use cdna::{Command, DropReason, Statistics};
use contexts::{IommuMode, Protection};
use control_socket::{ContextState, ContextStatus, FaultStatus, NicStatus, PortState, Traffic};

use super::card::{NicCard, State};
use super::slot::{Interrupts, Phase, Slot};

/// How long a card may take to say what it has counted. It answers between two steps.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);

/// A protection's name for operators.
fn name(protection: Protection) -> &'static str {
    match protection {
        Protection::None => "none",
        Protection::Hypervisor => "hypervisor",
        Protection::Iommu(IommuMode::Static) => "iommu-static",
        Protection::Iommu(IommuMode::Strict) => "iommu-strict",
        Protection::Iommu(IommuMode::Deferred { .. }) => "iommu-deferred",
    }
}

fn drops(statistics: &Statistics) -> BTreeMap<String, u64> {
    let reasons = [
        ("no_descriptors", DropReason::NoDescriptors),
        ("offload", DropReason::Offload),
        ("false_source", DropReason::FalseSource),
        ("wire", DropReason::Wire),
        ("not_forwarded", DropReason::NotForwarded),
    ];
    let counted =
        reasons.map(|(name, reason)| (name.to_owned(), statistics.drops[reason as usize]));
    counted.into_iter().filter(|(_, count)| *count > 0).collect()
}

impl NicCard {
    /// This card at one moment. Waits for what its process has counted.
    pub(super) fn status(&self) -> NicStatus {
        self.ask();
        let is_answered = |state: &State| state.slots.iter().all(|slot| !slot.is_asked);
        self.wait_until(ANSWER_LIMIT, is_answered);
        let process = self.process();
        let state = self.state();
        let attached = state.attached.as_ref();
        let (faults, newest) =
            attached.map(|attached| attached.contexts.faults()).unwrap_or_default();
        let guest = |context| {
            let slot = self.slot_of(context).and_then(|slot| state.slots.get(slot));
            slot.map_or_else(String::new, |slot| slot.planned.guest.clone())
        };
        let newest_faults = newest.iter().map(|record| FaultStatus {
            context: record.fault.context.number(),
            guest: guest(record.fault.context),
            reason: record.fault.to_string(),
        });
        let contexts = state.slots.iter().zip(self.interrupts());
        NicStatus {
            name: self.name().to_owned(),
            process,
            state: if attached.is_some() { PortState::Up } else { PortState::Down },
            wire: self.nic().wire.tap.clone(),
            rate_mbps: self.nic().rate_mbps,
            attachments: state.attachments,
            vectors: attached.map_or(0, |attached| attached.vectors.load(Ordering::Relaxed)),
            faults,
            newest_faults: newest_faults.collect(),
            contexts: contexts
                .map(|(slot, interrupts)| {
                    let status = attached.and_then(|a| a.contexts.status(slot.planned.context));
                    context(slot, interrupts, status, attached.is_some())
                })
                .collect(),
        }
    }

    /// Asks the card what it has counted of the contexts that it serves.
    fn ask(&self) {
        let mut state = self.state();
        let Some(attached) = state.attached.clone() else { return };
        for slot in &mut state.slots {
            let serves = |phase| matches!(phase, Phase::Serving);
            if slot.assignment.as_ref().is_some_and(|assignment| serves(assignment.phase)) {
                slot.is_asked = true;
                attached.command(Command::Statistics { context: slot.planned.context });
            }
        }
    }
}

fn state(slot: &Slot, is_attached: bool, ended: Option<contexts::Reason>) -> ContextState {
    let Some(user) = &slot.user else {
        return match &slot.assignment {
            Some(_) => ContextState::Revoking,
            None => ContextState::Free,
        };
    };
    match (&slot.assignment, ended) {
        (Some(assignment), _) => match assignment.phase {
            Phase::Serving if assignment.status() == Status::Up => ContextState::Up,
            Phase::Preparing | Phase::Prepared | Phase::Serving => ContextState::Preparing,
            Phase::Ending => ContextState::Revoking,
        },
        (None, Some(contexts::Reason::Fault(_))) if user.is_barred => ContextState::Faulted,
        (None, _) if user.is_barred => ContextState::Revoked,
        (None, _) if is_attached && user.is_wanting => ContextState::Preparing,
        (None, _) => ContextState::Down,
    }
}

fn context(
    slot: &Slot,
    interrupts: &Interrupts,
    status: Option<contexts::ContextStatus>,
    is_attached: bool,
) -> ContextStatus {
    let Slot { planned, statistics, .. } = slot;
    let ended = status.and_then(|status| status.ended).map(|ended| ended.reason);
    let state = state(slot, is_attached, ended);
    let is_past = matches!(state, ContextState::Faulted | ContextState::Revoked);
    let reason = ended.filter(|_| is_past).map(|reason| reason.to_string());
    let Statistics { tx_frames, tx_bytes, rx_frames, rx_bytes, .. } = *statistics;
    ContextStatus {
        context: planned.context.number(),
        guest: planned.guest.clone(),
        domain: slot.user.as_ref().map(|user| user.domain.id().0),
        memory: None,
        mac: planned.mac.to_string(),
        protection: name(planned.protection.mode).to_owned(),
        state,
        reason,
        generation: status.map_or(0, |status| status.generation),
        references: status.map_or(0, |status| status.references as u64),
        pending: status.map_or([0; 2], |status| status.pending),
        tx: Traffic { frames: tx_frames, bytes: tx_bytes },
        rx: Traffic { frames: rx_frames, bytes: rx_bytes },
        drops: drops(statistics),
        events: statistics.events,
        vectored: statistics.interrupts,
        interrupts: interrupts.sent(),
        calls: status.map_or(0, |status| status.calls),
        descriptors: status.map_or(0, |status| status.descriptors),
        mapped: status.map_or(0, |status| status.mapped),
        refused: status.map_or(0, |status| status.refused),
    }
}
