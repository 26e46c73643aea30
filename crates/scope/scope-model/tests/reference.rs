//! Compares the models with naive ones on random traces.

use std::collections::VecDeque;

use proptest::prelude::*;
use scope_model::{
    Cache, LINE, LineId, Mapping, Model, Outcome, PageSize, Paging, Policy, Preset, Side,
    TLB_ENTRIES, TLB_SIZES, Tlb, TlbSet, WAYS,
};

/// A naive LRU set, the most recently used first.
#[derive(Clone, Default)]
struct Lru {
    room: usize,
    held: VecDeque<(u64, bool)>,
}

impl Lru {
    fn new(room: usize) -> Self {
        Self { room, held: VecDeque::new() }
    }

    fn access(&mut self, key: u64, global: bool) -> bool {
        let found = self.held.iter().position(|(held, _)| *held == key);
        if let Some(found) = found {
            self.held.remove(found);
        }
        self.held.push_front((key, global));
        self.held.truncate(self.room);
        found.is_some()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Access(u64, bool, u64),
    Invalidate(u64, u64),
    FlushLocal(u64),
    FlushAll(u64),
}

/// The policies that use a page, which depend on the page only.
fn policies_of(key: u64, choice: u64) -> TlbSet {
    match key % 5 {
        0 => TlbSet::ALL,
        1 => TlbSet::ALL.without(TlbSet::of(Policy::Superpages)),
        2 => TlbSet::of(Policy::Tagged).union(TlbSet::of(Policy::NoGlobal)),
        _ if choice == 0 => TlbSet::ALL,
        _ => TlbSet::ALL.without(TlbSet::of(Policy::GlobalHypervisor)),
    }
}

fn policies(bits: u64) -> TlbSet {
    let chosen = Policy::ALL.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0);
    chosen.fold(TlbSet::NONE, |mask, (_, policy)| mask.union(TlbSet::of(*policy)))
}

fn step() -> impl Strategy<Value = Step> {
    // Few frequent pages and some rare ones, so that every size has hits and victims.
    let key = prop_oneof![6 => 0u64..24, 3 => 0u64..200, 1 => 0u64..3000];
    prop_oneof![
        60 => (key.clone(), any::<bool>()).prop_map(|(key, global)| Step::Access(key, global, 0)),
        2 => (key, 0u64..64).prop_map(|(key, mask)| Step::Invalidate(key, mask)),
        1 => (0u64..64).prop_map(Step::FlushLocal),
        1 => (0u64..64).prop_map(Step::FlushAll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_tlb_hits_as_a_separate_one_would(steps in prop::collection::vec(step(), 1..3000)) {
        let mut tlbs = Tlb::new(TLB_ENTRIES, TlbSet::ALL);
        let mut naive: Vec<Lru> = (0..TLB_SIZES * Policy::ALL.len())
            .map(|n| Lru::new(TLB_ENTRIES[n % TLB_SIZES].into()))
            .collect();
        let has = |mask: TlbSet, n: usize| mask.0 & (1 << n) != 0;
        for step in steps {
            match step {
                Step::Access(key, global, choice) => {
                    // Whether a page is global depends on the page only.
                    let global = global && key % 3 == 0;
                    let (key, mask) = (key * 2 + u64::from(global), policies_of(key, choice));
                    let missed = tlbs.access(key, mask);
                    for (n, lru) in naive.iter_mut().enumerate().filter(|(n, _)| has(mask, *n)) {
                        prop_assert_eq!(!has(missed, n), lru.access(key, global), "TLB {}", n);
                    }
                    prop_assert_eq!(missed.without(mask), TlbSet::NONE);
                }
                Step::Invalidate(key, bits) => {
                    let mask = policies(bits);
                    for key in [key * 2, key * 2 + 1] {
                        tlbs.invalidate(key, mask);
                        for (_, lru) in naive.iter_mut().enumerate().filter(|(n, _)| has(mask, *n)) {
                            lru.held.retain(|(held, _)| *held != key);
                        }
                    }
                }
                Step::FlushLocal(bits) | Step::FlushAll(bits) => {
                    let all = matches!(step, Step::FlushAll(_));
                    let mask = policies(bits);
                    tlbs.flush(|key| mask.only_if(all || key % 2 == 0));
                    for (_, lru) in naive.iter_mut().enumerate().filter(|(n, _)| has(mask, *n)) {
                        lru.held.retain(|(_, global)| !all && *global);
                    }
                }
            }
        }
        let mut held = vec![TlbSet::NONE; 6000];
        for (n, lru) in naive.iter().enumerate() {
            lru.held.iter().for_each(|(key, _)| held[usize::try_from(*key).unwrap()].0 |= 1 << n);
        }
        for (key, held) in (0..).zip(held) {
            prop_assert_eq!(tlbs.resident(key), held, "page {}", key);
        }
    }

    #[test]
    fn a_cache_hits_as_one_list_per_set_would(
        lines in prop::collection::vec(prop_oneof![4 => 0u64..64, 1 => 0u64..4096], 1..4000),
        sets in prop::sample::select(vec![1usize, 2, 8, 64]),
        // For short tags, and for long ones.
        limit in prop::sample::select(vec![4096u64, 1 << 30]),
    ) {
        let mut cache = Cache::new(sets * WAYS * LINE, limit);
        let mut naive = vec![Lru::new(WAYS); sets];
        for line in lines {
            let set = usize::try_from(line).unwrap() % sets;
            prop_assert_eq!(cache.access(line) < WAYS, naive[set].access(line, false));
        }
    }

    #[test]
    fn uses_in_one_loop_have_the_outcomes_of_single_ones(
        uses in prop::collection::vec((0u64..40, 0u64..64, any::<bool>()), 1..3000),
        at_once in 1usize..300,
        // For short tags, and for long ones.
        limit in prop::sample::select(vec![1u64 << 20, 1 << 26]),
    ) {
        let mut models = [(); 2].map(|()| mapped(40, limit));
        let lines: Vec<LineId> = uses
            .iter()
            .map(|(page, line, data)| {
                let side = if *data { Side::Data } else { Side::Code };
                LineId::of(side, page * 4096 + line * LINE as u64)
            })
            .collect();
        let [one_by_one, together] = &mut models;
        let single: Vec<Outcome> = lines.iter().map(|line| one_by_one.access(*line)).collect();
        let mut seen = Vec::new();
        for lines in lines.chunks(at_once) {
            together.access_all(lines, |line| line, |line, outcome| seen.push((line, outcome)));
        }
        prop_assert_eq!(seen, lines.into_iter().zip(single).collect::<Vec<_>>());
    }
}

/// A model with this many pages of code and of data, in memory of `lines` lines.
fn mapped(pages: u64, lines: u64) -> Model {
    let mut model = Model::new(Preset::Server.config(), Paging::default(), lines);
    for page in 0..pages {
        for side in [Side::Code, Side::Data] {
            let frame = (page * 577 + side as u64) * 64 % lines;
            let (size, large) = (Some(PageSize::Small), TlbSet::NONE);
            model.map(side, page, Mapping { frame, size, global: false, large });
        }
    }
    model
}
