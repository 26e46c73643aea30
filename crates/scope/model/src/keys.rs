//! The keys of pages in TLBs.

use crate::paging::{PageSize, Paging};

/// Tags of address spaces (as ASIDs are), in the order in which the spaces appear. Their number is bounded, so that old tags
/// are reused.
#[derive(Debug, Default)]
pub struct Tags {
    spaces: Vec<(u64, u16)>,
    next: usize,
}

/// The tag of global pages.
pub const GLOBAL: u16 = u16::MAX;
/// The number of tags.
const TAGS: usize = 4096;

impl Tags {
    /// The tag of an address space, and whether it belonged to another space until now.
    pub fn of(&mut self, paging: Paging) -> (u16, bool) {
        let space = (paging.root, paging.pcid);
        // A context switch costs more than this search.
        let tag = match self.spaces.iter().position(|known| *known == space) {
            Some(tag) => return (u16::try_from(tag).unwrap_or(GLOBAL), false),
            None if self.spaces.len() < TAGS => {
                self.spaces.push(space);
                return (u16::try_from(self.spaces.len() - 1).unwrap_or(GLOBAL), false);
            }
            None => self.next % TAGS,
        };
        self.next += 1;
        self.spaces[tag] = space;
        (u16::try_from(tag).unwrap_or(GLOBAL), true)
    }

    /// The address space of a tag: its root and PCID.
    pub fn space(&self, tag: u16) -> Option<(u64, u16)> {
        self.spaces.get(usize::from(tag)).copied()
    }
}

/// The key of the page of an address, of this size.
#[inline]
pub fn key(address: u64, size: PageSize, tag: u16) -> u64 {
    let number = (address << 16) >> (16 + size.bits());
    number | u64::from(tag) << 36 | u64::from(size != PageSize::Small) << 52
}

/// The tag in a page's key.
#[inline]
pub fn tag(key: u64) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "these 16 bits")]
    let tag = (key >> 36) as u16;
    tag
}
