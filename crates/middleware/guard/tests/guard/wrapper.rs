//! The guard around a port.

use std::collections::VecDeque;
use std::sync::Arc;

use guard::Guard;
use port::{
    Armed, Body, Broken, Budget, Doorbell, DropReason, Event, Ingress, Outcome, Outcomes, Received,
    WINDOW, Window,
};
use shm::Region;
use wire::ip::Protocol;

use crate::packets::*;

/// A port whose other side has sent some frames.
struct Held {
    frames: VecDeque<Vec<u8>>,
    window: Window,
    doorbell: Arc<Doorbell>,
    no_body: Arc<[Region]>,
    /// The first frame of each turn is refused by the port itself.
    refuses_first: bool,
}

impl Held {
    fn boxed(frames: impl IntoIterator<Item = Vec<u8>>, refuses_first: bool) -> Box<dyn Ingress> {
        Box::new(Self {
            frames: frames.into_iter().collect(),
            window: Window::new(),
            doorbell: Arc::new(Doorbell::new().unwrap()),
            no_body: Arc::new([]),
            refuses_first,
        })
    }
}

impl Ingress for Held {
    fn event(&self) -> Arc<dyn Event> {
        self.doorbell.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && !self.window.is_full() {
            let Some(bytes) = self.frames.pop_front() else { break };
            let (slot, frame) = self.window.push().unwrap();
            fill(frame, &bytes);
            budget.charge(1, bytes.len());
            received.fresh += 1;
            if self.refuses_first && received.fresh == 1 {
                received.refused.push((u8::try_from(slot).unwrap(), DropReason::MemoryFault));
            }
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.no_body));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(if self.frames.is_empty() { Armed::Asleep } else { Armed::Ready })
    }
}

#[test]
fn the_wrapper_refuses_fresh_frames_once_each() {
    let honest = v4(V4, Protocol::TCP, &tcp());
    let forged = v4(OTHER_V4, Protocol::TCP, &tcp());
    let frames = [forged.clone(), honest.clone(), forged.clone(), honest];
    let frames = frames.into_iter().cycle().take(WINDOW + 4);
    let mut port = Guard::wrap(Held::boxed(frames, true), &policy());
    let mut received = Received::default();
    port.receive(&mut Budget::new(3, u64::MAX), &mut received).unwrap();
    let slots = port.window().order().to_vec();
    let expected = [(slots[0], DropReason::MemoryFault), (slots[2], DropReason::SpoofedIpv4)];
    assert_eq!((received.fresh, received.refused), (3, expected.to_vec()));
    assert_eq!(port.arm(), Ok(Armed::Ready));

    // Frames that stay in the window are not looked at again.
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
