//! The ingress side of a test port: a vector of frames, with bodies in mapped memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use port::{
    Armed, Body, Broken, Budget, Doorbell, Event, HEADER_MAX, Ingress, Outcome, Outcomes, Piece,
    Received, WINDOW, Window,
};
use shm::Region;

/// Longest piece of a body.
const PIECE: usize = 4096;
/// Pieces of the longest body.
const PIECES: usize = 16;

/// What the test holds of the port's sending side.
#[derive(Clone)]
pub struct Sender(Arc<Shared>);

struct Shared {
    /// Frames not yet taken, with their numbers.
    queue: Mutex<VecDeque<(u32, Vec<u8>)>>,
    /// How frames ended, in the order of the answers.
    answers: Mutex<Vec<(u32, Outcome)>>,
    doorbell: Arc<Doorbell>,
    sent: AtomicU64,
    turns: AtomicU64,
    broken: AtomicBool,
}

/// Where the pieces of a frame lie: the region and the offset for a slot of the window, and the
/// piece's number.
pub type Layout = fn(slot: usize, piece: usize) -> (u16, u64);

struct TestIngress {
    shared: Arc<Shared>,
    window: Window,
    /// The number of the frame in each slot.
    numbers: [u32; WINDOW],
    regions: Arc<[Region]>,
    layout: Layout,
}

impl Sender {
    /// A sender with the bodies of its frames in one region.
    pub fn new() -> (Self, Box<dyn Ingress>) {
        let region = Region::anonymous(WINDOW * PIECES * PIECE).unwrap();
        Self::with_layout([region].into(), |slot, piece| {
            (0, ((slot * PIECES + piece) * PIECE) as u64)
        })
    }

    pub fn with_layout(regions: Arc<[Region]>, layout: Layout) -> (Self, Box<dyn Ingress>) {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            answers: Mutex::default(),
            doorbell: Arc::new(Doorbell::new().unwrap()),
            sent: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        });
        let (window, numbers) = (Window::new(), [0; WINDOW]);
        let ingress = TestIngress { shared: shared.clone(), window, numbers, regions, layout };
        (Self(shared), Box::new(ingress))
    }

    /// Sends a frame. Frames are numbered from 0 on.
    pub fn send(&self, bytes: &[u8]) {
        let number = u32::try_from(self.0.sent.fetch_add(1, Ordering::Relaxed)).unwrap();
        self.0.queue.lock().unwrap().push_back((number, bytes.to_vec()));
        self.0.doorbell.ring();
    }

    /// The frames that are answered, and how, in the order of the answers.
    pub fn answers(&self) -> Vec<(u32, Outcome)> {
        self.0.answers.lock().unwrap().clone()
    }

    /// How often the port was asked for frames.
    pub fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Relaxed)
    }

    /// The next look at the port finds it broken.
    pub fn break_down(&self) {
        self.0.broken.store(true, Ordering::Relaxed);
        self.0.doorbell.ring();
    }

    pub fn doorbell(&self) -> &Doorbell {
        &self.0.doorbell
    }
}

impl Ingress for TestIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.shared.doorbell.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
        if self.shared.broken.load(Ordering::Relaxed) {
            return Err(Broken::new("the sender broke down"));
        }
        while !budget.is_spent() && !self.window.is_full() {
            let Some((number, bytes)) = self.shared.queue.lock().unwrap().pop_front() else {
                break;
            };
            budget.charge(1, bytes.len());
            let (slot, frame) = self.window.push().unwrap();
            self.numbers[slot] = number;
            let (header, body) = bytes.split_at(bytes.len().min(HEADER_MAX));
            if frame.set_header(header).is_err() {
                self.window.undo_push();
                received.malformed += 1;
                continue;
            }
            frame.len = u32::try_from(bytes.len()).unwrap();
            for (n, piece) in body.chunks(PIECE).enumerate() {
                let (index, offset) = (self.layout)(slot, n);
                let region = &self.regions[usize::from(index)];
                region.copy_in(usize::try_from(offset).unwrap(), piece).unwrap();
                let len = u16::try_from(piece.len()).unwrap();
                frame.pieces.push(Piece::in_region(index, offset, len));
            }
            received.fresh += 1;
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { shared, window, numbers, regions, .. } = self;
        window.retain(|slot, frame| {
            let outcome = outcomes[usize::from(slot)];
            if outcome.is_final() {
                // Whoever reads it after the answer reads this.
                for piece in &frame.pieces {
                    if let port::Place::Region { index, offset } = piece.place {
                        let offset = usize::try_from(offset).unwrap();
                        regions[usize::from(index)].zero(offset, piece.len.into()).unwrap();
                    }
                }
                shared.answers.lock().unwrap().push((numbers[usize::from(slot)], outcome));
            }
            !outcome.is_final()
        });
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // With a full window there is nothing to do until a frame in hand is done with.
        let waits = self.window.is_full() || self.shared.queue.lock().unwrap().is_empty();
        Ok(if waits { Armed::Asleep } else { Armed::Ready })
    }
}
