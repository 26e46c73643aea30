//! Where a page lies, and how it is mapped.

use crate::config::{Policy, TlbSet};
use crate::paging::PageSize;

/// Pages of each side whose mappings are kept, in a direct-mapped table: the lower bits of a page's number choose its slot.
pub const PAGE_SLOTS: usize = 1024;
const _: () = assert!(PAGE_SLOTS.is_power_of_two(), "a slot is the lower bits of a page's number");

/// Which TLB and which L1 an access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Instructions.
    Code,
    /// Data.
    Data,
}

/// Where a page of 4 KiB lies, and how it is mapped: what a [`Model`](crate::Model) needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The physical number of its first line.
    pub frame: u64,
    /// The size of the page that it is part of; none where no page table maps it.
    pub size: Option<PageSize>,
    /// Whether that page is global.
    pub global: bool,
    /// The policies under which it is part of a large page.
    pub large: TlbSet,
}

/// The policies with the grouping allocator.
const GROUPED: TlbSet =
    TlbSet::of(Policy::GroupedSuperpages).union(TlbSet::of(Policy::GuestGlobalSuperpages));
/// The values of [`Mapping::large`], by their code in a word.
const LARGE: [TlbSet; 4] = [
    TlbSet::NONE,
    TlbSet::of(Policy::Superpages),
    GROUPED,
    TlbSet::of(Policy::Superpages).union(GROUPED),
];

impl Mapping {
    /// The mapping of a page that no page table maps, in no memory.
    pub const UNMAPPED: Self = Self { frame: 0, size: None, global: false, large: TlbSet::NONE };
    /// The policies under which a page of the linear map is part of a large one: `alone` without the grouping allocator,
    /// `grouped` with it.
    #[must_use]
    pub fn large(alone: bool, grouped: bool) -> TlbSet {
        LARGE[usize::from(alone) | usize::from(grouped) << 1]
    }

    /// Bits of a line's physical number: enough for 16 PiB.
    const FRAME_BITS: u32 = 48;

    /// The mapping in 64 bits.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let size = self.size.map_or(3, |size| size as u64);
        let large = LARGE.iter().position(|large| *large == self.large).unwrap_or(0) as u64;
        self.frame | (size | u64::from(self.global) << 2 | large << 3) << Self::FRAME_BITS
    }

    /// The mapping that [`to_word`](Self::to_word) encoded.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        let flags = word >> Self::FRAME_BITS;
        let size = [Some(PageSize::Small), Some(PageSize::Large), Some(PageSize::Huge), None];
        Self {
            frame: word & ((1 << Self::FRAME_BITS) - 1),
            size: size[(flags & 3) as usize],
            global: flags & 4 != 0,
            large: LARGE[(flags >> 3 & 3) as usize],
        }
    }
}
