//! The TLBs of one side, for small and for large pages.

use std::ops::Range;

use crate::geometry::TLB_ENTRIES;
use crate::hot_pages::Pin;
use crate::keys::{self, GLOBAL};
use crate::mapping::Mapping;
use crate::paging::PageSize;
use crate::policy::Policy;
use crate::tlb::Tlb;
use crate::tlb_set::TlbSet;

/// Xen's own part of every address space (`xen/arch/x86/include/asm/config.h`).
const HYPERVISOR: Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;

/// The TLBs of one side, in all sizes and under all policies.
#[derive(Debug)]
pub struct Tlbs {
    small: Tlb,
    large: Tlb,
}

impl Tlbs {
    /// Empty TLBs; only those of `modelled` are modelled.
    pub fn new(modelled: TlbSet) -> Self {
        let half = TLB_ENTRIES.map(|entries| entries / 2);
        Self { small: Tlb::new(TLB_ENTRIES, modelled), large: Tlb::new(half, modelled) }
    }

    fn of(&mut self, is_large: bool) -> &mut Tlb {
        if is_large { &mut self.large } else { &mut self.small }
    }

    /// Uses a page of the address space `space`, and pins its entries. `pins` receives them; `hints` are those that it had
    /// when it was pinned before, which may be stale. Returns the TLBs that missed.
    pub fn pin(
        &mut self,
        page: u64,
        mapping: Mapping,
        space: u16,
        hints: [Option<Pin>; 3],
        pins: &mut [Option<Pin>; 3],
    ) -> TlbSet {
        let Some(size) = mapping.size else { return TlbSet::NONE };
        let (address, global) = (page << 12, mapping.global);
        let tag = if global { GLOBAL } else { space };
        let (mut others, mut missed) = (TlbSet::ALL.without(mapping.large), TlbSet::NONE);
        let mut pin = |slot: usize, size, tag, global, tlbs| {
            let is_large = size != PageSize::Small;
            let hint = hints[slot].map(|(_, entry)| entry);
            let key = keys::key(address, size, tag);
            let (entry, these) = self.of(is_large).pin(key, global, tlbs, hint);
            pins[slot] = entry.map(|entry| (is_large, entry));
            missed = missed.union(these);
        };
        if mapping.large != TlbSet::NONE {
            pin(0, PageSize::Large, tag, global, mapping.large);
        }
        if !global && HYPERVISOR.contains(&address) {
            let policy = TlbSet::of(Policy::GlobalHypervisor);
            others = others.without(policy);
            pin(1, size, GLOBAL, true, policy);
        }
        pin(2, size, tag, global, others);
        missed
    }

    /// Unpins an entry, which becomes the newest of those that are not pinned.
    pub fn unpin(&mut self, (is_large, entry): Pin) {
        self.of(is_large).unpin(entry);
    }

    /// Removes the entries that `goes` selects from the TLBs of `tlbs`; it gets an entry's key and whether it is global. No
    /// entry is pinned.
    pub fn flush(&mut self, tlbs: TlbSet, goes: impl Fn(u64, bool) -> bool) {
        self.small.flush(tlbs, &goes);
        self.large.flush(tlbs, &goes);
    }

    /// Removes the page of an address from all TLBs, of any size, global or of the address space `space`. No entry is pinned.
    pub fn invalidate(&mut self, address: u64, space: u16) {
        for tag in [space, GLOBAL] {
            for size in [PageSize::Small, PageSize::Large, PageSize::Huge] {
                let key = keys::key(address, size, tag);
                self.of(size != PageSize::Small).invalidate(key, TlbSet::ALL);
            }
        }
    }
}
