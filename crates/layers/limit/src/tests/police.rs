//! Policing: what goes to a port.

use std::time::Duration;

use port::{DropReason, Frame, InFlight, Outcome, Ticket};
use proptest::prelude::*;

use super::*;
use crate::meter::Tokens;
use crate::{Limit, Meter, police};

const NOW: Duration = Duration::from_secs(7);
const OVER: Outcome = Outcome::Dropped(DropReason::RateLimit);

/// One byte per microsecond.
fn bytes(burst_bytes: u64) -> Limit {
    Limit { burst_bytes, ..Limit::new(Some(1_000_000), None) }
}

/// Frames that are told apart by their lengths: 100, 101 and so on.
fn numbered(frames: u32) -> Vec<Frame> {
    (0..frames).map(|n| frame(100 + n)).collect()
}

#[test]
fn frames_beyond_the_limit_are_dropped() {
    let (receiver, log) = receiver(|_| Outcome::Delivered);
    let mut port = police(receiver, &Meter::new(bytes(250)));
    let (outcomes, _) = offer(&mut *port, &numbered(5), NOW);
    let delivered = Outcome::Delivered;
    assert_eq!(outcomes, [delivered, delivered, delivered, OVER, OVER]);
    assert_eq!(offer(&mut *port, &numbered(1), NOW).0, [OVER]);
    // The third frame left a debt of 53 bytes.
    assert_eq!(offer(&mut *port, &numbered(1), NOW + Duration::from_micros(53)).0, [OVER]);
    assert_eq!(offer(&mut *port, &numbered(1), NOW + Duration::from_micros(54)).0, [delivered]);
    assert_eq!(log.lock().unwrap().calls, [vec![100, 101, 102], vec![100]]);
}

#[test]
fn a_frame_counts_as_its_segments() {
    let (receiver, _) = receiver(|_| Outcome::Delivered);
    let limit = Limit { burst_packets: 41, ..Limit::new(None, Some(1000)) };
    let mut port = police(receiver, &Meter::new(limit));
    let frames = [frame_to_segment(40, 1448), frame(60), frame(60)];
    let (outcomes, _) = offer(&mut *port, &frames, NOW);
    assert_eq!(outcomes, [Outcome::Delivered, Outcome::Delivered, OVER]);
}

/// A port that sends 10 segments of a frame per call, and none behind one that it has not finished.
#[test]
fn a_frame_that_is_sent_in_parts_is_charged_once_and_finished() {
    let mut sent = 0;
    let (receiver, log) = receiver(move |frame| match frame.packets() {
        1 => Outcome::Delivered,
        segments if sent + 10 < segments => {
            sent += 10;
            Outcome::Partial { segments: sent.try_into().unwrap() }
        }
        _ => Outcome::Delivered,
    });
    // Tokens for three of the frames, and none for the fourth.
    let limit = Limit { burst_packets: 42, ..Limit::new(None, Some(1000)) };
    let mut port = police(receiver, &Meter::new(limit));
    let frames = [frame(60), frame_to_segment(40, 1448), frame(61), frame(62)];
    let (outcomes, _) = offer(&mut *port, &frames, NOW);
    let waiting = [Outcome::Waiting; 2];
    assert_eq!(outcomes[..2], [Outcome::Delivered, Outcome::Partial { segments: 10 }]);
    assert_eq!(outcomes[2..], waiting);
    for sent in [10, 20] {
        let (outcomes, _) = offer_from(&mut *port, &frames[1..], sent, NOW);
        assert_eq!(outcomes[0], Outcome::Partial { segments: sent + 10 });
        assert_eq!(outcomes[1..], waiting);
    }
    let (outcomes, _) = offer_from(&mut *port, &frames[1..], 30, NOW);
    assert_eq!(outcomes, [Outcome::Delivered, Outcome::Delivered, OVER]);
    assert_eq!(log.lock().unwrap().calls.len(), 4);
}

#[test]
fn a_frame_that_is_under_way_needs_no_tokens() {
    let (receiver, _) = receiver(|_| Outcome::Delivered);
    let limit = Limit { burst_packets: 1, ..Limit::new(None, Some(1000)) };
    let mut port = police(receiver, &Meter::new(limit));
    assert_eq!(offer(&mut *port, &numbered(2), NOW).0, [Outcome::Delivered, OVER]);
    let frames = [frame_to_segment(40, 1448), frame(60)];
    assert_eq!(offer_from(&mut *port, &frames, 1, NOW).0, [Outcome::Delivered, OVER]);
}

#[test]
fn a_frame_that_has_not_been_begun_costs_nothing() {
    let mut is_first = true;
    let (receiver, _) = receiver(move |_| match std::mem::take(&mut is_first) {
        true => Outcome::Partial { segments: 0 },
        false => Outcome::Delivered,
    });
    let mut port = police(receiver, &Meter::new(bytes(100)));
    let not_begun = Outcome::Partial { segments: 0 };
    assert_eq!(offer(&mut *port, &numbered(1), NOW).0, [not_begun]);
    assert_eq!(offer(&mut *port, &numbered(2), NOW).0, [Outcome::Delivered, OVER]);
}

#[test]
fn what_the_port_drops_costs_nothing() {
    let dropped = Outcome::Dropped(DropReason::TooLarge);
    let (receiver, log) = receiver(move |frame| match frame.len {
        100 => dropped,
        102 => Outcome::SourceFault,
        103 => Outcome::InFlight(Ticket(3)),
        _ => Outcome::Delivered,
    });
    let mut port = police(receiver, &Meter::new(bytes(203)));
    let (outcomes, _) = offer(&mut *port, &numbered(6), NOW);
    let [fault, in_flight] = [Outcome::SourceFault, Outcome::InFlight(Ticket(3))];
    assert_eq!(outcomes, [dropped, Outcome::Delivered, fault, in_flight, OVER, OVER]);
    // Each run is as long as the tokens reach.
    assert_eq!(log.lock().unwrap().calls, [vec![100, 101, 102], vec![103]]);
}

#[test]
fn frames_behind_one_that_waits_for_room_wait_too() {
    let (receiver, log) = receiver(|frame| match frame.len {
        102 => Outcome::Waiting,
        _ => Outcome::Delivered,
    });
    let mut port = police(receiver, &Meter::new(bytes(350)));
    let (outcomes, _) = offer(&mut *port, &numbered(6), NOW);
    assert_eq!(outcomes[..2], [Outcome::Delivered; 2]);
    assert_eq!(outcomes[2..], [Outcome::Waiting; 4]);
    assert_eq!(log.lock().unwrap().calls, [vec![100, 101, 102, 103]]);
    // They have cost nothing: two more pass.
    let (outcomes, _) = offer(&mut *port, &numbered(3)[..2], NOW);
    assert_eq!(outcomes, [Outcome::Delivered; 2]);
    assert_eq!(offer(&mut *port, &numbered(1), NOW).0, [OVER]);
}

#[test]
fn the_rest_passes_through() {
    let (receiver, log) = receiver(|_| Outcome::Dropped(DropReason::PortGone));
    let mut port = police(receiver, &Meter::new(bytes(100)));
    assert!(offer(&mut *port, &numbered(2), NOW).1.is_err());
    let mut deliveries = [InFlight { ticket: Ticket(1), outcome: None }];
    port.reap(&mut deliveries);
    assert_eq!(deliveries[0].outcome, Some(Outcome::Delivered));
    port.cancel(&[Ticket(2)]);
    assert_eq!(log.lock().unwrap().cancelled, [Ticket(2)]);
    assert!(port.room_event().is_some() && port.is_stalled());
}

#[test]
fn no_limit_is_no_wrapper() {
    let (port, _) = receiver(|_| Outcome::Delivered);
    let before = std::ptr::from_ref(&*port);
    let port = police(port, &Meter::new(Limit::default()));
    assert!(std::ptr::addr_eq(before, &raw const *port));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Over any stretch of any pattern: rate × time + burst + one frame. What passes is a prefix of
    /// each batch, and a port that is not over its rate loses nothing.
    #[test]
    fn never_more_than_the_rate_and_a_burst(
        rate in 1u64..=100_000_000,
        burst in 1u64..=1 << 20,
        batches in prop::collection::vec((0u64..5_000_000, prop::collection::vec(60u32..=9000, 0..64)), 1..60),
        from: prop::sample::Index,
    ) {
        let (receiver, log) = receiver(|_| Outcome::Delivered);
        let limit = Limit { burst_bytes: burst, ..Limit::new(Some(rate), None) };
        let mut port = police(receiver, &Meter::new(limit));
        let from = from.index(batches.len());
        let (mut now, mut since) = (Duration::ZERO, Duration::ZERO);
        let (mut offered, mut passed) = (Tokens::default(), Tokens::default());
        let mut total = 0;
        for (n, (pause, lens)) in batches.into_iter().enumerate() {
            now += Duration::from_nanos(pause);
            if n == from {
                (since, passed) = (now, Tokens::default());
            }
            let frames: Vec<_> = lens.into_iter().map(frame).collect();
            let (outcomes, _) = offer(&mut *port, &frames, now);
            let delivered = outcomes.iter().filter(|outcome| **outcome == Outcome::Delivered).count();
            prop_assert!(outcomes[..delivered].iter().all(|outcome| *outcome == Outcome::Delivered));
            prop_assert!(outcomes[delivered..].iter().all(|outcome| *outcome == OVER));
            for (frame, n) in frames.iter().zip(0..) {
                offered += Tokens::of(frame);
                if n < delivered {
                    passed += Tokens::of(frame);
                    total += u64::from(frame.len);
                }
            }
            let earned = u128::from(rate) * (now - since).as_nanos() / 1_000_000_000;
            prop_assert!(u128::from(passed.bytes) <= earned + u128::from(burst) + 9000);
            prop_assert!(offered.bytes > burst || total == offered.bytes);
        }
        prop_assert!(log.lock().unwrap().calls.iter().all(|call| !call.is_empty()));
    }
}
