//! The guard around a port.

use guard::Guard;
use port::{Armed, Budget, DropReason, Outcome, Received, WINDOW};
use port_testing::{Sender, Sent};
use wire::ip::Protocol;

use crate::packets::*;

#[test]
fn the_wrapper_refuses_fresh_frames_once_each() {
    let honest = v4(V4, Protocol::TCP, &tcp());
    let forged = v4(OTHER_V4, Protocol::TCP, &tcp());
    let frames = [forged.clone(), honest.clone(), forged.clone(), honest];
    let (sender, ingress) = Sender::new();
    for (n, frame) in frames.iter().cycle().take(WINDOW + 4).enumerate() {
        // The port itself refuses the first frame of each turn.
        let refused = [0, 3].contains(&n).then_some(DropReason::MemoryFault);
        sender.send(Sent { refused, ..frame.into() });
    }
    let mut port = Guard::wrap(ingress, &policy());
    let mut received = Received::default();
    port.receive(&mut Budget::new(3, u64::MAX), &mut received).unwrap();
    let slots = port.window().order().to_vec();
    let expected = [(slots[0], DropReason::MemoryFault), (slots[2], DropReason::SpoofedIpv4)];
    assert_eq!((received.fresh, received.refused), (3, expected.to_vec()));
    assert_eq!(port.arm(), Ok(Armed::Ready));

    // Frames that stay in the window are not checked again.
    let mut outcomes = [Outcome::Waiting; WINDOW];
    outcomes[usize::from(slots[0])] = Outcome::Delivered;
    port.finish(&outcomes);
    let mut received = Received::default();
    port.receive(&mut Budget::default(), &mut received).unwrap();
    assert_eq!(received.fresh, WINDOW - 2);
    let fresh = &port.window().order()[2..];
    assert!(received.refused.iter().all(|(slot, _)| fresh.contains(slot)));
    assert_eq!(received.refused[0], (fresh[0], DropReason::MemoryFault));
    assert_eq!(received.refused.len(), 1 + WINDOW / 2 - 1);
    let mut called = false;
    port.with_body(&mut |_| called = true);
    assert!(called);
}
