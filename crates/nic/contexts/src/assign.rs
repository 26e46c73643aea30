//! The assignment of a context.

use std::sync::Arc;

use cdna::completion;
use cdna::ring::RINGS_LEN;
use hypervisor::PageOwner;
use shm::{OutOfBounds, Region};

use crate::state::Protection;

/// A card that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// It speaks another version.
    #[error("the card speaks version {0} of the interface, and not version {version}", version = cdna::layout::VERSION)]
    Version(u32),
    /// It has too few or too many contexts.
    #[error("the card has {0} contexts: 1 to {most} are possible", most = cdna::context::CONTEXTS_MAX)]
    Contexts(u32),
    /// Its rings have another length.
    #[error("the card's rings have {0} slots, and not {slots}", slots = cdna::ring::SLOTS)]
    Slots(u32),
    /// Its descriptors are impossible or larger than 16 bytes.
    #[error("the card's descriptors have an impossible layout, or more than 16 bytes")]
    Layout,
}

/// Why a context was not assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The card has no such context.
    #[error("the card has no such context")]
    NoContext,
    /// It is another domain's, or the card may still use its pages.
    #[error("the context is in use")]
    InUse,
    /// The domain has ended.
    #[error("the domain has ended")]
    OwnerEnded,
    /// An IOMMU needs a table.
    #[error("no table for the IOMMU")]
    NoTable,
    /// Its memory is too short.
    #[error(transparent)]
    Memory(#[from] OutOfBounds),
}

/// The memory of one assignment, fresh and zero, as the hypervisor has it mapped.
#[derive(Clone, Debug)]
pub struct ContextMemory {
    /// Both rings: see [`cdna::ring`].
    pub rings: Arc<Region>,
    /// The completion page, which the card alone writes.
    pub completions: Arc<Region>,
    /// The table: [`iommu::table_len`] bytes. Only with an IOMMU.
    pub table: Option<Arc<Region>>,
}

impl ContextMemory {
    pub(crate) fn check(&self) -> Result<(), OutOfBounds> {
        let parts = [(&self.rings, RINGS_LEN), (&self.completions, completion::PAGE_LEN)];
        match parts.into_iter().find(|(region, len)| region.len() < *len) {
            Some((region, len)) => Err(OutOfBounds { offset: 0, len, size: region.len() }),
            None => Ok(()),
        }
    }
}

/// What a context is assigned with.
#[derive(Debug)]
pub struct Assignment<'a, O> {
    /// The domain that gets it.
    pub owner: &'a Arc<O>,
    /// How it is protected.
    pub protection: Protection,
    /// Its memory.
    pub memory: ContextMemory,
    /// The index of the first descriptor of either ring.
    pub start: u32,
    /// Pages of the table, with an IOMMU. The first has the number of the domain's first machine
    /// page; a static table needs as many as the domain has.
    pub io_pages: u32,
}

impl<O: PageOwner> Assignment<'_, O> {
    /// As many pages in the table as the domain has.
    pub fn pages_of(owner: &O) -> u32 {
        let pages = owner.machine_pages();
        u32::try_from(pages.end - pages.start).unwrap_or(u32::MAX)
    }
}
