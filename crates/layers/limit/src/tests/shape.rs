//! Shaping: what comes from a port.

use std::iter::{repeat_n, repeat_with};
use std::sync::Arc;
use std::time::{Duration, Instant};

use port::{Armed, Budget, Ingress, WINDOW};
use port_testing::supply;
use proptest::prelude::*;

use super::*;
use crate::meter::Tokens;
use crate::shaper::Shaper;
use crate::{Limit, Meter, shape};

fn shaper(
    frames: impl Iterator<Item = port::Frame> + Send + 'static,
    meter: &Arc<Meter>,
    clock: &Clock,
) -> Box<dyn Ingress> {
    Box::new(Shaper::new(supply(frames), meter, clock.reader()))
}

fn until(armed: Armed) -> Instant {
    let Armed::Until(instant) = armed else { panic!("{armed:?}") };
    instant
}

#[test]
fn a_burst_then_the_rate_and_nothing_is_lost() {
    let clock = Clock::new();
    // 1 byte per microsecond.
    let limit = Limit { burst_bytes: 10_000, ..Limit::new(Some(1_000_000), None) };
    let mut port = shaper(repeat_n(frame(1000), 25), &Meter::new(limit), &clock);
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 10);
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 0, "the bucket is empty");
    let next = until(port.arm().unwrap());
    // A batch is what a millisecond gives.
    assert_eq!((next - clock.now()).as_micros(), 1000);
    clock.advance(Duration::from_micros(999));
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 0);
    clock.advance_to(next);
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 10);
    clock.advance(Duration::from_secs(1));
    assert_eq!(port.arm(), Ok(Armed::Ready));
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 4);
    assert_eq!(port.arm(), Ok(Armed::Asleep));
}

#[test]
fn a_debt_lasts_as_long_as_it_is_large() {
    let clock = Clock::new();
    let limit = Limit { burst_bytes: 1000, ..Limit::new(Some(1_000_000), None) };
    let mut port = shaper(repeat_with(|| frame(61_000)), &Meter::new(limit), &clock);
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 1);
    let wait = until(port.arm().unwrap()) - clock.now();
    assert_eq!(wait.as_micros(), 60_500, "60,000 of debt and half a burst");
}

#[test]
fn packets_are_segments_and_what_is_malformed() {
    let clock = Clock::new();
    let limit = Limit { burst_packets: 100, ..Limit::new(None, Some(1000)) };
    let meter = Meter::new(limit);
    let mut port = shaper(repeat_with(|| frame_to_segment(40, 1448)), &meter, &clock);
    let (taken, received) = turn(&mut *port, Budget::TURN);
    assert_eq!((taken.packets, received.fresh), (120, 3));
    assert_eq!((until(port.arm().unwrap()) - clock.now()).as_millis(), 21);

    let meter = Meter::new(limit);
    let mut port = shaper(repeat_with(|| frame(0)), &meter, &clock);
    let (_, received) = turn(&mut *port, Budget::TURN);
    assert_eq!((received.fresh, received.malformed), (0, 100));
    assert!(matches!(port.arm(), Ok(Armed::Until(_))));
}

#[test]
fn the_budget_of_the_turn_still_holds() {
    let clock = Clock::new();
    let meter = Meter::new(Limit::new(Some(1_000_000), Some(1_000_000)));
    let mut port = shaper(repeat_with(|| frame(100)), &meter, &clock);
    let mut budget = Budget::new(20, 1000);
    port.receive(&mut budget, &mut port::Received::default()).unwrap();
    assert_eq!((budget.work(), budget.bytes(), port.window().len()), (10, 0, 10));
    // What the turn did not use is in the bucket again.
    let left = meter.admit(Duration::ZERO, repeat_with(|| Tokens { bytes: 1, packets: 0 })).1;
    assert_eq!(left.bytes, 128 * 1024 - 1000);
}

#[test]
fn a_rate_of_zero_stops_the_port() {
    let clock = Clock::new();
    let limit = Limit { burst_bytes: 0, ..Limit::new(Some(0), None) };
    let mut port = shaper(repeat_with(|| frame(100)), &Meter::new(limit), &clock);
    assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 1, "the burst is at least one byte");
    for _ in 0..3 {
        assert_eq!(turn(&mut *port, Budget::TURN).1.fresh, 0);
        clock.advance_to(until(port.arm().unwrap()));
    }
}

#[test]
fn no_limit_is_no_wrapper() {
    let port = supply(std::iter::empty());
    let before = std::ptr::from_ref(&*port);
    let port = shape(port, &Meter::new(Limit::default()));
    assert!(std::ptr::addr_eq(before, &raw const *port));
}

/// Three queues, always served in the same order by one worker that wakes for the first of them.
#[test]
fn queues_share_a_limit() {
    let clock = Clock::new();
    let meter = Meter::new(Limit::new(Some(10_000_000), None));
    let mut ports: Vec<_> =
        (0..3).map(|_| shaper(repeat_with(|| frame(1500)), &meter, &clock)).collect();
    let start = clock.now();
    let mut taken = [0; 3];
    while clock.now() < start + Duration::from_secs(2) {
        for (port, taken) in ports.iter_mut().zip(&mut taken) {
            *taken += turn(&mut **port, Budget::TURN).0.bytes;
        }
        let next = ports.iter_mut().filter_map(|port| match port.arm().unwrap() {
            Armed::Until(instant) => Some(instant),
            _ => None,
        });
        if let Some(next) = next.min() {
            clock.advance_to(next);
        }
    }
    let total: u64 = taken.iter().sum();
    assert!((20_000_000..20_300_000).contains(&total), "{taken:?}");
    assert!(taken.iter().all(|taken| taken * 10 > total * 3), "{taken:?}");
}

/// Queues of several workers never use the same tokens.
#[test]
fn what_one_queue_reserves_no_other_has() {
    const BURST: u64 = 1 << 20;
    let meter = Meter::new(Limit { burst_bytes: BURST, ..Limit::new(Some(1000), None) });
    let worker = || {
        let queue = meter.join();
        let mut used = 0;
        for _ in 0..10_000 {
            if let Some(reserved) = meter.reserve(queue, Duration::ZERO) {
                let part = Tokens { bytes: reserved.bytes.div_ceil(2), ..reserved };
                meter.correct(reserved, part);
                used += part.bytes;
            }
        }
        used
    };
    let used: u64 = std::thread::scope(|scope| {
        let workers = [(); 4].map(|()| scope.spawn(worker));
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!((1..=BURST).contains(&used), "{used}");
}

/// A queue that waits for its turn and never comes holds nobody back for long.
#[test]
fn an_absent_queue_is_passed() {
    let clock = Clock::new();
    let meter = Meter::new(Limit::new(Some(1_000_000), None));
    let mut absent = shaper(repeat_with(|| frame(1000)), &meter, &clock);
    let mut present = shaper(repeat_with(|| frame(1000)), &meter, &clock);
    while turn(&mut *present, Budget::TURN).1.fresh > 0 {}
    assert_eq!(turn(&mut *absent, Budget::TURN).1.fresh, 0);
    let start = clock.now();
    let mut taken = 0;
    while clock.now() < start + Duration::from_secs(1) {
        taken += turn(&mut *present, Budget::TURN).0.bytes;
        if let Armed::Until(instant) = present.arm().unwrap() {
            clock.advance_to(instant);
        }
    }
    assert!(taken > 990_000, "{taken}");
    // A queue that is gone has no place in the order.
    while turn(&mut *absent, Budget::TURN).1.fresh == 0 {
        clock.advance(Duration::from_millis(1));
    }
    while turn(&mut *absent, Budget::TURN).1.fresh > 0 {}
    drop(absent);
    clock.advance(Duration::from_millis(2));
    assert!(turn(&mut *present, Budget::TURN).1.fresh > 0);
}

/// A frame of any length, to be segmented or not.
fn any_frame() -> impl Strategy<Value = port::Frame> {
    prop_oneof![
        (60u32..=9000).prop_map(frame),
        (1u32..=45, 500u16..=1448).prop_map(|(segments, size)| frame_to_segment(segments, size)),
    ]
}

/// From 100 kB a second to a gigabyte, as often in each power of ten.
fn any_rate() -> impl Strategy<Value = u64> {
    (5u32..9).prop_flat_map(|digits| 10u64.pow(digits)..=10u64.pow(digits + 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Over any stretch of any pattern: rate × time + burst + one frame.
    #[test]
    fn never_more_than_the_rate_and_a_burst(
        limit in (1u64..=1_000_000_000, 1u64..=1_000_000, 1u64..=1 << 22, 1u64..=4096),
        frames in prop::collection::vec(any_frame(), 1..50),
        pauses in prop::collection::vec(0u64..5_000_000, 1..300),
        from: prop::sample::Index,
    ) {
        let (bytes, packets, burst_bytes, burst_packets) = limit;
        let limit = Limit {
            bytes_per_second: Some(bytes),
            packets_per_second: Some(packets),
            burst_bytes,
            burst_packets,
        };
        let largest = Tokens {
            bytes: frames.iter().map(|frame| frame.len.into()).max().unwrap(),
            packets: frames.iter().map(|frame| frame.packets().into()).max().unwrap(),
        };
        let clock = Clock::new();
        let mut port = shaper(frames.into_iter().cycle(), &Meter::new(limit), &clock);
        let from = from.index(pauses.len());
        let (mut since, mut passed) = (clock.now(), Tokens::default());
        for (n, pause) in pauses.into_iter().enumerate() {
            clock.advance(Duration::from_nanos(pause));
            if n == from {
                (since, passed) = (clock.now(), Tokens::default());
            }
            passed += turn(&mut *port, Budget::TURN).0;
            let nanos = (clock.now() - since).as_nanos();
            let bound = |rate: u64, burst: u64, frame: u64| {
                u128::from(rate) * nanos / 1_000_000_000 + u128::from(burst) + u128::from(frame)
            };
            prop_assert!(u128::from(passed.bytes) <= bound(bytes, burst_bytes, largest.bytes));
            prop_assert!(u128::from(passed.packets) <= bound(packets, burst_packets, largest.packets));
        }
    }

    /// A sender whose ring is never empty gets the rate, also where the worker wakes up late.
    #[test]
    fn a_greedy_sender_gets_the_rate(
        rate in any_rate(),
        frames in prop::collection::vec(any_frame(), 1..50),
        late in prop::collection::vec(0u64..5_000_000, 1..50),
    ) {
        let limit = Limit::new(Some(rate), None);
        let clock = Clock::new();
        let mut port = shaper(frames.into_iter().cycle(), &Meter::new(limit), &clock);
        let start = clock.now();
        let mut passed = 0;
        let mut late = late.into_iter().cycle();
        while clock.now() < start + Duration::from_secs(1) {
            let (taken, received) = turn(&mut *port, Budget::TURN);
            passed += taken.bytes;
            match port.arm().unwrap() {
                Armed::Until(instant) => {
                    clock.advance_to(instant + Duration::from_nanos(late.next().unwrap()));
                }
                // A turn takes time too, and no less than the wire that this limits.
                _ => prop_assert!(received.fresh > 0 && received.fresh <= WINDOW),
            }
        }
        let earned = u128::from(rate) * (clock.now() - start).as_nanos() / 1_000_000_000;
        let last_wait = u128::from(rate) * 6 / 1000;
        prop_assert!(u128::from(passed) + last_wait >= earned * 99 / 100);
    }
}
