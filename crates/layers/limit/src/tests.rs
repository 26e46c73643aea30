//! Tests of the wrappers around fake ports, on a clock that the tests set.

mod compose;
mod police;
mod shape;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use offload::{Gso, GsoKind};
use port::{
    Body, Broken, Budget, DropReason, Egress, Frame, Ingress, Offer, Outcome, Received, WINDOW,
};
use port_testing::{FakeEgress, Log};
use shm::Region;

use crate::meter::Tokens;

/// Source of the honest frames.
pub const MAC: [u8; 6] = [0x00, 0x16, 0x3e, 0, 0, 1];
/// Bytes of the headers in a frame to be segmented.
pub const HEADERS: u8 = 54;

/// A frame of `len` bytes, of another protocol than IP.
pub fn frame(len: u32) -> Frame {
    let mut frame = Frame::empty();
    let mut header = [0xee; 60];
    header[6..12].copy_from_slice(&MAC);
    frame.set_header(&header).unwrap();
    frame.len = len;
    frame
}

/// A frame of this many segments, with `size` bytes of payload each.
pub fn frame_to_segment(segments: u32, size: u16) -> Frame {
    let mut frame = frame(u32::from(HEADERS) + segments * u32::from(size));
    frame.headers.payload_offset = HEADERS;
    frame.gso = Some(Gso { kind: GsoKind::TcpV4, size });
    frame
}

/// A clock that stands still until a test advances it.
#[derive(Clone)]
pub struct Clock(Arc<Mutex<Instant>>);

impl Clock {
    /// A clock that is ahead of the meters, which start at the present.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + Duration::from_secs(60))))
    }

    pub fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }

    pub fn advance_to(&self, instant: Instant) {
        let mut now = self.0.lock().unwrap();
        *now = instant.max(*now);
    }

    /// The clock that the wrappers read.
    pub fn reader(&self) -> impl Fn() -> Instant + Send + 'static {
        let clock = self.clone();
        move || clock.now()
    }
}

/// A turn of a queue whose frames are all delivered. Returns what it took, and what it noted.
pub fn turn(port: &mut dyn Ingress, budget: Budget) -> (Tokens, Received) {
    let mut received = Received::default();
    port.receive(&mut { budget }, &mut received).unwrap();
    assert_eq!(port.window().len(), received.fresh, "nothing was in hand");
    let mut taken = Tokens::default();
    for slot in port.window().order() {
        taken += Tokens::of(port.window().frame(*slot));
    }
    port.finish(&[Outcome::Delivered; WINDOW]);
    (taken, received)
}

/// An egress queue with this answer to each frame; `PortGone` breaks it. It is stalled.
pub fn receiver(
    mut answer: impl FnMut(&Frame) -> Outcome + Send + 'static,
) -> (Box<dyn Egress>, Arc<Mutex<Log>>) {
    let mut egress = FakeEgress::new(move |frame, _| match answer(frame) {
        Outcome::Dropped(DropReason::PortGone) => Err(Broken::new("gone")),
        outcome => Ok(outcome),
    });
    egress.is_stalled = true;
    let log = egress.log();
    (Box::new(egress), log)
}

/// Offers frames to a queue. Returns what became of them.
pub fn offer(
    port: &mut dyn Egress,
    frames: &[Frame],
    now: Duration,
) -> (Vec<Outcome>, Result<(), Broken>) {
    offer_from(port, frames, 0, now)
}

/// The same, when this many segments of the first frame have been sent.
pub fn offer_from(
    port: &mut dyn Egress,
    frames: &[Frame],
    sent: u16,
    now: Duration,
) -> (Vec<Outcome>, Result<(), Broken>) {
    let no_body: Arc<[Region]> = Arc::new([]);
    let mut offers: Vec<_> = frames.iter().map(Offer::new).collect();
    offers.iter_mut().take(1).for_each(|offer| offer.sent = sent);
    let result = port.deliver(Body::Regions(&no_body), &mut offers, now);
    (offers.iter().map(|offer| offer.outcome).collect(), result)
}
