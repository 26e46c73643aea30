//! The TLBs of one side, for small and for large pages.

use crate::address_space::Region;
use crate::config::{Policy, TLB_ENTRIES, TlbSet};
use crate::hot_pages::{NO_PINS, Pin, Pins};
use crate::keys::{self, GLOBAL};
use crate::mapping::Mapping;
use crate::paging::PageSize;
use crate::tlb::Tlb;

const GLOBAL_HYPERVISOR: TlbSet = TlbSet::of(Policy::GlobalHypervisor);
const TAGGED: TlbSet = TlbSet::of(Policy::Tagged);
const GUEST_GLOBAL: TlbSet =
    TlbSet::of(Policy::GuestGlobal).union(TlbSet::of(Policy::GuestGlobalSuperpages));
/// The policies under which a page is global if its page tables say so.
const AS_MAPPED: TlbSet =
    TlbSet::ALL.without(GLOBAL_HYPERVISOR).without(TAGGED).without(GUEST_GLOBAL);

/// The policies under which a page is global; `mapped` tells what its page tables say.
///
/// Xen marks the pages of its guests' programs global, to keep them while the guest's kernel runs, and clears CR4.PGE to flush
/// them. Policies that keep pages then must not rely on the mark.
#[inline]
fn global_under(address: u64, mapped: bool) -> TlbSet {
    let others = match Region::of(address) {
        // The kernel's page tables map a program too; a switch to another program changes them.
        Region::User => GUEST_GLOBAL.only_if(mapped),
        Region::Kernel => GUEST_GLOBAL.union(TAGGED.only_if(mapped)),
        Region::Hypervisor => GUEST_GLOBAL.union(TAGGED).union(GLOBAL_HYPERVISOR),
        Region::PerDomain => GUEST_GLOBAL,
        Region::PageTables => TlbSet::NONE,
    };
    others.union(AS_MAPPED.only_if(mapped))
}

/// The TLBs of one side, in all sizes and under all policies.
#[derive(Debug)]
pub struct Tlbs {
    small: Tlb,
    large: Tlb,
    modelled: TlbSet,
}

impl Tlbs {
    /// Empty TLBs; only those of `modelled` are modelled. Pages of 2 MiB and of 1 GiB share a TLB.
    pub fn new(modelled: TlbSet) -> Self {
        let half = TLB_ENTRIES.map(|entries| entries / 2);
        Self { small: Tlb::new(TLB_ENTRIES, modelled), large: Tlb::new(half, modelled), modelled }
    }

    fn of(&mut self, is_large: bool) -> &mut Tlb {
        if is_large { &mut self.large } else { &mut self.small }
    }

    /// Uses a page of the address space `space`, and pins its entries. `pins` receives them; its entries from before are hints,
    /// which may be stale. Returns the TLBs that missed.
    pub fn pin(&mut self, page: u64, mapping: Mapping, space: u16, pins: &mut Pins) -> TlbSet {
        let Some(size) = mapping.size else {
            *pins = NO_PINS;
            return TlbSet::NONE;
        };
        let (address, mut missed) = (page << 12, TlbSet::NONE);
        let global = global_under(address, mapping.global);
        let own_size = TlbSet::ALL.without(mapping.large);
        let groups = [
            (size, GLOBAL, own_size.without(own_size.without(global))),
            (size, space, own_size.without(global)),
            (PageSize::Large, GLOBAL, mapping.large.without(mapping.large.without(global))),
            (PageSize::Large, space, mapping.large.without(global)),
        ];
        for (slot, (size, tag, tlbs)) in groups.into_iter().enumerate() {
            if !tlbs.intersects(self.modelled) {
                pins[slot] = None;
                continue;
            }
            let is_large = size != PageSize::Small;
            let hint = pins[slot].map(|(_, entry)| entry);
            let key = keys::key(address, size, tag);
            let (entry, these) = self.of(is_large).pin(key, tlbs, hint);
            pins[slot] = entry.map(|entry| (is_large, entry));
            missed = missed.union(these);
        }
        missed
    }

    /// Unpins an entry, which becomes the newest of those that are not pinned.
    pub fn unpin(&mut self, (is_large, entry): Pin) {
        self.of(is_large).unpin(entry);
    }

    /// Removes each page from the TLBs that `removed` returns for its key. No entry is pinned.
    pub fn flush(&mut self, removed: impl Fn(u64) -> TlbSet) {
        self.small.flush(&removed);
        self.large.flush(&removed);
    }

    /// Removes the page of an address from all TLBs, of any size, if its tag is one of these. No entry is pinned.
    pub fn invalidate(&mut self, address: u64, tags: &[u16]) {
        for tag in tags {
            for size in [PageSize::Small, PageSize::Large, PageSize::Huge] {
                let key = keys::key(address, size, *tag);
                self.of(size != PageSize::Small).invalidate(key, TlbSet::ALL);
            }
        }
    }
}
