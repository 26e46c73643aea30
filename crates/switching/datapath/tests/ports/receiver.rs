//! The egress side of a test port: it takes frames at once, while it has room.

use std::sync::{Arc, Mutex};

use port::{Body, Broken, Doorbell, Egress, Frame, Outcome, linearise};
use port_testing::FakeEgress;

/// What the test holds of the port's receiving side.
#[derive(Clone)]
pub struct Receiver {
    state: Arc<Mutex<State>>,
    doorbell: Arc<Doorbell>,
}

struct State {
    frames: Vec<Vec<u8>>,
    /// How many more frames it takes.
    room: usize,
    broken: bool,
}

impl Receiver {
    /// A receiver with room for all frames.
    pub fn new() -> (Self, Box<dyn Egress>) {
        Self::with_room(usize::MAX)
    }

    pub fn with_room(room: usize) -> (Self, Box<dyn Egress>) {
        let state = Arc::new(Mutex::new(State { frames: Vec::new(), room, broken: false }));
        let taker = Arc::clone(&state);
        let egress = FakeEgress::new(move |frame, body| taker.lock().unwrap().take(frame, body));
        (Self { state, doorbell: egress.doorbell() }, Box::new(egress))
    }

    pub fn make_room(&self, frames: usize) {
        self.state.lock().unwrap().room += frames;
        self.doorbell.ring();
    }

    /// The next delivery finds it broken.
    pub fn break_down(&self) {
        self.state.lock().unwrap().broken = true;
    }

    /// How many frames have come and were not taken.
    pub fn count(&self) -> usize {
        self.state.lock().unwrap().frames.len()
    }

    /// Takes the frames that have come.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state.lock().unwrap().frames)
    }
}

impl State {
    fn take(&mut self, frame: &Frame, body: Body<'_>) -> Result<Outcome, Broken> {
        if self.broken {
            return Err(Broken::new("the receiver broke down"));
        }
        if self.room == 0 {
            return Ok(Outcome::Waiting);
        }
        let mut bytes = vec![0; frame.len as usize];
        if let Err(fault) = linearise(frame, body, &mut bytes) {
            return Ok(fault);
        }
        self.room -= 1;
        self.frames.push(bytes);
        Ok(Outcome::Delivered)
    }
}
