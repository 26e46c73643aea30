//! The parts of a virtual address space, as Xen and Linux divide it.

use std::ops::Range;

/// Xen's slots of the top-level page table (`xen/arch/x86/include/asm/config.h`): 256 to 271.
const HYPERVISOR: Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;
/// The slots 258 and 259, in which page tables map themselves, and 260, which differs between domains.
const OWN: Range<u64> = 0xffff_8100_0000_0000..0xffff_8280_0000_0000;
/// The slots of the page tables.
const PAGE_TABLES: Range<u64> = 0xffff_8100_0000_0000..0xffff_8200_0000_0000;

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// A program.
    User,
    /// A kernel.
    Kernel,
    /// Xen: the same in every address space.
    Hypervisor,
    /// Xen: the same in every address space of a domain.
    PerDomain,
    /// Xen: the page tables, which differ in each address space.
    PageTables,
}

impl Region {
    /// The region of an address.
    #[inline]
    pub fn of(address: u64) -> Self {
        match address {
            0..0x8000_0000_0000 => Self::User,
            _ if !HYPERVISOR.contains(&address) => Self::Kernel,
            _ if !OWN.contains(&address) => Self::Hypervisor,
            _ if PAGE_TABLES.contains(&address) => Self::PageTables,
            _ => Self::PerDomain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_the_top_level_belong_to_their_regions() {
        let slot = |number: u64| {
            let address = number << 39;
            Region::of(if number < 256 { address } else { address | 0xffff << 48 })
        };
        let expected = |number| match number {
            0..256 => Region::User,
            258 | 259 => Region::PageTables,
            260 => Region::PerDomain,
            256..272 => Region::Hypervisor,
            _ => Region::Kernel,
        };
        for number in 0..512 {
            assert_eq!(slot(number), expected(number), "{number}");
        }
        // The read-only and the writable table from machine to physical frames share no slot with the per-domain one.
        assert_eq!(Region::of(0xffff_8280_0000_0000), Region::Hypervisor);
    }
}
