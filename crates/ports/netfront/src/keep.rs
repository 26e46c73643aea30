//! How this end asks the backend to keep pages mapped.

use hypervisor::Guest;
use wire::netif::GrefMapping;

use crate::{ControlError, Frontend};

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
