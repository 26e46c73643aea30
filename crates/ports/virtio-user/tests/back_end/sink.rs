//! The end of a queue: what came out of it.

use std::sync::{Arc, Mutex};

use offload::{Checksum, Gso};
use port::{Outcome, linearise};
use port_testing::FakeEgress;

/// A frame that came out of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

/// An egress queue that notes what it is offered.
pub fn sink() -> (FakeEgress, Arc<Mutex<Vec<Out>>>) {
    let seen = Arc::<Mutex<Vec<Out>>>::default();
    let noted = seen.clone();
    let egress = FakeEgress::new(move |frame, body| {
        let mut bytes = vec![0; frame.len as usize];
        if let Err(fault) = linearise(frame, body, &mut bytes) {
            return Ok(fault);
        }
        let (checksum, gso) = (frame.checksum, frame.gso);
        noted.lock().unwrap().push(Out { bytes, checksum, gso });
        Ok(Outcome::Delivered)
    });
    (egress, seen)
}
