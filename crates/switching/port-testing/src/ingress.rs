//! The ingress side of a fake port: its bodies lie in mapped memory.

use std::collections::VecDeque;
use std::iter::{self, Peekable};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use port::{
    Armed, Body, Broken, Budget, Doorbell, Event, Fragment, Frame, Ingress, Outcome, Outcomes,
    Place, Received, WINDOW, Window,
};
use shm::Region;

use crate::Sent;

/// Longest fragment of a body, in bytes.
const FRAGMENT: usize = 4096;
/// Most fragments of a body.
const FRAGMENTS: usize = 16;

/// Where a fragment of a body lies, by the frame's slot in the window and the fragment's number: its region, and its offset
/// there in bytes. A fragment has up to 4096 bytes, and a body up to 16 fragments.
pub type Layout = fn(slot: usize, fragment: usize) -> (u16, u64);

/// What a test holds of an ingress queue.
#[derive(Clone)]
pub struct Sender(Arc<Shared>);

struct Shared {
    /// Frames not yet taken, with their numbers.
    queue: Mutex<VecDeque<(u32, Sent)>>,
    answers: Mutex<Vec<(u32, Outcome)>>,
    doorbell: Arc<Doorbell>,
    sent: AtomicU32,
    turns: AtomicU64,
    body_uses: AtomicU64,
    is_broken: AtomicBool,
}

impl Sender {
    /// An ingress queue with the bodies of its frames in one region.
    pub fn new() -> (Self, Box<dyn Ingress>) {
        let region = Region::anonymous(WINDOW * FRAGMENTS * FRAGMENT).unwrap();
        Self::with_layout([region].into(), |slot, fragment| {
            (0, ((slot * FRAGMENTS + fragment) * FRAGMENT) as u64)
        })
    }

    /// An ingress queue without back-pressure, as on a wire.
    pub fn on_a_wire() -> (Self, Box<dyn Ingress>) {
        let mut ingress = FakeIngress::new([].into(), |_, _| (0, 0), iter::empty());
        ingress.back_pressure = false;
        (Self(Arc::clone(&ingress.shared)), Box::new(ingress))
    }

    /// An ingress queue with the bodies of its frames in these regions.
    pub fn with_layout(regions: Arc<[Region]>, layout: Layout) -> (Self, Box<dyn Ingress>) {
        let ingress = FakeIngress::new(regions, layout, iter::empty());
        (Self(Arc::clone(&ingress.shared)), Box::new(ingress))
    }

    /// Sends a frame. Frames are numbered from 0 on.
    pub fn send(&self, sent: impl Into<Sent>) {
        let number = self.0.sent.fetch_add(1, Ordering::Relaxed);
        self.0.queue.lock().unwrap().push_back((number, sent.into()));
        self.0.doorbell.ring();
    }

    /// The frames that are answered, and how, in the order of the answers.
    pub fn answers(&self) -> Vec<(u32, Outcome)> {
        self.0.answers.lock().unwrap().clone()
    }

    /// How often the queue was asked for frames.
    pub fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Relaxed)
    }

    /// How often the queue lent its bodies.
    pub fn body_uses(&self) -> u64 {
        self.0.body_uses.load(Ordering::Relaxed)
    }

    /// Breaks the queue: its next turn fails.
    pub fn break_down(&self) {
        self.0.is_broken.store(true, Ordering::Relaxed);
        self.0.doorbell.ring();
    }

    /// The event of the queue.
    pub fn doorbell(&self) -> &Doorbell {
        &self.0.doorbell
    }
}

/// An ingress queue that takes its frames from an iterator. They have no bodies, and a length of 0 makes one a malformed
/// packet.
pub fn supply(frames: impl Iterator<Item = Frame> + Send + 'static) -> Box<dyn Ingress> {
    Box::new(FakeIngress::new([].into(), |_, _| (0, 0), frames))
}

struct FakeIngress {
    shared: Arc<Shared>,
    /// Frames to take once the shared queue is empty.
    supply: Peekable<Box<dyn Iterator<Item = Frame> + Send>>,
    window: Window,
    /// The number of the frame in each slot; none for a frame of the supply.
    numbers: [Option<u32>; WINDOW],
    regions: Arc<[Region]>,
    layout: Layout,
    back_pressure: bool,
}

impl FakeIngress {
    fn new(
        regions: Arc<[Region]>,
        layout: Layout,
        supply: impl Iterator<Item = Frame> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            answers: Mutex::default(),
            doorbell: Arc::new(Doorbell::new().unwrap()),
            sent: AtomicU32::new(0),
            turns: AtomicU64::new(0),
            body_uses: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
        });
        let supply = (Box::new(supply) as Box<dyn Iterator<Item = _> + Send>).peekable();
        let (window, numbers) = (Window::new(), [None; WINDOW]);
        Self { shared, supply, window, numbers, regions, layout, back_pressure: true }
    }

    /// The next frame, and its number.
    fn next(&mut self) -> Option<(Option<u32>, Sent)> {
        if let Some((number, sent)) = self.shared.queue.lock().unwrap().pop_front() {
            return Some((Some(number), sent));
        }
        let frame = self.supply.next()?;
        Some((None, Sent { frame, body: Vec::new(), refused: None }))
    }

    fn is_empty(&mut self) -> bool {
        self.shared.queue.lock().unwrap().is_empty() && self.supply.peek().is_none()
    }
}

impl Ingress for FakeIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.shared.doorbell.clone()
    }

    fn has_back_pressure(&self) -> bool {
        self.back_pressure
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn has_work(&mut self) -> bool {
        let is_broken = self.shared.is_broken.load(Ordering::Relaxed);
        is_broken || !self.window.is_empty() || !self.is_empty()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
        if self.shared.is_broken.load(Ordering::Relaxed) {
            return Err(Broken::new("the sender broke down"));
        }
        while !budget.is_spent() && !self.window.is_full() {
            let Some((number, sent)) = self.next() else { break };
            budget.charge_frame(1, &sent.frame);
            if sent.frame.len == 0 {
                received.malformed += 1;
                continue;
            }
            let (slot, frame) = self.window.push().unwrap();
            *frame = sent.frame;
            for (n, fragment) in sent.body.chunks(FRAGMENT).enumerate() {
                let (index, offset) = (self.layout)(slot, n);
                let region = &self.regions[usize::from(index)];
                region.copy_in(usize::try_from(offset).unwrap(), fragment).unwrap();
                let len = u16::try_from(fragment.len()).unwrap();
                frame.fragments.push(Fragment::in_region(index, offset, len));
            }
            self.numbers[slot] = number;
            received.fresh += 1;
            let slot = u8::try_from(slot).unwrap();
            received.refused.extend(sent.refused.map(|reason| (slot, reason)));
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.shared.body_uses.fetch_add(1, Ordering::Relaxed);
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { shared, window, numbers, regions, .. } = self;
        window.retain(|slot, frame| {
            let outcome = outcomes[usize::from(slot)];
            if outcome.is_final() {
                // Who reads the body after the answer finds zeros.
                for fragment in &frame.fragments {
                    if let Place::Region { index, offset } = fragment.place {
                        let region = &regions[usize::from(index)];
                        region.zero(offset.index(), fragment.len.into()).unwrap();
                    }
                }
                let number = numbers[usize::from(slot)];
                shared.answers.lock().unwrap().extend(number.map(|number| (number, outcome)));
            }
            !outcome.is_final()
        });
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // With a full window there is nothing to do until a frame in hand is done with.
        let waits = self.window.is_full() || self.is_empty();
        Ok(if waits { Armed::Asleep } else { Armed::Ready })
    }
}
