//! Pages that the backend keeps mapped.

use std::sync::Arc;

use hypervisor::{GrantRef, Guest};
use wire::netif::GrefMapping;

use crate::{ControlError, Frontend, Queue};

/// The pages that a queue sends from.
pub(crate) struct TxPages<G: Guest> {
    pub(crate) pages: Arc<G::Pages>,
    pub(crate) grefs: Arc<[GrantRef]>,
}

impl<G: Guest> TxPages<G> {
    pub(crate) fn of(queue: &Queue<G>) -> Self {
        let (pages, grefs) = queue.tx.pages();
        Self { pages: pages.clone(), grefs: grefs.clone() }
    }
}

/// The pages of a queue that the backend may keep mapped, the most important first.
pub(crate) fn wanted<G: Guest>(queue: &Queue<G>) -> Vec<GrefMapping> {
    // A backend that maps each packet anew has places for buffers only. It only reads TX pages.
    let sent = queue.tx.grefs().iter().map(|gref| (gref, GrefMapping::READ_ONLY));
    let received = queue.rx.grefs().iter().map(|gref| (gref, 0));
    let entry = |(gref, flags): (&GrantRef, _)| GrefMapping { gref: gref.0, flags, status: 0 };
    received.chain(sent).map(entry).collect()
}

impl<G: Guest> Frontend<G> {
    /// Asks the backend to keep the pages of all queues mapped, as many as it can. It does so in a small share of its time, so
    /// this takes long; frames may be on their way meanwhile. If it refuses, it copies by grants instead.
    ///
    /// # Errors
    /// The backend refused, or has gone.
    pub fn keep_mapped(&mut self) -> Result<(), ControlError> {
        let Some(control) = &mut self.control else { return Ok(()) };
        for (number, pages) in (0..).zip(std::mem::take(&mut self.wanted)) {
            let count = control.size(number)?.min(pages.len());
            for list in pages[..count].chunks(GrefMapping::PER_PAGE) {
                control.add(number, list)?;
            }
        }
        Ok(())
    }
}
