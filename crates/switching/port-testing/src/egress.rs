//! The egress side of a fake port.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use offload::{Gso, MAX_HEADER, Segmenter};
use port::{
    Body, Broken, Doorbell, DropReason, Egress, Event, Frame, HEADER_MAX, InFlight, Merging, Offer,
    Outcome, Ticket,
};
use wire::headers::Headers;

/// What was done to an egress queue.
#[derive(Debug, Default)]
pub struct Log {
    /// Lengths of the frames offered, by call.
    pub calls: Vec<Vec<u32>>,
    /// The deliveries that were cancelled.
    pub cancelled: Vec<Ticket>,
}

type Answer = dyn FnMut(&Frame, Body<'_>) -> Result<Outcome, Broken> + Send;

/// An egress queue that answers each frame as a test says. Deliveries in flight end when they are reaped.
pub struct FakeEgress {
    answer: Box<Answer>,
    doorbell: Arc<Doorbell>,
    log: Arc<Mutex<Log>>,
    /// Whether it says that it is stalled.
    pub is_stalled: bool,
    /// Which merged frames it says that it takes.
    pub merging: Option<Merging>,
}

impl FakeEgress {
    /// An egress queue with this answer to each frame. An error ends the call, and an
    /// outcome with which the frame is offered again.
    pub fn new(
        answer: impl FnMut(&Frame, Body<'_>) -> Result<Outcome, Broken> + Send + 'static,
    ) -> Self {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        Self {
            answer: Box::new(answer),
            doorbell,
            log: Arc::default(),
            is_stalled: false,
            merging: None,
        }
    }

    /// The room event.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    /// What is done to the queue.
    pub fn log(&self) -> Arc<Mutex<Log>> {
        Arc::clone(&self.log)
    }
}

impl Egress for FakeEgress {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        self.log.lock().unwrap().calls.push(offers.iter().map(|offer| offer.frame.len).collect());
        for offer in offers {
            offer.outcome = (self.answer)(offer.frame, body)?;
            if offer.outcome.is_offered_again() {
                break;
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
        self.is_stalled
    }

    fn merging(&self) -> Option<Merging> {
        self.merging
    }
}

/// A frame with the first of these bytes as its private header, and a body of which only the length is known.
pub fn frame(bytes: &[u8]) -> Frame {
    let mut frame = Frame::empty();
    let header = &bytes[..bytes.len().min(HEADER_MAX)];
    frame.bytes[..header.len()].copy_from_slice(header);
    frame.header_len = u8::try_from(header.len()).expect("at most HEADER_MAX");
    frame.headers = Headers::parse_start(header, bytes.len()).expect("well-formed headers");
    frame.len = u32::try_from(bytes.len()).expect("a frame's length");
    frame
}

/// A frame on its way into a port.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The frame, without pieces. A length of 0 makes it a malformed packet.
    pub frame: Frame,
    /// The bytes behind its private header. May be empty where a test needs no body.
    pub body: Vec<u8>,
    /// Why the port itself refuses the frame, if it does.
    pub refused: Option<DropReason>,
}

impl Sent {
    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        [self.frame.header(), &self.body].concat()
    }
}

impl<T: AsRef<[u8]>> From<T> for Sent {
    fn from(bytes: T) -> Self {
        let frame = frame(bytes.as_ref());
        let body = bytes.as_ref()[frame.header().len()..].to_vec();
        Self { frame, body, refused: None }
    }
}

/// The segments of a frame, whole and with complete checksums.
///
/// # Panics
/// The frame is malformed, or cannot be cut so.
#[must_use]
pub fn segments(bytes: &[u8], gso: Gso) -> Vec<Vec<u8>> {
    let headers = Headers::parse(bytes).unwrap();
    let mut segmenter = Segmenter::new(bytes, &headers, gso).unwrap();
    let mut header = [0; MAX_HEADER];
    let next = || {
        let segment = segmenter.next(&mut header)?;
        Some([&header[..segment.header_len], &bytes[segment.payload]].concat())
    };
    std::iter::from_fn(next).collect()
}
