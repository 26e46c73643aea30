//! How a context is protected.

use std::time::Duration;

/// When pages are mapped in a context's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IommuMode {
    /// All pages that the domain owns are mapped, as long as it owns them.
    Static,
    /// The guest maps and unmaps buffers. Unmapping waits for the card.
    Strict,
    /// The guest maps and unmaps buffers. Unmapped pages are collected before the card is asked.
    Deferred {
        /// How many pages are collected at most.
        pages: u32,
        /// How long they are collected at most.
        after: Duration,
    },
}

/// Who writes a context's descriptors, and what keeps the card from memory of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The guest; nothing.
    None,
    /// The hypervisor; its checks.
    Hypervisor,
    /// The guest; the context's table.
    Iommu(IommuMode),
}

impl Protection {
    /// What the card has to know of it.
    #[must_use]
    pub const fn for_card(self) -> cdna::message::Protection {
        match self {
            Self::None => cdna::message::Protection::None,
            Self::Hypervisor => cdna::message::Protection::Hypervisor,
            Self::Iommu(_) => cdna::message::Protection::Iommu,
        }
    }
}
