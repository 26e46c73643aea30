//! How this end gets pages back that the backend keeps mapped.
//!
//! Santos et al. (2008, §4.4): a frontend that wants to use a page for something else asks for its
//! mapping to be invalidated, and waits for the confirmation. Until then the grant cannot be ended.

use std::time::{Duration, Instant};

use hypervisor::Guest;
use netdev::NotFreed;
use wire::netif::GrefMapping;

use crate::{ControlError, Frontend};

impl<G: Guest> Frontend<G> {
    /// Frees pages of a queue that were set aside: the backend unmaps them and confirms it, and then
    /// their grants end. This waits `timeout` at most.
    ///
    /// # Errors
    /// The pages that are not free, because the backend did not confirm it.
    pub fn free_pages(
        &mut self,
        queue: usize,
        pages: &[u16],
        timeout: Duration,
    ) -> Result<(), NotFreed> {
        let Some(own) = self.tx_pages.get(queue) else {
            let reason = format!("there is no queue {queue}");
            return Err(NotFreed { pages: pages.to_vec(), reason });
        };
        let known = |page: &&u16| usize::from(**page) < own.grefs.len();
        let gref = |page: u16| own.grefs[usize::from(page)].0;
        let grefs: Vec<_> = pages.iter().filter(known).map(|page| gref(*page)).collect();
        let number = u32::try_from(queue).unwrap_or(u32::MAX);
        let confirmed = self.control.as_mut().map_or(Ok(()), |control| {
            let mapped = grefs.iter().copied().filter(|gref| control.has_mapped(number, *gref));
            control.invalidate(number, mapped.collect(), timeout)
        });
        let is_mapped = |page: u16| {
            self.control.as_ref().is_some_and(|control| control.has_mapped(number, gref(page)))
        };
        let is_kept =
            |page: &u16| is_mapped(*page) || !self.guest.release(&own.pages, usize::from(*page));
        let kept: Vec<u16> = pages.iter().copied().filter(is_kept).collect();
        if kept.is_empty() {
            return Ok(());
        }
        let reason = match confirmed {
            Ok(()) => "the backend has them mapped".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(NotFreed { pages: kept, reason })
    }

    /// Asks the backend to unmap all pages, and waits `timeout` at most for the confirmation.
    pub(crate) fn invalidate_all(&mut self, timeout: Duration) -> Result<(), ControlError> {
        let Some(control) = &mut self.control else { return Ok(()) };
        let deadline = Instant::now() + timeout;
        let queues = u32::try_from(self.tx_pages.len()).unwrap_or(u32::MAX);
        (0..queues).try_for_each(|queue| {
            let left = deadline.saturating_duration_since(Instant::now());
            control.invalidate(queue, control.mapped(queue), left)
        })
    }
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
