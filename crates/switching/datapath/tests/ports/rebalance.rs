//! Queues of unequal load, which get other workers while they carry.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use datapath::{BalanceRule, MoveReason, WorkerLoad};

use crate::common::{frame, wait_until};
use crate::{Plugged, Receiver, Switch, plain};

/// Queues with traffic. The first one has half of it.
const QUEUES: u8 = 8;
/// Frames per burst of each other queue.
const SHARE: u32 = 10;
/// How much more than in the best split the busiest worker may have.
const NEARLY: f64 = 1.1;
/// How long the queues may take to be where they belong. Others use the machine, and a queue whose worker waits for a CPU looks busier than it is.
const LIMIT: Duration = Duration::from_secs(60);

/// How long each queue has had turns, with the worker that has it.
fn busy(loads: &[WorkerLoad]) -> BTreeMap<String, (usize, Duration)> {
    let queues = loads.iter().enumerate().flat_map(|(worker, load)| {
        load.queues.iter().map(move |load| (load.port.name().to_owned(), (worker, load.busy)))
    });
    queues.collect()
}

/// What the busiest of two workers had to do between two moments, and what it would have had in the best split. None if a queue had moved.
fn busiest(
    before: &BTreeMap<String, (usize, Duration)>,
    after: &BTreeMap<String, (usize, Duration)>,
) -> Option<[f64; 2]> {
    let took = |(name, (worker, end)): (&String, &(usize, Duration))| {
        let (was, start) = before.get(name)?;
        (was == worker).then(|| (*worker, (*end - *start).as_secs_f64()))
    };
    let loads = after.iter().map(took).collect::<Option<Vec<_>>>()?;
    let of = |is_first: &dyn Fn(usize) -> bool| {
        let mut sums = [0.0_f64; 2];
        loads.iter().enumerate().for_each(|(n, (_, load))| sums[usize::from(!is_first(n))] += load);
        sums[0].max(sums[1])
    };
    let now = of(&|n| loads[n].0 == 0);
    let splits = (0..1u32 << loads.len()).map(|split| of(&|n| split & (1 << n) != 0));
    Some([now, splits.fold(f64::INFINITY, f64::min)])
}

/// Sends bursts of all queues until `done`, and checks that each frame comes once and in the order of its queue.
fn carry(reds: &[Plugged<Receiver>], blue: &Plugged<Receiver>, mut done: impl FnMut() -> bool) {
    let mut sent = vec![0; reds.len()];
    let mut received = sent.clone();
    while !done() {
        let mut count = 0;
        for (n, red) in reds.iter().enumerate() {
            let burst = if n == 0 { SHARE * u32::from(QUEUES - 1) } else { SHARE };
            for number in sent[n]..sent[n] + burst {
                red.sender.send(frame(blue.mac, red.mac, 300, number));
            }
            sent[n] += burst;
            count += burst as usize;
        }
        wait_until("a burst", || blue.egress.count() >= count);
        for bytes in blue.egress.take() {
            let n = usize::from(bytes[11]) - 1;
            let expected = frame(blue.mac, reds[n].mac, 300, received[n]);
            assert!(bytes == expected, "of queue {n} a frame is missing, twice there, or late");
            received[n] += 1;
        }
        assert_eq!(sent, received);
    }
}

#[test]
fn a_queue_with_half_of_the_traffic_gets_a_worker_to_itself_meanwhile() {
    let switch = Switch::new(2);
    let reds: Vec<_> = (1..=QUEUES).map(|n| plain(&switch.datapath, n)).collect();
    let blue = plain(&switch.datapath, QUEUES + 1);
    let interval = Duration::from_millis(100);
    let rule = BalanceRule { interval, threshold: 0.01, gain: 0.05 };
    let (began, mut since) = (Instant::now(), Instant::now());
    let mut before = busy(&switch.datapath.loads());
    let (mut moved, mut first, mut last) = (0, None, None);
    carry(&reds, &blue, || {
        assert!(began.elapsed() < LIMIT, "after {moved} moves, in place of the best: {last:?}");
        moved += switch.datapath.rebalance_by(&rule).map_or(0, |balance| balance.moves.len());
        if since.elapsed() < interval {
            return false;
        }
        let after = busy(&switch.datapath.loads());
        let found = busiest(&std::mem::replace(&mut before, after.clone()), &after);
        since = Instant::now();
        first = first.or(found);
        last = found.or(last);
        moved > 0 && found.is_some_and(|[now, best]| now <= best * NEARLY)
    });
    let past = switch.datapath.past_moves();
    assert!(past.iter().all(|moved| moved.reason == MoveReason::Load), "{past:?}");
    println!("{moved} moves; busiest worker and best split: {first:?} before, {last:?} after");
}
