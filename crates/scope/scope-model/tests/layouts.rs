//! Compares layouts with naive caches and TLBs, one for each, whose lines and pages are named by what lies in them.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use scope_model::{
    FixedPage, Flush, LAYOUT_TLBS, LAYOUTS, LayoutMisses, Layouts, Mapping, PageSize, Paging,
    Preset, Section, Side, TlbSet,
};

const PAGING: Paging = Paging { root: 0x1000, pcid: 0, tagged: false, global: true };
/// Physical lines; a page that does not move has the lines of its own number.
const LINES: u64 = 1 << 20;

/// DTLBs of each layout, for each size of pages.
#[expect(clippy::cast_possible_truncation, reason = "they are few")]
const TLBS: usize = LAYOUT_TLBS as usize;

/// What a line or a page holds: a place in memory, or in a section.
type Name = (Option<usize>, u64);

/// The most recently used first.
#[derive(Clone, Default)]
struct Lru(VecDeque<(Name, bool)>);

impl Lru {
    /// Uses an entry. Returns whether it was missing.
    fn misses(&mut self, name: Name, global: bool, room: usize) -> bool {
        let found = self.0.iter().position(|(held, _)| *held == name);
        let used = found.and_then(|found| self.0.remove(found)).unwrap_or((name, global));
        self.0.push_front(used);
        self.0.truncate(room);
        found.is_none()
    }
}

/// One layout: sets of L1I and L1D by number, and the DTLBs of all sizes for small and for large pages.
#[derive(Clone, Default)]
struct Naive {
    sets: HashMap<(bool, u64), Lru>,
    tlbs: [[Lru; TLBS]; 2],
    misses: LayoutMisses,
}

impl Naive {
    fn line(&mut self, side: Side, name: Name) {
        let is_code = side == Side::Code;
        let missed = self.sets.entry((is_code, name.1 % 64)).or_default().misses(name, false, 8);
        *(if is_code { &mut self.misses.code } else { &mut self.misses.data }) += u64::from(missed);
    }

    fn page(&mut self, name: Name, large: bool, global: bool) {
        let (first, step) = if large { (24, 1) } else { (48, 2) };
        for (number, tlb) in self.tlbs[usize::from(large)].iter_mut().enumerate() {
            let missed = tlb.misses(name, global, first + number * step);
            self.misses.pages += u64::from(missed);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Fixed(bool, u64, u64, bool),
    Moved(bool, usize, u64, u64),
    Invalidate(u64),
    NewSpace,
}

fn step() -> impl Strategy<Value = Step> {
    let page = prop_oneof![4 => 0u64..40, 1 => 0u64..400];
    prop_oneof![
        20 => (any::<bool>(), page.clone(), 0u64..64, prop::bool::weighted(0.9))
            .prop_map(|(c, p, l, mapped)| Step::Fixed(c, p, l, mapped)),
        40 => (any::<bool>(), 0usize..60, 0u64..6000, 1u64..130)
            .prop_map(|(c, section, at, bytes)| Step::Moved(c, section, at, bytes)),
        1 => page.prop_map(Step::Invalidate),
        1 => Just(Step::NewSpace),
    ]
}

fn side(code: bool) -> Side {
    if code { Side::Code } else { Side::Data }
}

/// Every fifth page is global, and every seventh is part of a large one. An unmapped one is used, too: the access faults.
fn mapping(page: u64, is_mapped: bool) -> Mapping {
    let size = if page.is_multiple_of(7) { PageSize::Large } else { PageSize::Small };
    Mapping {
        frame: page * 64,
        size: is_mapped.then_some(size),
        global: page.is_multiple_of(5),
        large: TlbSet::NONE,
    }
}

fn name_of(page: u64) -> Name {
    // Large pages have names of their own.
    (None, if page.is_multiple_of(7) { 1 << 40 | page >> 9 } else { page })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_layout_misses_as_caches_of_its_own_would(
        steps in prop::collection::vec(step(), 1..2500),
        seed: u64,
    ) {
        let align = |section: u64| [1u64, 16, 64][usize::try_from(section % 3).unwrap()];
        let sections: Vec<Section> = (0..60)
            .map(|section| Section { seed: seed ^ section, bytes: 6200, align: align(section) })
            .collect();
        let mut layouts = Layouts::new(Preset::Server.config(), PAGING, LINES, &sections);
        let shifts: Vec<[u16; LAYOUTS]> = sections.iter().map(Section::shifts).collect();
        let mut naive = vec![Naive::default(); LAYOUTS];
        let mut counted = LayoutMisses::default();
        for step in steps {
            match step {
                Step::Fixed(code, page, line, is_mapped) => {
                    let number = page * 64 + line;
                    counted.data += layouts.fixed(side(code), number);
                    let fixed = FixedPage { page, mapping: mapping(page, is_mapped) };
                    if !code {
                        counted.pages += layouts.fixed_page(fixed);
                    }
                    for naive in &mut naive {
                        naive.line(side(code), (None, number));
                        if !code && is_mapped {
                            naive.page(name_of(page), page.is_multiple_of(7), page.is_multiple_of(5));
                        }
                    }
                }
                Step::Moved(code, section, at, bytes) => {
                    counted += layouts.moved(side(code), section, (at, bytes));
                    for (naive, shift) in naive.iter_mut().zip(shifts[section]) {
                        let (first, last) = (at + u64::from(shift), at + u64::from(shift) + bytes - 1);
                        if !code {
                            let pages = first / 4096..=last / 4096;
                            pages.for_each(|page| naive.page((Some(section), page), false, false));
                        }
                        let lines = first / 64..=last / 64;
                        lines.for_each(|line| naive.line(side(code), (Some(section), line)));
                    }
                }
                Step::Invalidate(page) => {
                    layouts.flush(Flush::Page(page * 4096), false);
                    for naive in &mut naive {
                        // An address is in a small or in a large page.
                        let names = [(None, page), (None, 1 << 40 | page >> 9)];
                        for (tlbs, removed) in naive.tlbs.iter_mut().zip(names) {
                            tlbs.iter_mut().for_each(|tlb| tlb.0.retain(|(name, _)| *name != removed));
                        }
                    }
                }
                Step::NewSpace => {
                    layouts.flush(Flush::Cr3(0x2000), false);
                    for tlb in naive.iter_mut().flat_map(|naive| naive.tlbs.as_flattened_mut()) {
                        tlb.0.retain(|(_, global)| *global);
                    }
                }
            }
        }
        let of_each: Vec<LayoutMisses> = layouts.misses().collect();
        let expected: Vec<LayoutMisses> = naive.iter().map(|naive| naive.misses).collect();
        prop_assert_eq!(&of_each, &expected);
        let mut sum = LayoutMisses::default();
        of_each.into_iter().for_each(|misses| sum += misses);
        prop_assert_eq!(counted.code + counted.data, sum.code + sum.data);
        prop_assert_eq!(counted.pages, sum.pages);
    }

    #[test]
    fn layouts_spread_a_section_over_the_page_and_over_the_line(seed: u64) {
        let shifts = Section { seed, bytes: 100, align: 16 }.shifts();
        let mut quarters = [0; 4];
        let mut phases = [0; 4];
        for shift in shifts.map(usize::from) {
            prop_assert!(shift < 4096 && shift % 16 == 0);
            quarters[shift / 1024] += 1;
            phases[shift % 64 / 16] += 1;
        }
        prop_assert_eq!([quarters, phases], [[LAYOUTS / 4; 4]; 2]);
        prop_assert_eq!(shifts, Section { seed, bytes: 7, align: 16 }.shifts());
        let lines = Section { seed, bytes: 100, align: 64 }.shifts();
        prop_assert!(lines.iter().all(|shift| shift % 64 == 0));
    }
}
