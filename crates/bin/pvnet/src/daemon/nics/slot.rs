//! A context of a card, as the configuration gives it to a guest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cdna::completion::{self, Status};
use cdna::message::Permissions;
use cdna::{ContextId, Statistics};
use hypervisor::{DomId, EventChannel};
use machine::{Domain, HostEvent};
use nic_session::channel::{Coalescing, Mappings};
use nic_session::files::Files;
use parking_lot::Mutex;
use token_bucket::Pace;
use wire::ethernet::MacAddr;

use crate::config::Protection;

/// How often a context may be assigned at once: to a guest that starts again, or to another process of the card.
const ASSIGNMENTS: u32 = 32;
/// Assignments per second after that. Each takes files, and time of the card in which it serves nobody; with a static table also an entry
/// for each page of the guest.
const ASSIGNMENTS_PER_SECOND: u32 = 2;

/// What the configuration says of a context.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) context: ContextId,
    /// Whose it is: a guest's, or an uplink's of the driver domain.
    pub(super) guest: String,
    /// Its index among the guest's contexts, or of the interface whose receive queue it is.
    pub(super) index: usize,
    /// Whether the driver domain drives it, for frames that go into the guest's buffers.
    pub(super) is_queue: bool,
    pub(super) mac: MacAddr,
    pub(super) permissions: Permissions,
    pub(super) protection: Protection,
    pub(super) coalescing: Coalescing,
}

impl Planned {
    /// Who maps its buffers.
    pub(super) fn mappings(&self) -> Mappings {
        use contexts::{IommuMode, Protection};
        match self.protection.mode {
            Protection::Iommu(IommuMode::Strict | IommuMode::Deferred { .. }) => {
                Mappings::PerBuffer
            }
            _ => Mappings::Static,
        }
    }
}

/// A guest's process that uses a context.
pub(super) struct User {
    pub(super) domain: Arc<Domain>,
    /// Tells the guest that the assignment may have changed.
    pub(super) changes: HostEvent,
    /// It wants the context.
    pub(super) is_wanting: bool,
    /// It gets the context no more, until the guest starts again: it was taken away, or its guest did wrong.
    pub(super) is_barred: bool,
}

impl User {
    pub(super) fn notify(&self) {
        // A guest that has gone needs no notice.
        let _ = self.changes.notify();
    }
}

/// How far an assignment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The card maps the files.
    Preparing,
    /// The guest may map the files.
    Prepared,
    /// The card serves it.
    Serving,
    /// The card was told to revoke it.
    Ending,
}

/// A context that a domain has.
pub(super) struct Assignment {
    pub(super) owner: DomId,
    pub(super) generation: u32,
    pub(super) start: u32,
    pub(super) files: Files,
    pub(super) phase: Phase,
}

impl Assignment {
    /// The status that the guest sees.
    pub(super) fn status(&self) -> Status {
        let word = self.files.completion().read::<u32>(completion::STATUS);
        word.ok().and_then(Status::from_word).unwrap_or_default()
    }

    /// The card has ended, so the daemon says what it would have said.
    pub(super) fn set_down(&self) {
        // The page exists.
        let _ = self.files.completion().write(completion::STATUS, Status::Down as u32);
    }
}

/// A context of a card.
pub(super) struct Slot {
    pub(super) planned: Planned,
    pub(super) user: Option<User>,
    pub(super) assignment: Option<Assignment>,
    /// The card's counters, as of the last time that it was asked.
    pub(super) statistics: Statistics,
    /// Its counters were asked for, and have not come.
    pub(super) is_asked: bool,
    /// Of its assignments. A guest that joins again has what is left.
    pub(super) pace: Pace,
}

impl Slot {
    pub(super) fn new(planned: Planned) -> Self {
        let statistics = Statistics::default();
        let pace = Pace::new(ASSIGNMENTS, ASSIGNMENTS_PER_SECOND, Instant::now());
        Self { planned, user: None, assignment: None, statistics, is_asked: false, pace }
    }

    /// Whether a domain uses it.
    pub(super) fn is_used_by(&self, domain: DomId) -> bool {
        self.user.as_ref().is_some_and(|user| user.domain.id() == domain)
    }
}

/// The virtual interrupts of a context. They are sent without the lock of the card's state.
#[derive(Default)]
pub(super) struct Interrupts {
    event: Mutex<Option<HostEvent>>,
    sent: AtomicU64,
}

impl Interrupts {
    /// From now on they go here.
    pub(super) fn set(&self, event: Option<HostEvent>) {
        *self.event.lock() = event;
    }

    /// Interrupts the guest, if there is one.
    pub(super) fn send(&self) {
        if let Some(event) = &*self.event.lock() {
            self.sent.fetch_add(1, Ordering::Relaxed);
            // A guest that has gone needs no interrupt.
            let _ = event.notify();
        }
    }

    /// How many were sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
