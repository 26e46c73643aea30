//! Compares all policies with naive TLBs, one for each policy, size and kind of page, on random traces.
//!
//! A naive TLB is a list. What each event removes is written down here a second time, so a policy that flushes too much has
//! more misses than its list, and one that flushes too little has fewer.

use scope_model::TLB_SIZES;

use super::world::{GLOBAL, Memory, OTHER, PAGE, ROOT, World, flush, read, world};
use super::*;

/// Pages of every region, some of them marked global. The linear map has a block whose pages have the same rights, and one
/// that a read-only page breaks up.
const PROGRAM: u64 = 0x5000_0000;
const MARKED_PROGRAM: u64 = 0x5100_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const MARKED_KERNEL: u64 = 0xffff_ffff_8200_0000;
const LINEAR: u64 = 0xffff_8880_0000_0000;
const LINEAR_BROKEN: u64 = LINEAR + (2 << 20);
const XEN: u64 = 0xffff_82d0_4000_0000;
const MARKED_XEN: u64 = 0xffff_8300_0000_0000;
const PER_DOMAIN: u64 = 0xffff_8200_0000_0000;
const PAGE_TABLES: u64 = 0xffff_8100_0000_0000;
const LARGE_PAGES: u64 = 0xffff_ffff_8800_0000;
const HUGE_PAGES: u64 = 0xffff_c900_0000_0000;

const SMALL_REGIONS: [(u64, u64); 8] = [
    (PROGRAM, 0),
    (MARKED_PROGRAM, GLOBAL),
    (KERNEL, 0),
    (MARKED_KERNEL, GLOBAL),
    (XEN, 0),
    (MARKED_XEN, GLOBAL),
    (PER_DOMAIN, 0),
    (PAGE_TABLES, 0),
];
const COUNT: u64 = 20;

fn memory() -> Memory {
    let mut memory = Memory::default();
    for root in [ROOT, OTHER] {
        for (number, (first, flags)) in (0..).zip(SMALL_REGIONS) {
            for page in 0..COUNT {
                let physical = (number << 28) + page * PAGE;
                memory.map(root, first + page * PAGE, physical | flags, PageSize::Small);
            }
        }
        for page in 0..1024 {
            memory.map(root, LINEAR + page * PAGE, page * PAGE, PageSize::Small);
        }
        for page in 0..COUNT {
            memory.map(root, LARGE_PAGES + (page << 21), page << 21, PageSize::Large);
            memory.map(root, HUGE_PAGES + (page << 30), GLOBAL, PageSize::Huge);
        }
        let broken = LINEAR_BROKEN + 3 * PAGE;
        let table = walk(&memory, Paging { root, ..Paging::default() }, broken);
        let entry = table.expect("mapped").table + 3 * 8;
        *memory.words.get_mut(&entry).expect("mapped") &= !2;
    }
    memory
}

/// An entry: its page, and its address space unless it is global.
type Entry = (u64, PageSize, Option<u64>);

/// A TLB of one policy.
struct NaiveTlb {
    capacity: usize,
    held: Vec<Entry>,
}

impl NaiveTlb {
    fn misses(&mut self, (page, size, owner): Entry) -> bool {
        let found = self.held.iter().position(|held| *held == (page, size, owner));
        if let Some(found) = found {
            self.held.remove(found);
        }
        self.held.insert(0, (page, size, owner));
        self.held.truncate(self.capacity);
        found.is_none()
    }
}

/// All TLBs of one side under one policy.
struct NaivePolicy {
    policy: Policy,
    small: Vec<NaiveTlb>,
    large: Vec<NaiveTlb>,
    misses: [u64; TLB_SIZES],
}

impl NaivePolicy {
    fn new(policy: Policy) -> Self {
        let tlbs = |half: u16| {
            let tlb = |entries: &u16| NaiveTlb {
                capacity: usize::from(entries / half),
                held: Vec::new(),
            };
            TLB_ENTRIES.iter().map(tlb).collect()
        };
        Self { policy, small: tlbs(1), large: tlbs(2), misses: [0; TLB_SIZES] }
    }

    fn access(&mut self, root: u64, address: u64) {
        let page_of = |first: u64, count: u64| (first..first + count).contains(&address);
        let linear = page_of(LINEAR, 4 << 20);
        let broken = page_of(LINEAR_BROKEN, 2 << 20);
        let read_only = page_of(LINEAR_BROKEN + 3 * PAGE, PAGE);
        let is_large = match self.policy {
            Policy::Superpages => linear && !broken,
            Policy::GroupedSuperpages | Policy::GuestGlobalSuperpages => linear && !read_only,
            _ => false,
        };
        let size = if is_large || page_of(LARGE_PAGES, COUNT << 21) {
            PageSize::Large
        } else if page_of(HUGE_PAGES, COUNT << 30) {
            PageSize::Huge
        } else {
            PageSize::Small
        };
        let marked = [MARKED_PROGRAM, MARKED_KERNEL, MARKED_XEN]
            .iter()
            .any(|first| page_of(*first, COUNT * PAGE))
            || size == PageSize::Huge;
        let program = address < 1 << 47;
        let xen = page_of(XEN, COUNT * PAGE) || page_of(MARKED_XEN, COUNT * PAGE);
        let own = page_of(PER_DOMAIN, COUNT * PAGE) || page_of(PAGE_TABLES, COUNT * PAGE);
        let global = match self.policy {
            Policy::GlobalHypervisor => xen,
            Policy::Tagged => xen || marked && !program && !own,
            Policy::GuestGlobal | Policy::GuestGlobalSuperpages => {
                if program {
                    marked
                } else {
                    !page_of(PAGE_TABLES, COUNT * PAGE)
                }
            }
            _ => marked,
        };
        let owner = (!global).then_some(root);
        let entry = (address >> size.bits() << size.bits(), size, owner);
        let tlbs = if size == PageSize::Small { &mut self.small } else { &mut self.large };
        for (tlb, misses) in tlbs.iter_mut().zip(&mut self.misses) {
            *misses += u64::from(tlb.misses(entry));
        }
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        let tlbs = self.small.iter_mut().chain(&mut self.large);
        tlbs.for_each(|tlb| tlb.held.retain(&keep));
    }

    fn is_guest_global(&self) -> bool {
        matches!(self.policy, Policy::GuestGlobal | Policy::GuestGlobalSuperpages)
    }

    fn change_tables(&mut self) {
        match self.policy {
            Policy::NoGlobal => self.retain(|_| false),
            Policy::Tagged => {}
            _ => self.retain(|(_, _, owner)| owner.is_none()),
        }
    }

    /// The hypervisor switches to another process or domain: it flushes everything, and would not have to.
    fn new_space(&mut self) {
        match self.policy {
            Policy::GlobalHypervisor => self.retain(|(_, _, owner)| owner.is_none()),
            Policy::Tagged => {}
            _ if self.is_guest_global() => {
                self.retain(|(page, _, owner)| owner.is_none() && *page >= 1 << 47);
            }
            _ => self.retain(|_| false),
        }
    }

    fn invalidate(&mut self, root: u64, address: u64) {
        self.retain(|(page, size, owner)| {
            let same_space = owner.is_none_or(|owner| owner == root);
            !(same_space && *page == address >> size.bits() << size.bits())
        });
    }
}

#[derive(Clone, Debug)]
enum Step {
    Access {
        code: bool,
        region: usize,
        page: u64,
    },
    /// A change between the page tables of one process.
    ChangeTables,
    /// A switch to another process of the domain, or to another domain.
    NewSpace {
        domain: bool,
    },
    /// An explicit flush of everything.
    FlushAll,
    Invalidate {
        region: usize,
        page: u64,
    },
}

fn address(region: usize, page: u64) -> u64 {
    match region {
        0..8 => SMALL_REGIONS[region].0 + page % COUNT * PAGE,
        8 => LINEAR + (page * 8 % 1024) * PAGE,
        9 => LINEAR_BROKEN + page % 8 * PAGE,
        10 => LARGE_PAGES + ((page % COUNT) << 21),
        _ => HUGE_PAGES + ((page % COUNT) << 30),
    }
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0usize..12, 0u64..200);
    prop_oneof![
        80 => (any::<bool>(), place())
            .prop_map(|(code, (region, page))| Step::Access { code, region, page }),
        3 => Just(Step::ChangeTables),
        3 => any::<bool>().prop_map(|domain| Step::NewSpace { domain }),
        1 => Just(Step::FlushAll),
        3 => place().prop_map(|(region, page)| Step::Invalidate { region, page }),
    ]
}

/// CR4 with PGE, and without.
const PGE: u64 = 1 << 7;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_policy_misses_as_its_rules_say(steps in prop::collection::vec(step(), 1..1500)) {
        let mut world = world(memory(), Config::default());
        let mut naive = [(); 2].map(|()| Policy::ALL.map(NaivePolicy::new));
        let mut root = ROOT;
        for step in steps {
            let next = if root == ROOT { OTHER } else { ROOT };
            let mut both = naive.iter_mut().flatten();
            match step {
                Step::Access { code, region, page } => {
                    let address = address(region, page);
                    if code { world.fetch(address) } else { read(&mut world, address) }
                    naive[usize::from(code)].iter_mut().for_each(|tlbs| tlbs.access(root, address));
                }
                Step::ChangeTables => {
                    root = next;
                    flush(&mut world, Flush::Cr3(root));
                    both.for_each(NaivePolicy::change_tables);
                }
                Step::NewSpace { domain } => {
                    root = next;
                    if domain {
                        world.model.switch_domain();
                        both.by_ref().filter(|tlbs| tlbs.is_guest_global()).for_each(|tlbs| {
                            tlbs.retain(|_| false);
                        });
                    }
                    for what in [Flush::Cr4(0), Flush::Cr3(root), Flush::Cr4(PGE)] {
                        world.flush(what, FlushSite::NewSpace);
                    }
                    naive.iter_mut().flatten().for_each(NaivePolicy::new_space);
                }
                Step::FlushAll => {
                    flush(&mut world, Flush::Cr4(0));
                    flush(&mut world, Flush::Cr4(PGE));
                    both.for_each(|tlbs| tlbs.retain(|_| false));
                }
                Step::Invalidate { region, page } => {
                    let address = address(region, page);
                    flush(&mut world, Flush::Page(address));
                    both.for_each(|tlbs| tlbs.invalidate(root, address));
                }
            }
        }
        for (tlbs, misses) in naive.iter().zip([&world.sweep.dtlb, &world.sweep.itlb]) {
            for tlbs in tlbs {
                prop_assert_eq!(misses[tlbs.policy as usize], tlbs.misses, "{:?}", tlbs.policy);
            }
        }
    }
}

/// Kernel and hypervisor pages after a switch of processes in one domain, and of domains.
#[test]
fn guest_global_keeps_kernels_within_a_domain_and_nothing_beyond() {
    let mut world = world(memory(), Config::default());
    let visit = |world: &mut World| {
        let before = world.sweep.dtlb[Policy::GuestGlobal as usize][3];
        [PROGRAM, MARKED_PROGRAM, KERNEL, XEN, PER_DOMAIN, PAGE_TABLES]
            .iter()
            .for_each(|page| read(world, *page));
        world.sweep.dtlb[Policy::GuestGlobal as usize][3] - before
    };
    assert_eq!(visit(&mut world), 6);
    flush(&mut world, Flush::Cr3(ROOT));
    assert_eq!(visit(&mut world), 2, "the unmarked program and the page tables");
    for what in [Flush::Cr4(0), Flush::Cr3(OTHER), Flush::Cr4(PGE)] {
        world.flush(what, FlushSite::NewSpace);
    }
    assert_eq!(visit(&mut world), 3, "also the marked program");
    world.model.switch_domain();
    assert_eq!(visit(&mut world), 6, "another domain");
}

/// The hypervisor's own function for a switch empties the processor's TLBs. It must not empty those of policies that would
/// make it superfluous; an explicit flush must.
#[test]
fn a_switch_keeps_what_a_policy_would_keep_and_an_explicit_flush_nothing() {
    let mut world = world(memory(), Config::default());
    let visit = |world: &mut World| {
        let before = world.sweep.dtlb;
        read(world, XEN);
        read(world, KERNEL);
        Policy::ALL.map(|policy| world.sweep.dtlb[policy as usize][3] - before[policy as usize][3])
    };
    let of = |policy: Policy, misses: [u64; Policy::ALL.len()]| misses[policy as usize];
    visit(&mut world);
    for root in [OTHER, ROOT] {
        for what in [Flush::Cr4(0), Flush::Cr3(root), Flush::Cr4(PGE)] {
            world.flush(what, FlushSite::NewSpace);
        }
    }
    let misses = visit(&mut world);
    assert_eq!(of(Policy::Real, misses), 2);
    assert_eq!(of(Policy::GlobalHypervisor, misses), 1);
    assert_eq!(of(Policy::Tagged, misses), 0);
    assert_eq!(of(Policy::GuestGlobal, misses), 0);
    flush(&mut world, Flush::Cr4(0));
    flush(&mut world, Flush::Cr4(PGE));
    assert_eq!(visit(&mut world), [2; Policy::ALL.len()]);
}

#[test]
fn invpcid_removes_what_it_names_and_no_more() {
    let mut world = world(memory(), Config::default());
    flush(&mut world, Flush::Cr4(PGE | 1 << 17));
    let keep = 1 << 63;
    let pages = [PROGRAM, PROGRAM + PAGE, MARKED_KERNEL];
    let visit = |world: &mut World, cr3: u64| {
        flush(world, Flush::Cr3(cr3 | keep));
        let before = world.sweep.dtlb[0][3];
        pages.iter().for_each(|page| read(world, *page));
        world.sweep.dtlb[0][3] - before
    };
    assert_eq!(visit(&mut world, ROOT | 1), 3);
    assert_eq!(visit(&mut world, OTHER | 2), 2, "all but the global page");
    // One address of a PCID that is not the present one.
    flush(&mut world, Flush::Pcid(0, 1, PROGRAM));
    assert_eq!(visit(&mut world, OTHER | 2), 0);
    assert_eq!(visit(&mut world, ROOT | 1), 1);
    // A global page is not of any PCID.
    flush(&mut world, Flush::Pcid(0, 1, MARKED_KERNEL));
    assert_eq!(visit(&mut world, ROOT | 1), 0);
    flush(&mut world, Flush::Pcid(1, 2, 0));
    assert_eq!((visit(&mut world, ROOT | 1), visit(&mut world, OTHER | 2)), (0, 2));
    flush(&mut world, Flush::Pcid(3, 0, 0));
    assert_eq!((visit(&mut world, ROOT | 1), visit(&mut world, OTHER | 2)), (2, 2));
    flush(&mut world, Flush::Pcid(2, 0, 0));
    assert_eq!((visit(&mut world, ROOT | 1), visit(&mut world, OTHER | 2)), (3, 2));
}
