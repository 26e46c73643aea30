//! A guest's hypercalls, without a process between the guest and the hypervisor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cdna::ContextId;
use cdna::call::{ANSWER, Answer};
use cdnafront::{CallError, CallEvents};
use contexts::{Call, Contexts};
use firmware::Card;
use hypervisor::DomId;
use nic_bus::CardBus;
use shm::Region;
use zerocopy::IntoBytes as _;

use super::machine::{Owner, Sink};

/// The card, which a guest's call may have to wait for.
pub type SharedCard = Arc<Mutex<Card<CardBus, Sink>>>;

/// The hypervisor's end of one guest's call page.
pub struct Calls {
    pub card: SharedCard,
    pub contexts: Arc<Contexts<Owner>>,
    pub context: ContextId,
    pub domain: DomId,
    pub page: Arc<Region>,
    pub begin: Instant,
    /// Calls that were answered, of all guests.
    pub answered: Arc<AtomicU64>,
}

impl Calls {
    fn answer(&self, answer: Answer) -> Result<(), CallError> {
        let gone = |_| CallError::Gone;
        // The serial number is written last: the guest reads the rest when it finds that.
        self.page.copy_in(ANSWER + 4, &answer.as_bytes()[4..]).map_err(gone)?;
        let serial = self.page.atomic_u32(ANSWER).map_err(gone)?;
        serial.store(answer.serial, Ordering::Release);
        Ok(())
    }
}

impl CallEvents for Calls {
    fn notify(&mut self) -> Result<(), CallError> {
        self.answered.fetch_add(1, Ordering::Relaxed);
        let mut call = Call::default();
        call.copy(&self.page).map_err(|_| CallError::Gone)?;
        let now = self.begin.elapsed();
        let answer = self.contexts.serve(self.context, self.domain, &call, now, |unmapping| {
            let mut card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
            while !self.contexts.is_unmapped(unmapping) {
                card.bus().serve();
            }
            true
        });
        self.answer(answer)
    }

    fn wait(&mut self) -> Result<(), CallError> {
        // Every call is answered before `notify` returns.
        Err(CallError::Gone)
    }
}
