//! Limit and guard around one port, in either order.

use std::time::Duration;

use guard::{Guard, Policy};
use port::{Armed, Budget, DropReason, Frame, Ingress};
use port_testing::supply;
use proptest::prelude::*;
use wire::ethernet::MacAddr;

use super::*;
use crate::shaper::Shaper;
use crate::{Limit, Meter};

/// Frames of 1000 bytes. Where `forged` is true, the source is another's.
fn frames(forged: &[bool]) -> impl Iterator<Item = Frame> + Send + 'static {
    let forged = forged.to_vec();
    forged.into_iter().map(|is_forged| {
        let mut frame = frame(1000);
        frame.bytes[11] = if is_forged { 2 } else { 1 };
        frame
    })
}

/// The two orders: the guard inside, and outside.
fn both(forged: &[bool], limit: Limit, clock: &Clock) -> [Box<dyn Ingress>; 2] {
    let policy = Policy { mac: MacAddr(MAC), addresses: None };
    let shape = |inner| -> Box<dyn Ingress> {
        Box::new(Shaper::new(inner, &Meter::new(limit), clock.reader()))
    };
    [
        shape(Guard::wrap(supply(frames(forged)), &policy)),
        Guard::wrap(shape(supply(frames(forged))), &policy),
    ]
}

#[test]
fn forged_frames_are_refused_and_the_rate_holds() {
    let limit = Limit { burst_bytes: 5000, ..Limit::new(Some(1_000_000), None) };
    let forged = [false, true, false, false, true, false, true, true];
    let clock = Clock::new();
    for mut port in both(&forged, limit, &clock) {
        let mut received = port::Received::default();
        port.receive(&mut Budget::default(), &mut received).unwrap();
        let slots = port.window().order().to_vec();
        let spoofed = |n: usize| (slots[n], DropReason::SpoofedMac);
        assert_eq!((received.fresh, &received.refused[..]), (5, &[spoofed(1), spoofed(4)][..]));
        port.finish(&[port::Outcome::Delivered; port::WINDOW]);
        let Ok(Armed::Until(next)) = port.arm() else { panic!("over its rate") };
        assert_eq!((next - clock.now()).as_micros(), 1000);
        let mut is_called = false;
        port.with_body(&mut |_| is_called = true);
        assert!(is_called);
    }
}

proptest! {
    /// Either order takes and refuses the same.
    #[test]
    fn the_order_makes_no_difference(
        forged in prop::collection::vec(any::<bool>(), 1..300),
        pauses in prop::collection::vec(0u64..20, 1..50),
        rate in 1_000_000u64..10_000_000,
    ) {
        let clock = Clock::new();
        let limit = Limit { burst_bytes: 20_000, ..Limit::new(Some(rate), Some(2000)) };
        let [mut inside, mut outside] = both(&forged, limit, &clock);
        let mut fresh = 0;
        for pause in pauses {
            clock.advance(Duration::from_millis(pause));
            let (taken, received) = turn(&mut *inside, Budget::TURN);
            let (other_taken, other_received) = turn(&mut *outside, Budget::TURN);
            prop_assert_eq!(taken, other_taken);
            prop_assert_eq!(received.refused.len(), other_received.refused.len());
            prop_assert_eq!(inside.arm(), outside.arm());
            let new = &forged[fresh..fresh + received.fresh];
            prop_assert_eq!(received.refused.len(), new.iter().filter(|forged| **forged).count());
            fresh += received.fresh;
        }
    }
}
