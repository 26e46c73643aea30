//! Why a call was refused.

use cdna::call::{Answer, ENTRIES_MAX};
use iommu::MapError;

/// Why nothing of a call was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The call has no such operation, or too many entries.
    #[error("a malformed call")]
    Malformed,
    /// More than [`ENTRIES_MAX`] entries, or too many pages.
    #[error("more than {ENTRIES_MAX} entries, or too many pages")]
    TooMany,
    /// The context is not assigned to the caller.
    #[error("not the caller's context")]
    NotYours,
    /// The context is stopped or revoked.
    #[error("the context is stopped")]
    Stopped,
    /// The domain has ended.
    #[error("the domain has ended")]
    OwnerEnded,
    /// The context's protection has no such call.
    #[error("not with this context's protection")]
    WrongProtection,
    /// The ring has less room.
    #[error("room for {free} descriptors only")]
    Full {
        /// Free slots.
        free: u32,
    },
    /// The first bad entry.
    #[error("entry {index}: {why}")]
    Entry {
        /// Its place in the call.
        index: u32,
        /// What is wrong.
        why: EntryError,
    },
}

/// What is wrong with an entry of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It goes beyond the end of all addresses.
    #[error("beyond the end of all addresses")]
    Wraps,
    /// A page lies outside the domain's memory.
    #[error("a page of another domain, or of none")]
    Foreign,
    /// A page was given up, or can be transferred.
    #[error("a page that the domain gave up, or that can be transferred")]
    GivenUp,
    /// It permits nothing, or what does not exist.
    #[error("no such permission")]
    Permission,
    /// It has no pages.
    #[error("no pages")]
    Empty,
    /// The table does not allow it.
    #[error(transparent)]
    Mapping(#[from] MapError),
}

impl Refusal {
    /// Whether a page was unmapped and the card has not confirmed that.
    pub(crate) const fn is_pending(self) -> bool {
        matches!(self, Self::Entry { why: EntryError::Mapping(MapError::Pending(_)), .. })
    }

    /// The answer's status: a number for each reason, from 1 on.
    #[must_use]
    pub const fn status(self) -> u32 {
        match self {
            Self::Malformed => 1,
            Self::TooMany => 2,
            Self::NotYours => 3,
            Self::Stopped => 4,
            Self::OwnerEnded => 5,
            Self::WrongProtection => 6,
            Self::Full { .. } => 7,
            Self::Entry { why, .. } => match why {
                EntryError::Wraps => 16,
                EntryError::Foreign => 17,
                EntryError::GivenUp => 18,
                EntryError::Permission => 19,
                EntryError::Empty => 20,
                EntryError::Mapping(MapError::Outside(_)) => 21,
                EntryError::Mapping(MapError::Mapped(_)) => 22,
                EntryError::Mapping(MapError::Pending(_)) => 23,
                EntryError::Mapping(MapError::NotMapped(_)) => 24,
            },
        }
    }

    /// The answer's value.
    #[must_use]
    pub const fn value(self) -> u32 {
        match self {
            Self::Entry { index, .. } => index,
            _ => Answer::NO_ENTRY,
        }
    }

    /// The answer to the call with this serial number.
    #[must_use]
    pub const fn answer(self, serial: u32) -> Answer {
        Answer { serial, status: self.status(), value: self.value(), reserved: 0 }
    }

    /// Refuses entry number `index`.
    pub(crate) fn entry(index: usize, why: impl Into<EntryError>) -> Self {
        Self::Entry { index: u32::try_from(index).unwrap_or(u32::MAX), why: why.into() }
    }
}
