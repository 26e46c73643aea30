//! Guests that have few buffers: small rings, or firmware that posts 8 in a large one, as iPXE does.

use std::time::Duration;

use hypervisor::Counted;
use port::{Offer, Outcome, Received};

use crate::common::{GUEST_CSUM, LINUX, RING_PACKED, Vm, pass_at, plain, tcp, tso};

/// Features of a guest that takes no unsegmented TCP.
const NO_TSO: u64 = LINUX & !(1 << 7 | 1 << 8);
/// The sizes of rings, and how many buffers are posted at once.
const FEW: [(u16, usize); 4] = [(256, 8), (64, 64), (128, 128), (32, 32)];

/// Frames wait for a guest that takes some each 10 ms, longer than a guest that takes none may make them wait.
#[test]
fn frames_wait_for_a_guest_with_few_buffers_that_takes_them() {
    for (size, buffers) in FEW {
        for layout in [0, RING_PACKED] {
            let mut red = Vm::boot(LINUX);
            let mut blue = Vm::boot_small(NO_TSO | layout, size);
            let (mut from, mut to) = (red.served(1), blue.served(1));
            blue.post(buffers, 1526);
            let (mut sent, mut arrived) = (0, 0);
            for round in 0..100 {
                let now = Duration::from_millis(round * 10);
                // More than it takes.
                while sent < arrived + buffers + 16 {
                    red.send(&plain(&red), &tcp(1000), &[12], false);
                    sent += 1;
                    while red.tx.take().is_some() {}
                    let outcomes = pass_at(&mut from, &mut to, now).unwrap().1;
                    let waits = [Outcome::Delivered, Outcome::Waiting];
                    assert!(outcomes.iter().all(|outcome| waits.contains(outcome)), "{size}");
                }
                let taken = std::iter::from_fn(|| blue.receive()).count();
                assert_eq!(taken, buffers, "of {size}, at {now:?}");
                arrived += taken;
                blue.post(taken, 1526);
                pass_at(&mut from, &mut to, now + Duration::from_millis(9)).unwrap();
            }
            assert!(!to.egress.is_stalled());
        }
    }
}

/// A frame makes more segments than the guest has buffers.
#[test]
fn a_guest_with_few_buffers_gets_all_segments_of_a_frame() {
    const PAYLOAD: usize = 60_000;
    for (size, buffers) in FEW {
        for layout in [0, RING_PACKED] {
            let mut red = Vm::boot(LINUX);
            let mut blue = Vm::boot_small(NO_TSO | layout, size);
            let (mut from, mut to) = (red.served(1), blue.served(1));
            red.send(&tso(&red, 400), &tcp(PAYLOAD), &[12], false);
            from.ingress.receive(&mut port::Budget::default(), &mut Received::default()).unwrap();
            let (mut segments, mut outcome) = (0u16, Outcome::Waiting);
            let mut payload = Vec::new();
            for _ in 0..40 {
                blue.post(buffers, 1526);
                from.ingress.with_body(&mut |body| {
                    let window = from.ingress.window();
                    let frame = window.frame(window.order()[0]);
                    let mut offers = [Offer { sent: segments, ..Offer::new(frame) }];
                    to.egress.deliver(body, &mut offers, Duration::ZERO).unwrap();
                    outcome = offers[0].outcome;
                });
                for (_, segment) in std::iter::from_fn(|| blue.receive()) {
                    payload.extend_from_slice(&segment[54..]);
                }
                match outcome {
                    Outcome::Partial { segments: done } => segments = done,
                    outcome => {
                        assert_eq!(outcome, Outcome::Delivered, "{size}");
                        break;
                    }
                }
            }
            assert_eq!(outcome, Outcome::Delivered);
            assert!(payload == tcp(PAYLOAD)[54..], "each segment once and in order");
        }
    }
}

/// A frame for which there is no room is offered again with each buffer that the guest doles out: its 64 KiB are not copied each time.
#[test]
fn a_frame_that_waits_for_buffers_is_not_copied_in_vain() {
    const PAYLOAD: usize = 60_000;
    let no_checksums = NO_TSO & !GUEST_CSUM;
    for (features, is_unsegmented) in [(NO_TSO, true), (no_checksums, true), (no_checksums, false)]
    {
        for layout in [0, RING_PACKED] {
            let mut red = Vm::boot(LINUX);
            let mut blue = Vm::boot(features | layout);
            let (mut from, mut to) = (red.served(1), blue.served(1));
            let copied = |blue: &Vm| blue.front.meter.count(Counted::DriverBytes);
            let (metadata, payload) = match is_unsegmented {
                true => (tso(&red, 1448), PAYLOAD),
                false => (vec![1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], 1400),
            };
            red.send(&metadata, &tcp(payload), &[12], false);
            for round in 0..6 {
                let now = Duration::from_millis(round);
                assert_eq!(pass_at(&mut from, &mut to, now).unwrap().1, [Outcome::Waiting]);
                // Never as many as a part of the frame takes.
                if is_unsegmented {
                    blue.post(1, 1526);
                }
            }
            let len = (54 + payload) as u64;
            assert!(copied(&blue) <= len, "{} bytes were copied for {len}", copied(&blue));
            blue.post(64, 1526);
            let now = Duration::from_millis(7);
            assert_eq!(pass_at(&mut from, &mut to, now).unwrap().1, [Outcome::Delivered]);
            let arrived = std::iter::from_fn(|| blue.receive());
            let bytes: usize = arrived.map(|(_, bytes)| bytes.len() - 54).sum();
            assert_eq!(bytes, payload);
        }
    }
}
