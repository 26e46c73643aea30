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

    /// All tags with their PCIDs.
    pub fn all(&self) -> impl Iterator<Item = (u16, u16)> {
        (0..).zip(&self.spaces).map(|(tag, (_, pcid))| (tag, *pcid))
    }

    /// The address space of a tag: its root and PCID.
    pub fn space(&self, tag: u16) -> Option<(u64, u16)> {
        self.spaces.get(usize::from(tag)).copied()
    }
}

/// The key of the page of an address, of this size.
///
/// ```text
///  53…52  51…36  35…0
///  ┌─────┬──────┬────────┐
///  │size │tag   │address │ bits 47 to 12
///  └─────┴──────┴────────┘
/// ```
#[inline]
pub fn key(address: u64, size: PageSize, tag: u16) -> u64 {
    let first = address >> size.bits() << size.bits();
    (first << 16) >> 28 | u64::from(tag) << TAG_AT | (size as u64) << SIZE_AT
}

const TAG_AT: u32 = 36;
const SIZE_AT: u32 = 52;

/// Whether a page lies in the lower half of its address space, which belongs to programs.
#[inline]
pub fn is_user(key: u64) -> bool {
    key >> (TAG_AT - 1) & 1 == 0
}

/// The tag in a page's key.
#[inline]
pub fn tag(key: u64) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "these 16 bits")]
    let tag = (key >> TAG_AT) as u16;
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_different_sizes_and_spaces_have_different_keys() {
        let address = 0xffff_8880_4000_0000;
        let sizes = [PageSize::Small, PageSize::Large, PageSize::Huge];
        let keys = sizes.iter().flat_map(|size| [3, GLOBAL].map(|tag| key(address, *size, tag)));
        let mut keys: Vec<u64> = keys.collect();
        // A page of 1 GiB whose number is that of a page of 2 MiB somewhere else.
        keys.push(key(address >> 9, PageSize::Large, 3));
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
        for size in sizes {
            let within = address + (1 << size.bits()) - 1;
            assert_eq!(key(within, size, 7), key(address, size, 7));
            assert_eq!(tag(key(address, size, 7)), 7);
            assert!(
                !is_user(key(address, size, 7)) && is_user(key(0x7fff_ffff_f000, size, GLOBAL))
            );
        }
    }
}
