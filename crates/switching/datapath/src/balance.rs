//! Which queues should move to which workers, so that no worker has much more to do than another.
//!
//! Nothing here moves a queue: see [`moves`](crate::moves).

/// More single moves than any plan needs.
const STEPS: usize = 4096;
/// A plan that moves queues one by one is taken although one from scratch would be better by less than this factor: it moves fewer.
const FEWER_MOVES: f64 = 1.02;

/// A queue, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item {
    /// The part of a worker's time that it takes.
    pub(crate) load: f64,
    /// The worker that has it.
    pub(crate) worker: usize,
    /// A bit for each worker that may have it.
    pub(crate) allowed: u64,
}

impl Item {
    fn may_have(self, worker: usize) -> bool {
        self.allowed & (1 << worker) != 0
    }
}

/// What each worker has to do.
pub(crate) fn sums(items: &[Item], places: &[usize], workers: usize) -> Vec<f64> {
    let mut sums = vec![0.0_f64; workers];
    for (item, place) in items.iter().zip(places) {
        sums[*place] += item.load;
    }
    sums
}

/// What the busiest worker has to do.
pub(crate) fn busiest(items: &[Item], places: &[usize], workers: usize) -> f64 {
    sums(items, places, workers).into_iter().fold(0.0, f64::max)
}

/// The worker of each queue for which the busiest worker has the least to do, or nearly.
pub(crate) fn plan(items: &[Item], workers: usize) -> Vec<usize> {
    let step_by_step = improve(items, items.iter().map(|item| item.worker).collect(), workers);
    let from_scratch = improve(items, spread(items, workers), workers);
    let [one, other] = [&step_by_step, &from_scratch].map(|places| busiest(items, places, workers));
    if one <= other * FEWER_MOVES { step_by_step } else { from_scratch }
}

/// The largest first, each to the worker that has the least: at most a third more than the best.
fn spread(items: &[Item], workers: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..items.len()).collect();
    order.sort_by(|one, other| items[*other].load.total_cmp(&items[*one].load));
    let mut places: Vec<_> = items.iter().map(|item| item.worker).collect();
    let mut sums = vec![0.0_f64; workers];
    for index in order {
        let item = items[index];
        let allowed = (0..workers).filter(|worker| item.may_have(*worker));
        // Of two that have as little, the one where it is.
        let least = allowed.min_by(|one, other| {
            let is_elsewhere = |worker: usize| worker != item.worker;
            sums[*one].total_cmp(&sums[*other]).then(is_elsewhere(*one).cmp(&is_elsewhere(*other)))
        });
        places[index] = least.unwrap_or(item.worker);
        sums[places[index]] += item.load;
    }
    places
}

/// Moves a queue away from the busiest worker, or exchanges two, as long as that helps.
fn improve(items: &[Item], mut places: Vec<usize>, workers: usize) -> Vec<usize> {
    for _ in 0..STEPS {
        let sums = sums(items, &places, workers);
        let Some(from) = (0..workers).max_by(|one, other| sums[*one].total_cmp(&sums[*other]))
        else {
            break;
        };
        let Some(step) = best_step(items, &places, &sums, from) else { break };
        let (item, to, back) = step;
        places[item] = to;
        if let Some(back) = back {
            places[back] = from;
        }
    }
    places
}

/// The queue of worker `from` that goes, where it goes, and the one that comes back, after which the busier one of both workers has the
/// least. None if no step makes it less.
fn best_step(
    items: &[Item],
    places: &[usize],
    sums: &[f64],
    from: usize,
) -> Option<(usize, usize, Option<usize>)> {
    let mut best = None;
    // Less by a rounding error is not less.
    let mut least = sums[from] * (1.0 - 1e-9);
    let own = (0..items.len()).filter(|n| places[*n] == from && items[*n].load > 0.0);
    for n in own {
        let item = items[n];
        for to in (0..sums.len()).filter(|to| *to != from && item.may_have(*to)) {
            let mut consider = |back: Option<usize>| {
                let comes = back.map_or(0.0, |back| items[back].load);
                let after = (sums[from] - item.load + comes).max(sums[to] + item.load - comes);
                if after < least {
                    (least, best) = (after, Some((n, to, back)));
                }
            };
            consider(None);
            let others = (0..items.len()).filter(|m| places[*m] == to && items[*m].may_have(from));
            others.filter(|m| items[*m].load < item.load).for_each(|back| consider(Some(back)));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Queues that go to workers by their numbers.
    fn by_number(loads: &[f64], workers: usize) -> Vec<Item> {
        let item = |(number, load): (usize, &f64)| Item {
            load: *load,
            worker: number % workers,
            allowed: u64::MAX,
        };
        loads.iter().enumerate().map(item).collect()
    }

    /// The best that there is, by trying all.
    fn best(items: &[Item], workers: usize) -> f64 {
        let count = workers.pow(u32::try_from(items.len()).unwrap());
        let places = |mut n: usize| -> Vec<usize> {
            let place = |_: &Item| {
                let place = n % workers;
                n /= workers;
                place
            };
            items.iter().map(place).collect()
        };
        let is_allowed =
            |places: &Vec<usize>| items.iter().zip(places).all(|(item, to)| item.may_have(*to));
        let all = (0..count).map(places).filter(is_allowed);
        all.map(|places| busiest(items, &places, workers)).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_queue_with_half_of_the_traffic_gets_a_worker_to_itself() {
        let rest = 0.5 / 7.0;
        let items = by_number(&[0.5, rest, rest, rest, rest, rest, rest, rest], 2);
        let before: Vec<_> = items.iter().map(|item| item.worker).collect();
        assert!(busiest(&items, &before, 2) > 0.7);
        let places = plan(&items, 2);
        assert!(busiest(&items, &places, 2) < 0.5 + 1e-9);
        let moved = items.iter().zip(&places).filter(|(item, to)| item.worker != **to).count();
        assert_eq!(moved, 3, "no more than are needed: {places:?}");
    }

    #[test]
    fn what_is_even_stays() {
        let items = by_number(&[0.2; 8], 4);
        assert_eq!(plan(&items, 4), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert!(plan(&[], 2).is_empty());
    }

    #[test]
    fn pinned_queues_stay_where_they_are_pinned() {
        let mut items = by_number(&[0.5, 0.1, 0.5, 0.1], 2);
        items[0].allowed = 0b01;
        items[2].allowed = 0b01;
        assert_eq!(plan(&items, 2), [0, 1, 0, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_plan_is_within_ten_percent_of_the_best_and_keeps_to_pins(
            loads in prop::collection::vec((1u32..100, any::<u64>()), 1..9),
            workers in 2usize..4,
        ) {
            let items: Vec<_> = loads.iter().enumerate().map(|(number, (load, pins))| {
                let worker = number % workers;
                // One in four may be at a few workers only.
                let allowed = if pins % 4 == 0 { pins >> 2 | 1 << worker } else { u64::MAX };
                Item { load: f64::from(*load) / 100.0, worker, allowed }
            }).collect();
            let places = plan(&items, workers);
            let (found, best) = (busiest(&items, &places, workers), best(&items, workers));
            prop_assert!(found <= best * 1.1 + 1e-9, "{found} in place of {best}: {items:?}");
            for (item, place) in items.iter().zip(&places) {
                prop_assert!(*place < workers && item.may_have(*place));
            }
        }
    }
}
