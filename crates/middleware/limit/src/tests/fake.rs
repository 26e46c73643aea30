//! Both sides of a port without memory or hardware, and a clock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use offload::{Gso, GsoKind};
use port::{
    Armed, Body, Broken, Budget, Doorbell, DropReason, Egress, Event, Frame, InFlight, Ingress,
    Offer, Outcome, Outcomes, Received, Ticket, WINDOW, Window,
};
use shm::Region;

use crate::tokens::Tokens;

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

/// A frame of so many segments, with `size` bytes of payload each.
pub fn frame_to_segment(segments: u32, size: u16) -> Frame {
    let mut frame = frame(u32::from(HEADERS) + segments * u32::from(size));
    frame.headers.payload_offset = HEADERS;
    frame.gso = Some(Gso { kind: GsoKind::TcpV4, size });
    frame
}

/// A clock that stands until it is turned.
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

    /// What the wrappers read.
    pub fn reader(&self) -> impl Fn() -> Instant + Send + 'static {
        let clock = self.clone();
        move || clock.now()
    }
}

/// The frames that the other side of a port sends, one by one.
pub type Frames = Box<dyn Iterator<Item = Frame> + Send>;

/// The ingress side of a port.
pub struct Sender {
    frames: std::iter::Peekable<Frames>,
    window: Window,
    doorbell: Arc<Doorbell>,
    no_body: Arc<[Region]>,
}

impl Sender {
    /// A frame of length zero is a malformed packet.
    pub fn boxed(frames: impl Iterator<Item = Frame> + Send + 'static) -> Box<dyn Ingress> {
        Box::new(Self {
            frames: (Box::new(frames) as Frames).peekable(),
            window: Window::new(),
            doorbell: Arc::new(Doorbell::new().unwrap()),
            no_body: Arc::new([]),
        })
    }
}

impl Ingress for Sender {
    fn event(&self) -> Arc<dyn Event> {
        self.doorbell.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && !self.window.is_full() {
            let Some(frame) = self.frames.next() else { break };
            budget.charge_frame(1, &frame);
            if frame.len == 0 {
                received.malformed += 1;
                continue;
            }
            *self.window.push().unwrap().1 = frame;
            received.fresh += 1;
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
        Ok(if self.frames.peek().is_none() { Armed::Asleep } else { Armed::Ready })
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

/// What was done to a receiver.
#[derive(Default)]
pub struct Log {
    /// Lengths of the frames offered, by call.
    pub calls: Vec<Vec<u32>>,
    pub cancelled: Vec<Ticket>,
}

/// What a receiver says to a frame.
pub type Answer = Box<dyn FnMut(&Frame) -> Outcome + Send>;

/// The egress side of a port.
pub struct Receiver {
    log: Arc<Mutex<Log>>,
    answer: Answer,
    doorbell: Arc<Doorbell>,
}

impl Receiver {
    pub fn new(
        answer: impl FnMut(&Frame) -> Outcome + Send + 'static,
    ) -> (Box<Self>, Arc<Mutex<Log>>) {
        let log = Arc::new(Mutex::new(Log::default()));
        let doorbell = Arc::new(Doorbell::new().unwrap());
        (Box::new(Self { log: Arc::clone(&log), answer: Box::new(answer), doorbell }), log)
    }
}

impl Egress for Receiver {
    fn deliver(
        &mut self,
        _body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        self.log.lock().unwrap().calls.push(offers.iter().map(|offer| offer.frame.len).collect());
        for offer in offers {
            offer.outcome = (self.answer)(offer.frame);
            match offer.outcome {
                Outcome::Waiting => break,
                Outcome::Dropped(DropReason::PortGone) => return Err(Broken::new("gone")),
                _ => {}
            }
        }
        Ok(())
    }

    fn reap(&mut self, deliveries: &mut [InFlight]) {
        for delivery in deliveries {
            delivery.outcome = Some(Outcome::Delivered);
        }
    }

    fn cancel(&mut self, tickets: &[Ticket]) {
        self.log.lock().unwrap().cancelled.extend(tickets);
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.doorbell.clone())
    }

    fn is_stalled(&self) -> bool {
        true
    }
}

/// Offers frames to a queue. Returns what became of them.
pub fn offer(
    port: &mut dyn Egress,
    frames: &[Frame],
    now: Duration,
) -> (Vec<Outcome>, Result<(), Broken>) {
    let no_body: Arc<[Region]> = Arc::new([]);
    let mut offers: Vec<_> = frames.iter().map(Offer::new).collect();
    let result = port.deliver(Body::Regions(&no_body), &mut offers, now);
    (offers.iter().map(|offer| offer.outcome).collect(), result)
}
