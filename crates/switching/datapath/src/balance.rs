//! Which queues should move to which workers, so that no worker has much more to do than another.
//!
//! There are two plans: single moves and exchanges away from the busiest worker as long as they help, and the best from scratch. The first moves
//! fewer queues, and is taken if it is nearly as good.
//!
//! Nothing here moves a queue: see [`moves`](crate::moves).

/// More single moves than any plan needs.
const STEPS: usize = 4096;
/// Placements of one queue that a search from scratch tries at most, beyond the first for each.
const SEARCH_STEPS: usize = 1 << 15;
/// Less by this part is not less.
const ROUNDING: f64 = 1e-9;
/// A plan that moves queues one by one is taken although one from scratch would be better by less than this factor: it moves fewer.
const FEWER_MOVES: f64 = 1.02;

/// How much longer a worker takes on another NUMA node than the queue's frames. It is an assumption, made without such a machine: a queue moves to
/// another node for a gain that is larger than most costs of that, and for no small one.
const FAR: f64 = 1.2;

/// A queue, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item {
    /// The part of the time of a near worker that it takes.
    pub(crate) load: f64,
    pub(crate) worker: usize,
    /// A bit for each worker that may have it.
    pub(crate) allowed: u64,
    /// A bit for each worker that is near.
    pub(crate) near: u64,
}

impl Item {
    /// A queue that takes this part of the time of the worker that has it.
    pub(crate) fn measured(share: f64, worker: usize, allowed: u64, near: u64) -> Self {
        let far = Self { load: 1.0, worker, allowed, near }.load_at(worker);
        Self { load: share / far, worker, allowed, near }
    }

    /// The part of this worker's time that it takes, or would take.
    pub(crate) fn load_at(self, worker: usize) -> f64 {
        if self.near & (1 << worker) != 0 { self.load } else { self.load * FAR }
    }

    fn may_have(self, worker: usize) -> bool {
        self.allowed & (1 << worker) != 0
    }
}

/// What each worker has to do.
pub(crate) fn sums(items: &[Item], places: &[usize], workers: usize) -> Vec<f64> {
    let mut sums = vec![0.0_f64; workers];
    for (item, place) in items.iter().zip(places) {
        sums[*place] += item.load_at(*place);
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
    let from_scratch = Search::best(items, workers);
    let [one, other] = [&step_by_step, &from_scratch].map(|places| busiest(items, places, workers));
    if one <= other * FEWER_MOVES { step_by_step } else { from_scratch }
}

/// Places queues from scratch: first the largest, each at the worker that has the least, then all else that may be better, as far as the
/// steps go. For some ten queues that is all that there is.
struct Search<'a> {
    items: &'a [Item],
    /// The queues, the largest first.
    order: Vec<usize>,
    steps: usize,
    /// What each worker has so far, and where each queue is.
    sums: Vec<f64>,
    places: Vec<usize>,
    /// The least that the busiest worker has, and the places for that.
    least: f64,
    best: Vec<usize>,
}

impl<'a> Search<'a> {
    fn best(items: &'a [Item], workers: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..items.len()).collect();
        order.sort_by(|one, other| items[*other].load.total_cmp(&items[*one].load));
        let here: Vec<_> = items.iter().map(|item| item.worker).collect();
        let sums = vec![0.0; workers];
        let (places, best, least) = (here.clone(), here, f64::INFINITY);
        let mut search = Self { items, order, steps: SEARCH_STEPS, sums, places, least, best };
        search.place(0);
        search.best
    }

    /// Places the queues from this one on.
    fn place(&mut self, at: usize) {
        let Some(index) = self.order.get(at).copied() else {
            self.least = self.sums.iter().copied().fold(0.0, f64::max);
            self.best.clone_from(&self.places);
            return;
        };
        let item = self.items[index];
        let mut allowed: Vec<_> =
            (0..self.sums.len()).filter(|worker| item.may_have(*worker)).collect();
        // Of two that have as little, first the one where it is.
        let with = |worker: usize| self.sums[worker] + item.load_at(worker);
        allowed.sort_by(|one, other| {
            let order = with(*one).total_cmp(&with(*other));
            order.then((*one != item.worker).cmp(&(*other != item.worker)))
        });
        for worker in allowed {
            let before = self.sums[worker];
            let after = before + item.load_at(worker);
            if after >= self.least * (1.0 - ROUNDING) || self.steps == 0 {
                break;
            }
            self.steps -= 1;
            self.sums[worker] = after;
            self.places[index] = worker;
            self.place(at + 1);
            self.sums[worker] = before;
        }
    }
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

/// A queue that goes, the worker to which it goes, and the queue that comes back.
type Step = (usize, usize, Option<usize>);

/// The step away from worker `from` after which the busier one of both workers has the
/// least. None if no step makes it less.
///
/// Queues are exchanged only if no single move helps: there are as many exchanges as pairs of queues, and thousands of queues would take
/// the control thread seconds.
fn best_step(items: &[Item], places: &[usize], sums: &[f64], from: usize) -> Option<Step> {
    let limit = sums[from] * (1.0 - ROUNDING);
    let after = |(n, to, back): Step| {
        let moved = |worker: usize| {
            let back = back.map_or(0.0, |back| items[back].load_at(worker));
            items[n].load_at(worker) - back
        };
        ((sums[from] - moved(from)).max(sums[to] + moved(to)), (n, to, back))
    };
    let own = || (0..items.len()).filter(|n| places[*n] == from && items[*n].load > 0.0);
    let may_go = |n: usize, to: usize| to != from && items[n].may_have(to);
    let moves = own().flat_map(|n| {
        (0..sums.len()).filter(move |to| may_go(n, *to)).map(move |to| (n, to, None))
    });
    let exchanges = own().flat_map(|n| {
        let comes = move |m: &usize| {
            may_go(n, places[*m]) && items[*m].may_have(from) && items[*m].load < items[n].load
        };
        (0..items.len()).filter(comes).map(move |m| (n, places[m], Some(m)))
    });
    fn least(steps: impl Iterator<Item = (f64, Step)>, limit: f64) -> Option<Step> {
        let helping = steps.filter(|(after, _)| *after < limit);
        helping.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, step)| step)
    }
    least(moves.map(after), limit).or_else(|| least(exchanges.map(after), limit))
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
            near: u64::MAX,
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

    /// Two queues of a NIC that is near to worker 0, and one that worker 1 alone may have.
    #[test]
    fn a_queue_goes_far_away_only_for_more_than_that_costs() {
        let near = |load| Item { near: 0b01, ..by_number(&[load], 1)[0] };
        let other = |load| Item { worker: 1, allowed: 0b10, ..by_number(&[load], 1)[0] };
        // 0.55 in place of 0.6, if it cost nothing.
        assert_eq!(plan(&[near(0.3), near(0.3), other(0.25)], 2), [0, 0, 1]);
        let moved = plan(&[near(0.4), near(0.4), other(0.1)], 2);
        assert_eq!((moved[0] + moved[1], moved[2]), (1, 1), "{moved:?}");
        // What it costs there is no reason to keep it there.
        let far = Item::measured(0.36, 1, u64::MAX, 0b01);
        assert!((far.load - 0.3).abs() < 1e-9 && (far.load_at(1) - 0.36).abs() < 1e-9);
        assert_eq!(plan(&[far, other(0.1)], 2), [0, 1]);
    }

    #[test]
    fn pinned_queues_stay_where_they_are_pinned() {
        let mut items = by_number(&[0.5, 0.1, 0.5, 0.1], 2);
        items[0].allowed = 0b01;
        items[2].allowed = 0b01;
        assert_eq!(plan(&items, 2), [0, 1, 0, 1]);
    }

    #[test]
    fn many_queues_are_spread_in_bounded_time() {
        let loads: Vec<_> = (0..2000u32).map(|n| f64::from(n * 37 % 101) / 1000.0).collect();
        // All are at the first of eight workers.
        let items: Vec<_> =
            by_number(&loads, 1).into_iter().map(|item| Item { worker: 0, ..item }).collect();
        let places = plan(&items, 8);
        let mean = loads.iter().sum::<f64>() / 8.0;
        assert!(busiest(&items, &places, 8) < mean * 1.01);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_plan_is_nearly_the_best_and_keeps_to_pins(
            loads in prop::collection::vec((1u32..100, any::<u64>()), 1..9),
            workers in 2usize..4,
        ) {
            let items: Vec<_> = loads.iter().enumerate().map(|(number, (load, pins))| {
                let worker = number % workers;
                // One in four may be at a few workers only.
                let allowed = if pins % 4 == 0 { pins >> 2 | 1 << worker } else { u64::MAX };
                // One in three is near to a few of them.
                let near = if pins % 3 == 0 { pins >> 8 } else { u64::MAX };
                Item { load: f64::from(*load) / 100.0, worker, allowed, near }
            }).collect();
            let places = plan(&items, workers);
            let (found, best) = (busiest(&items, &places, workers), best(&items, workers));
            prop_assert!(found <= best * (FEWER_MOVES + ROUNDING), "{found} in place of {best}: {items:?}");
            for (item, place) in items.iter().zip(&places) {
                prop_assert!(*place < workers && item.may_have(*place));
            }
        }
    }
}
