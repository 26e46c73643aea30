//! Programs whose misses can be counted by hand, in a machine with its own page tables.

mod policies;
mod world;

use std::collections::VecDeque;

use proptest::prelude::*;
use scope_model::{
    Cache, Config, Flush, FlushSite, L2_BYTES, L2Bank, LINE, PageSize, Paging, Policy, Preset,
    Side, TLB_ENTRIES, WAYS, walk,
};
use world::{END, GLOBAL, Memory, OTHER, PAGE, ROOT, World, flush, missed, pages, read, world};

/// Chadha's processor.
fn preset() -> Config {
    Preset::Of2007.config()
}

const FIRST: u64 = 0x5000_0000;

/// Reads an array twice. A cache that holds it misses each line once; a smaller one misses every line in both rounds (the worst
/// case of LRU).
#[test]
fn a_walk_over_an_array_misses_where_it_should() {
    for (number, bytes) in L2_BYTES.iter().enumerate().take(3) {
        let lines = (bytes / LINE) as u64;
        let count = lines * LINE as u64 / PAGE;
        let mut world = world(pages(count, FIRST, 0), preset());
        for _ in 0..2 {
            (0..lines).for_each(|line| read(&mut world, FIRST + line * LINE as u64));
        }
        assert_eq!(world.counters.read_misses, 2 * lines, "larger than L1");
        for (other, misses) in world.sweep.l2d.iter().enumerate() {
            assert_eq!(*misses, if other < number { 2 * lines } else { lines }, "L2 {other}");
        }
    }
}

#[test]
fn l1_holds_as_much_as_its_size() {
    let lines = ((32 << 10) / LINE) as u64;
    let mut world = world(pages(8, FIRST, 0), preset());
    for _ in 0..3 {
        (0..lines).for_each(|line| read(&mut world, FIRST + line * LINE as u64));
    }
    assert_eq!(world.counters.read_misses, lines);
}

/// Reads one word per page, in rounds. A TLB holds as many pages as it has entries, and with one page more it never hits.
#[test]
fn a_stride_of_a_page_misses_in_tlbs_that_are_too_small() {
    for count in [16u64, 17, 64, 65, 1024, 1025] {
        let mut world = world(pages(count, FIRST, 0), preset());
        for _ in 0..3 {
            (0..count).for_each(|page| read(&mut world, FIRST + page * PAGE));
        }
        for policy in Policy::ALL {
            for (size, entries) in TLB_ENTRIES.iter().enumerate() {
                let fits = count <= u64::from(*entries);
                let expected = if fits { count } else { 3 * count };
                assert_eq!(
                    world.sweep.dtlb[policy as usize][size], expected,
                    "{policy:?} {entries}"
                );
            }
        }
        assert_eq!(world.counters.dtlb_misses, if count <= 64 { count } else { 3 * count });
        assert_eq!(world.counters.itlb_misses, 0);
    }
}

#[test]
fn large_pages_are_found_as_they_are_mapped() {
    let mut memory = Memory::default();
    for block in 0..8 {
        memory.map(ROOT, FIRST + (block << 21), block << 21, PageSize::Large);
    }
    let mut world = world(memory, preset());
    for _ in 0..2 {
        (0..8 * 512).for_each(|page| read(&mut world, FIRST + page * PAGE));
    }
    // Eight entries, which the smallest TLB for large pages has.
    assert_eq!(world.sweep.dtlb[Policy::Real as usize], [8; 7]);
}

#[test]
fn a_switch_flushes_what_the_policy_says() {
    let hypervisor = 0xffff_82d0_4000_0000;
    let mut memory = pages(4, FIRST, 0);
    for page in 0..4 {
        for root in [ROOT, OTHER] {
            let at = page * PAGE;
            memory.map(
                root,
                0xffff_ffff_8100_0000 + at,
                (0x6000_0000 + at) | GLOBAL,
                PageSize::Small,
            );
            memory.map(root, hypervisor + at, 0x7000_0000 + at, PageSize::Small);
        }
    }
    let mut world = world(memory, preset());
    for root in [ROOT, OTHER, ROOT, OTHER] {
        flush(&mut world, Flush::Cr3(root));
        for page in 0..4 {
            read(&mut world, FIRST + page * PAGE);
            read(&mut world, hypervisor + page * PAGE);
            read(&mut world, 0xffff_ffff_8100_0000 + page * PAGE);
        }
    }
    let misses = |policy| world.sweep.dtlb[policy as usize][3];
    // Four visits; four global pages once; the hypervisor's and the process's each time.
    assert_eq!(misses(Policy::Real), 4 + 4 * 4 + 4 * 4);
    assert_eq!(misses(Policy::NoGlobal), 4 * 12);
    // The hypervisor's pages once, all others each time.
    assert_eq!(misses(Policy::GlobalHypervisor), 4 + 2 * 4 * 4);
    // The kernel's and the hypervisor's pages once.
    assert_eq!(misses(Policy::GuestGlobal), 4 + 4 + 4 * 4);
    // The kernel's and the hypervisor's pages once, the process's once in each of both spaces.
    assert_eq!(misses(Policy::Tagged), 4 + 4 + 2 * 4);
}

#[test]
fn pcid_keeps_other_contexts_and_its_own_with_the_flag() {
    let memory = pages(4, FIRST, 0);
    let mut world = world(memory, preset());
    flush(&mut world, Flush::Cr4(1 << 7 | 1 << 17));
    let visit = |world: &mut World, cr3: u64| {
        flush(world, Flush::Cr3(cr3));
        let before = world.sweep.dtlb[0][3];
        (0..4).for_each(|page| read(world, FIRST + page * PAGE));
        world.sweep.dtlb[0][3] - before
    };
    let keep = 1 << 63;
    assert_eq!(visit(&mut world, ROOT | 1), 4);
    assert_eq!(visit(&mut world, OTHER | 2), 4);
    assert_eq!(visit(&mut world, ROOT | 1 | keep), 0, "kept");
    assert_eq!(visit(&mut world, OTHER | 2), 4, "its own are flushed");
    assert_eq!(visit(&mut world, ROOT | 1 | keep), 0, "others are kept");
    flush(&mut world, Flush::Pcid(1, 1, 0));
    assert_eq!(visit(&mut world, ROOT | 1 | keep), 4, "INVPCID of one context");
    flush(&mut world, Flush::Pcid(2, 0, 0));
    assert_eq!(visit(&mut world, ROOT | 1 | keep), 4, "of all");
}

#[test]
fn invlpg_removes_one_page_and_cr4_global_ones() {
    let mut world = world(pages(4, FIRST, GLOBAL), preset());
    let visit = |world: &mut World| {
        let before = world.sweep.dtlb[0][3];
        (0..4).for_each(|page| read(world, FIRST + page * PAGE));
        world.sweep.dtlb[0][3] - before
    };
    assert_eq!(visit(&mut world), 4);
    flush(&mut world, Flush::Page(FIRST + 2 * PAGE + 5));
    assert_eq!(visit(&mut world), 1);
    flush(&mut world, Flush::Cr3(OTHER));
    assert_eq!(visit(&mut world), 0, "global");
    flush(&mut world, Flush::Cr4(0));
    assert_eq!(visit(&mut world), 4);
}

#[test]
fn superpages_need_uniform_blocks() {
    let linear = 0xffff_8880_0000_0000;
    let mut memory = Memory::default();
    for page in 0..1024 {
        memory.map(ROOT, linear + page * PAGE, 0x4000_0000 + page * PAGE, PageSize::Small);
    }
    // One page of the second block may not be written to, as a page table.
    let table = walk(&memory, Paging { root: ROOT, ..Paging::default() }, linear + (600 << 12));
    let entry = table.unwrap().table + 88 * 8;
    *memory.words.get_mut(&entry).unwrap() &= !2;
    let mut world = world(memory, preset());
    (0..1024).for_each(|page| read(&mut world, linear + page * PAGE));
    let misses = |policy| world.sweep.dtlb[policy as usize][6];
    assert_eq!(misses(Policy::Real), 1024);
    assert_eq!(misses(Policy::Superpages), 1 + 512);
    assert_eq!(misses(Policy::GroupedSuperpages), 1 + 1 + 1);
}

#[test]
fn one_configuration_counts_the_same_as_among_all() {
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    let accesses: Vec<u64> = (0..200_000).map(|_| FIRST + next() % (700 * PAGE)).collect();
    let run = |single| {
        let config = Config { single, ..preset() };
        let mut world = world(pages(701, FIRST, 0), config);
        for (n, address) in accesses.iter().enumerate() {
            read(&mut world, *address);
            world.fetch(*address);
            if n % 1000 == 0 {
                flush(&mut world, Flush::Cr3(if n % 2000 == 0 { ROOT } else { OTHER }));
            }
        }
        world.counters
    };
    let site = run(false);
    assert_eq!(site, run(true));
    assert!(site.dtlb_misses > 0 && site.l2d_misses > 0 && site.l1i_misses > 0);
}

#[test]
fn misses_are_counted_under_the_policy_that_is_asked_for() {
    for policy in Policy::ALL {
        let config = Config { policy, ..preset() };
        let mut world = world(pages(80, FIRST, GLOBAL), config);
        for round in 0..5 {
            (0..40 + 10 * round).for_each(|page| read(&mut world, FIRST + page * PAGE));
            flush(&mut world, Flush::Cr3(if round % 2 == 0 { OTHER } else { ROOT }));
        }
        let expected = world.sweep.dtlb[policy as usize][config.tlb];
        assert_eq!(world.counters.dtlb_misses, expected, "{}", policy.name());
        assert_eq!(world.counters.page_walks, expected, "{}", policy.name());
        let real = world.sweep.dtlb[Policy::Real as usize][config.tlb];
        assert_eq!(
            expected == real,
            !matches!(policy, Policy::NoGlobal | Policy::GlobalHypervisor | Policy::Tagged),
            "{}",
            policy.name()
        );
    }
}

#[test]
fn data_across_two_lines_and_two_pages_is_both() {
    let mut world = world(pages(2, FIRST, 0), preset());
    read(&mut world, FIRST + PAGE - 4);
    assert_eq!((world.counters.read_misses, world.counters.dtlb_misses), (2, 2));
}

#[test]
fn accesses_to_unmapped_pages_are_counted() {
    let mut world = world(Memory::default(), preset());
    read(&mut world, 0x7f00_0000_0000);
    assert_eq!(world.walker.untranslated(), 1);
    assert_eq!(world.counters.read_misses, 1);
    // An access to a physical address goes there, and looks up no TLB.
    read(&mut world, FIRST);
    assert_eq!(world.walker.untranslated(), 1);
    assert_eq!(world.model.cached_address(FIRST), FIRST);
    assert_eq!((world.counters.read_misses, world.counters.dtlb_misses), (2, 0));
}

proptest! {
    /// Hot pages change no count, nor does the small number of slots.
    #[test]
    fn a_stream_misses_as_one_by_one(
        accesses in prop::collection::vec((0u64..40, 0u64..64, any::<bool>(), 0u8..70), 1..3000),
    ) {
        /// The distance of pages that share a slot. The first slot is in the middle of the pages.
        const APART: u64 = 1024;
        let from = FIRST / PAGE / APART * APART + APART - 10;
        let address = |page: u64| (from + page % 20 + page / 20 * APART) * PAGE;
        let config = Config { l1_bytes: 4096, tlb: 0, ..preset() };
        let mut world = world(pages(2 * APART, from * PAGE, 0), config);
        let mut naive = [(); 2].map(|()| Naive::new());
        let (mut at, mut other) = (address(0), address(1));
        for (page, line, write, what) in accesses {
            match what {
                0 => {
                    flush(&mut world, Flush::Cr3(ROOT));
                    naive.iter_mut().for_each(|side| side.held.clear());
                    continue;
                }
                1 => {
                    let page = at / PAGE;
                    flush(&mut world, Flush::Page(at));
                    naive.iter_mut().for_each(|side| side.held.retain(|held| *held != page));
                    continue;
                }
                // Mostly continue, or change to the other side of a copy.
                2..20 => at = at / PAGE * PAGE + (at + 8) % PAGE,
                20..35 => std::mem::swap(&mut at, &mut other),
                _ => at = address(page) + line * LINE as u64,
            }
            let side = if what < 50 { Side::Data } else { Side::Code };
            match side {
                Side::Data => world.data(at / 8 * 8, 8, write),
                Side::Code => world.fetch(at),
            }
            naive[side as usize].access(at / PAGE, (0x4000_0000 + at - from * PAGE) / LINE as u64);
        }
        let [code, data] = &naive;
        let site = &world.counters;
        prop_assert_eq!((site.l1i_misses, site.itlb_misses), (code.line_misses, code.page_misses));
        let misses = (site.read_misses + site.write_misses, site.dtlb_misses);
        prop_assert_eq!(misses, (data.line_misses, data.page_misses));
    }
}

/// The L1 and the smallest TLB of one side.
struct Naive {
    lines: Cache,
    held: VecDeque<u64>,
    line_misses: u64,
    page_misses: u64,
}

impl Naive {
    fn new() -> Self {
        let lines = Cache::new(4096, END / LINE as u64);
        Self { lines, held: VecDeque::new(), line_misses: 0, page_misses: 0 }
    }

    fn access(&mut self, page: u64, line: u64) {
        self.line_misses += u64::from(self.lines.access(line) == WAYS);
        let found = self.held.iter().position(|held| *held == page);
        self.page_misses += u64::from(found.is_none());
        found.map(|found| self.held.remove(found));
        self.held.push_front(page);
        self.held.truncate(16);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Skipping the lookups in larger L2s changes no count.
    #[test]
    fn every_l2_misses_as_a_separate_cache_would(
        lines in prop::collection::vec((0u64..1 << 20, 1u64..2000, prop::bool::ANY), 1..200),
    ) {
        let limit = END / LINE as u64;
        let mut all = L2Bank::new(preset(), limit);
        let mut single = L2_BYTES.map(|bytes| Cache::new(bytes, limit));
        for (first, count, again) in lines {
            // Runs of lines, and the same set of small caches over and over.
            let step = if again { 1 << 9 } else { 1 };
            let run: Vec<u64> = (0..count).map(|n| (first + n * step) % (1 << 20)).collect();
            for (line, missed) in run.iter().zip(missed(&mut all, &run)) {
                for (number, cache) in single.iter_mut().enumerate() {
                    prop_assert_eq!(missed >> number & 1 != 0, cache.access(*line) == WAYS);
                }
            }
        }
    }
}

/// A copy misses its lines in a row, a list its nodes one by one; the L3 has what the L2 lost, and the second level of TLBs
/// what the first lost.
#[test]
fn second_levels_and_rows_are_counted_apart() {
    let count = 1024;
    let mut world = world(pages(count, FIRST, 0), Preset::Server.config());
    let round = |world: &mut World, lines: &mut dyn Iterator<Item = u64>| {
        world.counters = scope_model::Counters::default();
        lines.for_each(|line| read(world, FIRST + line * LINE as u64));
        world.counters
    };
    // 4 MiB: more than the L2, less than the L3, and as many pages as the second level of TLBs has entries.
    let lines = count * PAGE / LINE as u64;
    let first = round(&mut world, &mut (0..lines));
    assert_eq!((first.l2d_misses, first.l3_misses), (lines, lines));
    // All but the first line of the copy, whose pages are neighbours in memory too.
    assert_eq!((first.l2_sequential, first.l3_sequential), (lines - 1, lines - 1));
    assert_eq!((first.dtlb_misses, first.page_walks), (count, count));
    let second = round(&mut world, &mut (0..lines));
    assert_eq!((second.l2d_misses, second.l3_misses, second.page_walks), (lines, 0, 0));
    assert_eq!(second.dtlb_misses, count);
    // Every 67th line, modulo the number of lines: isolated.
    let isolated = round(&mut world, &mut (0..lines).map(|n| n * 67 % lines));
    // The L2 has at most as many of them as it has lines.
    assert!(isolated.l2d_misses >= lines - (1 << 20) / LINE as u64);
    assert_eq!(isolated.l2_sequential, 0);
}
