//! A context's mappings: calls that map and unmap, with references.

use std::ops::Range;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use cdna::call::{ENTRIES_MAX, MapEntry};
use cdna::{ContextId, completion};
use hypervisor::{LockedReferences, PageOwner};
use iommu::{
    Entry, Flush, MapError, Mapper, Permission, ReadTable, RegionInvalidation, RegionTable, Ticket,
};
use shm::{OutOfBounds, Region};

use crate::refusal::{EntryError, Refusal};
use crate::state::IommuMode;

/// The most pages of one call.
pub const CALL_PAGES: u32 = 1024;

/// An unmapping that was begun. It is done when [`Contexts::is_unmapped`](crate::Contexts::is_unmapped) says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapping {
    pub(crate) context: ContextId,
    pub(crate) generation: u32,
    pub(crate) ticket: Ticket,
}

/// The mappings of one context.
#[derive(Debug)]
pub(crate) struct Mappings {
    mode: IommuMode,
    /// The owner's machine pages.
    own: Range<u64>,
    mapper: Mapper<RegionTable<Arc<Region>>, RegionInvalidation<Arc<Region>>>,
}

impl Mappings {
    /// A fresh table whose first page is the owner's first.
    pub(crate) fn new(
        mode: IommuMode,
        own: Range<u64>,
        pages: u32,
        table: &Arc<Region>,
        completions: &Arc<Region>,
    ) -> Result<Self, OutOfBounds> {
        let flush = match mode {
            IommuMode::Static | IommuMode::Strict => Flush::AtOnce,
            IommuMode::Deferred { pages, after } => Flush::Deferred { pages, after },
        };
        let at = completion::INVALIDATION;
        let words = RegionInvalidation::new(table.clone(), completions.clone(), at)?;
        let entries = RegionTable::create(table.clone(), own.start, pages)?;
        Ok(Self { mode, own, mapper: Mapper::new(entries, words, flush) })
    }

    /// References that the mappings hold.
    pub(crate) fn references(&self) -> usize {
        self.mapper.mapped() as usize + self.mapper.pending() as usize
    }

    /// Whether all pages of the owner are mapped, and the guest may neither map nor unmap.
    pub(crate) fn is_static(&self) -> bool {
        self.mode == IommuMode::Static
    }

    /// Maps pages of the owner: all, or on an error none. Returns how many.
    pub(crate) fn map(
        &mut self,
        owner: &(impl PageOwner + ?Sized),
        entries: &[MapEntry],
        now: Duration,
    ) -> Result<u32, Refusal> {
        let total = total(entries)?;
        let mut references = owner.references().lock();
        let mut taken = ArrayVec::<Range<usize>, ENTRIES_MAX>::new();
        let mut refusal = None;
        for (n, entry) in entries.iter().enumerate() {
            match self.own_pages(entry) {
                Ok(pages) => {
                    references.take(pages.clone());
                    taken.push(pages);
                }
                Err(why) => {
                    refusal = Some(Refusal::entry(n, why));
                    break;
                }
            }
        }
        // Checked with the references locked, as in an enqueue.
        let given_up = taken.iter().position(|pages| !pages.clone().all(|page| owner.owns(page)));
        let refusal = given_up.map(|n| Refusal::entry(n, EntryError::GivenUp)).or(refusal);
        if let Some(refusal) = refusal.or_else(|| self.find_taken(entries)) {
            taken.into_iter().for_each(|pages| references.release(pages));
            return Err(refusal);
        }
        for (n, (entry, pages)) in entries.iter().zip(&taken).enumerate() {
            if let Err((done, error)) = self.map_entry(entry) {
                // The pages that were mapped already are unmapped as usual, since the card may have used them.
                let whole = entries[..n].iter().map(|entry| (entry.page, u32::from(entry.pages)));
                for (first, pages) in whole.chain([(entry.page, done)]) {
                    let _ = self.mapper.unmap(from_ref(&(first..first + pages)), now);
                }
                references.release(pages.start + done as usize..pages.end);
                taken[n + 1..].iter().for_each(|pages| references.release(pages.clone()));
                return Err(Refusal::entry(n, error));
            }
        }
        Ok(total)
    }

    /// The first entry for pages of the table that are not free.
    fn find_taken(&self, entries: &[MapEntry]) -> Option<Refusal> {
        entries.iter().enumerate().find_map(|(n, entry)| {
            let end = entry.page.saturating_add(entry.pages.into());
            let taken = (entry.page..end).find_map(|page| self.mapper.check_free(page).err());
            taken.map(|why| Refusal::entry(n, why))
        })
    }

    /// The pages that an entry names, counted from the owner's first.
    fn own_pages(&self, entry: &MapEntry) -> Result<Range<usize>, EntryError> {
        permission(entry.permission)?;
        if entry.pages == 0 {
            return Err(EntryError::Empty);
        }
        let end = entry.machine_page.checked_add(entry.pages.into()).ok_or(EntryError::Wraps)?;
        if entry.machine_page < self.own.start || end > self.own.end {
            return Err(EntryError::Foreign);
        }
        self.index(entry.machine_page)
            .map(|first| first..first + usize::from(entry.pages))
            .ok_or(EntryError::Foreign)
    }

    fn index(&self, machine_page: u64) -> Option<usize> {
        machine_page.checked_sub(self.own.start).and_then(|page| usize::try_from(page).ok())
    }

    /// Maps one entry's pages; on an error says how many of them were mapped.
    fn map_entry(&mut self, entry: &MapEntry) -> Result<(), (u32, EntryError)> {
        let permission = permission(entry.permission).map_err(|why| (0, why))?;
        for n in 0..u32::from(entry.pages) {
            let page = entry.page.checked_add(n).ok_or(MapError::Outside(u32::MAX));
            let machine_page = entry.machine_page + u64::from(n);
            let new = Entry::new(machine_page, permission).ok_or((n, EntryError::Foreign))?;
            page.and_then(|page| self.mapper.map(page, new)).map_err(|error| (n, error.into()))?;
        }
        Ok(())
    }

    /// Unmaps pages: all, or on an error none. Returns the ticket to wait for, if the guest must.
    pub(crate) fn unmap(
        &mut self,
        entries: &[MapEntry],
        now: Duration,
    ) -> Result<Option<Ticket>, Refusal> {
        total(entries)?;
        if let Some(empty) = entries.iter().position(|entry| entry.pages == 0) {
            return Err(Refusal::entry(empty, EntryError::Empty));
        }
        let runs: ArrayVec<_, ENTRIES_MAX> = entries
            .iter()
            .map(|entry| entry.page..entry.page.saturating_add(entry.pages.into()))
            .collect();
        self.mapper.unmap(&runs, now).map_err(|error| Refusal::entry(error.run, error.error))
    }

    /// Releases the references to pages whose unmapping the card has confirmed. Pages of a static table
    /// that the owner kept after all are mapped again.
    pub(crate) fn give_back(&mut self, owner: &(impl PageOwner + ?Sized)) {
        let start = self.own.start;
        let (mut first, mut end) = (u32::MAX, 0);
        let mut references = owner.references().lock();
        self.mapper.give_back(|page, machine_page| {
            release(&mut references, machine_page - start);
            (first, end) = (first.min(page), end.max(page + 1));
        });
        drop(references);
        if self.is_static() && first < end {
            self.map_owned(owner, first..end);
        }
    }

    /// Asks the card now about all pages that are not given back. Returns the ticket to wait for, if there are any.
    pub(crate) fn flush(&mut self) -> Option<Ticket> {
        self.mapper.flush()
    }

    /// Whether an unmapping is done.
    pub(crate) fn is_confirmed(&mut self, ticket: Ticket) -> bool {
        self.mapper.is_confirmed(ticket)
    }

    /// Asks the card about deferred unmappings that are due.
    pub(crate) fn tick(&mut self, now: Duration) {
        self.mapper.tick(now);
    }

    /// The owner wants to give up some pages.
    pub(crate) fn reclaim(&mut self, owner: &(impl PageOwner + ?Sized), pages: Range<usize>) {
        if self.is_static() {
            let mut pages = self.table_pages(pages);
            while let Some(first) = pages.find(|page| self.mapper.table().load(*page).is_valid()) {
                let is_mapped = |page: &u32| self.mapper.table().load(*page).is_valid();
                let end = pages.clone().find(|page| !is_mapped(page)).unwrap_or(pages.end);
                pages.start = end;
                let _ = self.mapper.unmap(from_ref(&(first..end)), Duration::ZERO);
            }
        } else {
            self.mapper.flush();
        }
        self.give_back(owner);
    }

    /// The owner has pages again, or keeps them.
    pub(crate) fn restore(&mut self, owner: &(impl PageOwner + ?Sized), pages: Range<usize>) {
        if self.is_static() {
            self.give_back(owner);
            self.map_owned(owner, self.table_pages(pages));
        }
    }

    /// Maps pages of a static table that the owner owns and that are not mapped.
    fn map_owned(&mut self, owner: &(impl PageOwner + ?Sized), pages: Range<u32>) {
        let mut references = owner.references().lock();
        for page in pages {
            let (own, machine_page) = (page as usize, self.own.start + u64::from(page));
            if !owner.owns(own) || self.mapper.table().load(page) != Entry::EMPTY {
                continue;
            }
            let entry = Entry::new(machine_page, Permission::ReadWrite);
            if entry.map(|entry| self.mapper.map(page, entry)) == Some(Ok(())) {
                references.take(own..own + 1);
            }
        }
    }

    /// The pages of the table with these numbers. A static table's first page is the owner's first.
    fn table_pages(&self, pages: Range<usize>) -> Range<u32> {
        let last = self.mapper.table().pages();
        let number = |page: usize| u32::try_from(page).map_or(last, |page| page.min(last));
        number(pages.start)..number(pages.end)
    }

    /// Unmaps everything and releases all references. The card is quiet.
    pub(crate) fn release(&mut self, owner: &(impl PageOwner + ?Sized)) {
        let start = self.own.start;
        let mut references = owner.references().lock();
        self.mapper.clear(|_, machine_page| release(&mut references, machine_page - start));
    }
}

fn release(references: &mut LockedReferences<'_>, page: u64) {
    if let Ok(page) = usize::try_from(page) {
        references.release(page..page + 1);
    }
}

/// The pages of a call.
fn total(entries: &[MapEntry]) -> Result<u32, Refusal> {
    let total = entries.iter().map(|entry| u32::from(entry.pages)).sum();
    let few = entries.len() <= ENTRIES_MAX && total <= CALL_PAGES;
    few.then_some(total).ok_or(Refusal::TooMany)
}

fn permission(bits: u16) -> Result<Permission, EntryError> {
    const BOTH: u16 = MapEntry::MAY_READ | MapEntry::MAY_WRITE;
    match bits {
        MapEntry::MAY_READ => Ok(Permission::Read),
        MapEntry::MAY_WRITE => Ok(Permission::Write),
        BOTH => Ok(Permission::ReadWrite),
        _ => Err(EntryError::Permission),
    }
}
