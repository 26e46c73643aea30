//! A guest's hypercalls without a process between the guest and the hypervisor, its pages, and the card's wire.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use cdna::ContextId;
use cdna::call::{ANSWER, Answer};
use cdnafront::{CallError, CallEvents};
use contexts::{Call, Contexts};
use firmware::{Card, Metadata, Sent, Wire};
use hypervisor::{DomId, PageOwner, PageReferences, PageUser};
use nic_bus::CardBus;
use shm::Region;
use zerocopy::IntoBytes as _;

/// The card. A guest's call may have to wait for it.
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
        // The serial number is written last: the guest reads the rest once it finds the number.
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
        let answer =
            self.contexts.caller(self.context, self.domain).serve(&call, now, |unmapping| {
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

/// A domain with consecutive machine pages. It gives up none of them.
pub struct Owner {
    id: DomId,
    pages: Range<u64>,
    references: PageReferences,
}

impl Owner {
    /// A domain with `pages` pages from machine page `first` on.
    pub fn new(id: DomId, first: u64, pages: usize) -> Self {
        let references = PageReferences::new(pages);
        Self { id, pages: first..first + pages as u64, references }
    }
}

impl PageOwner for Owner {
    fn id(&self) -> DomId {
        self.id
    }

    fn machine_pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn owns(&self, page: usize) -> bool {
        (page as u64) < self.pages.end - self.pages.start
    }

    fn references(&self) -> &PageReferences {
        &self.references
    }

    fn attach(&self, _: Weak<dyn PageUser>) {}
}

/// The wire, which counts frames.
#[derive(Default)]
pub struct Sink {
    /// Frames that were sent.
    pub frames: u64,
    /// Made of a byte of each frame, so that the card has to read frames.
    last: u8,
}

impl Wire for Sink {
    #[inline]
    fn send(&mut self, head: &[u8], _: &[u8], _: Metadata) -> Sent {
        self.frames += 1;
        self.last ^= head.first().copied().unwrap_or_default();
        Sent::Sent
    }

    fn receive(&mut self, _: &mut [u8]) -> Option<(usize, Metadata)> {
        None
    }
}
