//! The daemon's side of a context's table: mappings, and pages on their way back.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::invalidation::{Invalidation, Request};
use crate::invalidation::{Invalidator, Ticket};
use crate::table::Entry;
use crate::table::WriteTable;

/// When the card is asked to forget unmapped pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// With each call (strict). The caller waits for the ticket.
    AtOnce,
    /// When `pages` are unmapped, or `after` the first of them. One request then clears
    /// the whole cache. Until that is confirmed the card may still use the pages, so none is given back.
    Deferred {
        /// Pages.
        pages: u32,
        /// Time.
        after: Duration,
    },
}

/// Why pages were not mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The table has no entry for the page.
    #[error("page {0} lies outside the table")]
    Outside(u32),
    /// The page is mapped. It must be unmapped first.
    #[error("page {0} is mapped")]
    Mapped(u32),
    /// The page was unmapped, and the card has not yet confirmed that.
    #[error("page {0} was unmapped and is not yet given back")]
    Pending(u32),
    /// The page is not mapped.
    #[error("page {0} is not mapped")]
    NotMapped(u32),
}

/// Why nothing was unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("run {run}: {error}")]
pub struct UnmapError {
    /// The first bad run.
    pub run: usize,
    /// What is wrong: [`MapError::Outside`] or [`MapError::NotMapped`].
    pub error: MapError,
}

/// A context's mappings.
#[derive(Debug)]
pub struct Mapper<T, P> {
    table: T,
    invalidator: Invalidator<P>,
    flush: Flush,
    mapped: u32,
    /// Runs of unmapped pages that are not given back, oldest first.
    unmapped: VecDeque<Range<u32>>,
    /// How many of these wait for which ticket, oldest first.
    requested: VecDeque<(Ticket, usize)>,
    /// How many runs wait for no ticket.
    collected_runs: usize,
    /// Their pages.
    collected: u32,
    /// When the first of them was unmapped.
    since: Duration,
}

impl<T: WriteTable, P: Invalidation> Mapper<T, P> {
    /// A table without mappings: all zero.
    pub fn new(table: T, words: P, flush: Flush) -> Self {
        Self {
            table,
            invalidator: Invalidator::new(words),
            flush,
            mapped: 0,
            unmapped: VecDeque::with_capacity(64),
            requested: VecDeque::with_capacity(64),
            collected_runs: 0,
            collected: 0,
            since: Duration::ZERO,
        }
    }

    /// The table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Pages that are mapped.
    #[must_use]
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Pages that are unmapped and not given back.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.unmapped.iter().map(|run| run.end - run.start).sum()
    }

    /// Whether a page can be mapped.
    pub fn check_free(&self, page: u32) -> Result<(), MapError> {
        if page >= self.table.pages() {
            return Err(MapError::Outside(page));
        }
        match self.table.load(page) {
            old if old.is_valid() => Err(MapError::Mapped(page)),
            old if old.is_pending() => Err(MapError::Pending(page)),
            _ => Ok(()),
        }
    }

    /// Maps one page. The card needs no notice: it caches valid entries only.
    pub fn map(&mut self, page: u32, entry: Entry) -> Result<(), MapError> {
        self.check_free(page)?;
        self.table.store(page, entry);
        self.mapped += 1;
        Ok(())
    }

    /// Unmaps runs of pages: all, or on an error none. Returns the ticket to wait for, if the flush is
    /// at once. [`give_back`](Self::give_back) then has the pages. `now` counts from any moment.
    ///
    /// # Errors
    /// A page of a run is not mapped, or lies outside.
    pub fn unmap(
        &mut self,
        runs: &[Range<u32>],
        now: Duration,
    ) -> Result<Option<Ticket>, UnmapError> {
        for (run, pages) in runs.iter().enumerate() {
            if let Err(error) = self.unmap_run(pages.clone()) {
                runs[..run].iter().for_each(|pages| self.remap(pages.clone()));
                return Err(UnmapError { run, error });
            }
        }
        if self.collected_runs == 0 {
            self.since = now;
        }
        for run in runs.iter().filter(|run| !run.is_empty()) {
            let pages = run.end - run.start;
            self.mapped -= pages;
            self.collected += pages;
            self.collected_runs += 1;
            self.unmapped.push_back(run.clone());
        }
        match self.flush {
            Flush::AtOnce => Ok(self.request(runs)),
            Flush::Deferred { .. } => {
                self.tick(now);
                Ok(None)
            }
        }
    }

    fn unmap_run(&self, run: Range<u32>) -> Result<(), MapError> {
        if run.end > self.table.pages() {
            return Err(MapError::Outside(run.end - 1));
        }
        for page in run.clone() {
            let entry = self.table.load(page);
            if !entry.is_valid() {
                self.remap(run.start..page);
                return Err(MapError::NotMapped(page));
            }
            self.table.store(page, entry.unmapped());
        }
        Ok(())
    }

    /// Undoes [`unmap_run`](Self::unmap_run) before the card was notified of it.
    fn remap(&self, run: Range<u32>) {
        for page in run {
            self.table.store(page, self.table.load(page).mapped_again());
        }
    }

    /// Asks the card to forget all runs that wait for no ticket. Names `runs`, if those are all and few; otherwise everything.
    fn request(&mut self, runs: &[Range<u32>]) -> Option<Ticket> {
        let collected = self.collected_runs;
        if collected == 0 {
            return None;
        }
        let few = runs.len() == collected && collected < P::PLACES as usize / 2;
        let ticket = match few {
            true => self.invalidator.request(runs.iter().cloned().map(Request::of)),
            false => self.invalidator.request([Request::EVERYTHING]),
        };
        self.requested.push_back((ticket, collected));
        (self.collected_runs, self.collected) = (0, 0);
        Some(ticket)
    }

    /// Requests now what was deferred. Returns the ticket to wait for, if something is unmapped.
    pub fn flush(&mut self) -> Option<Ticket> {
        self.request(&[]).or(self.requested.back().map(|(ticket, _)| *ticket))
    }

    /// Requests what was deferred, if enough has been collected or enough time has passed.
    pub fn tick(&mut self, now: Duration) {
        let Flush::Deferred { pages, after } = self.flush else { return };
        if self.collected_runs > 0 && (self.collected >= pages || now >= self.since + after) {
            self.request(&[]);
        }
    }

    /// When [`tick`](Self::tick) has to be called next.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        match self.flush {
            Flush::Deferred { after, .. } if self.collected_runs > 0 => Some(self.since + after),
            _ => None,
        }
    }

    /// Whether the card has confirmed the invalidation.
    pub fn is_confirmed(&mut self, ticket: Ticket) -> bool {
        self.invalidator.is_confirmed(ticket)
    }

    /// Gives back the pages whose unmapping the card has confirmed: `page` gets the number in the
    /// table and the machine page. The card cannot reach them any more through this table.
    pub fn give_back(&mut self, mut page: impl FnMut(u32, u64)) {
        while let Some(&(ticket, runs)) = self.requested.front() {
            if !self.invalidator.is_confirmed(ticket) {
                return;
            }
            self.requested.pop_front();
            for run in self.unmapped.drain(..runs) {
                for number in run {
                    page(number, self.table.load(number).machine_page());
                    self.table.store(number, Entry::EMPTY);
                }
            }
        }
    }

    /// The card has stopped for good: unmaps and gives back all pages, as
    /// [`give_back`](Self::give_back) does.
    pub fn clear(&mut self, mut page: impl FnMut(u32, u64)) {
        self.invalidator.card_stopped();
        self.unmapped.clear();
        self.requested.clear();
        (self.collected_runs, self.collected, self.mapped) = (0, 0, 0);
        for number in 0..self.table.pages() {
            let entry = self.table.load(number);
            if entry != Entry::EMPTY {
                page(number, entry.machine_page());
                self.table.store(number, Entry::EMPTY);
            }
        }
    }
}
