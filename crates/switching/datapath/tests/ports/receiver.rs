//! The egress side of a test port: it takes frames at once, while it has room.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use port::{Body, Broken, Doorbell, Egress, Event, Offer, Outcome, linearise};

/// What the test holds of the port's receiving side.
#[derive(Clone)]
pub struct Receiver(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    doorbell: Arc<Doorbell>,
}

struct State {
    frames: Vec<Vec<u8>>,
    /// How many more frames it takes.
    room: usize,
    broken: bool,
}

struct TestEgress(Arc<Shared>);

impl Receiver {
    /// A receiver with room for all frames.
    pub fn new() -> (Self, Box<dyn Egress>) {
        Self::with_room(usize::MAX)
    }

    pub fn with_room(room: usize) -> (Self, Box<dyn Egress>) {
        let state = Mutex::new(State { frames: Vec::new(), room, broken: false });
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let shared = Arc::new(Shared { state, doorbell });
        (Self(shared.clone()), Box::new(TestEgress(shared)))
    }

    /// Makes room.
    pub fn make_room(&self, frames: usize) {
        self.0.state.lock().unwrap().room += frames;
        self.0.doorbell.ring();
    }

    /// The next delivery finds it broken.
    pub fn break_down(&self) {
        self.0.state.lock().unwrap().broken = true;
    }

    /// How many frames have come and were not taken.
    pub fn count(&self) -> usize {
        self.0.state.lock().unwrap().frames.len()
    }

    /// Takes the frames that have come.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.state.lock().unwrap().frames)
    }
}

impl Egress for TestEgress {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        let mut state = self.0.state.lock().unwrap();
        if state.broken {
            return Err(Broken::new("the receiver broke down"));
        }
        for offer in offers {
            if state.room == 0 {
                break;
            }
            let mut bytes = vec![0; offer.frame.len as usize];
            offer.outcome = match linearise(offer.frame, body, &mut bytes) {
                Ok(_) => {
                    state.room -= 1;
                    state.frames.push(bytes);
                    Outcome::Delivered
                }
                Err(fault) => fault,
            };
        }
        Ok(())
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.0.doorbell.clone())
    }
}
