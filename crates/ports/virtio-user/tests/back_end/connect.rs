//! Connections with fake back-ends, and the end of a queue: what came out of it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use offload::{Checksum, Gso};
use port::{Doorbell, Outcome, Queue, linearise};
use port_testing::FakeEgress;
use vhost_user::shared::bit;
use virtio_user::{Error, Options, Session};
use virtqueue::Layout;

use crate::ALL;
use crate::fake::{Answer, Fake};

/// The features of a back-end with rings of this layout.
pub fn features(layout: Layout) -> u64 {
    let all = bit::VERSION_1 | bit::PROTOCOL_FEATURES | bit::MRG_RXBUF | bit::CSUM | bit::HOST_TSO4;
    if layout == Layout::Packed { all | bit::RING_PACKED } else { all }
}

type Connected = Result<(Session, Vec<Queue>), Error>;

/// Starts a back-end with these features and answers.
pub fn start(features: u64, answer: Answer) -> (UnixStream, JoinHandle<Option<Fake>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours, std::thread::spawn(move || Fake::serve(theirs, features, answer)))
}

/// Connects to a back-end with these features and answers.
pub fn connect(features: u64, options: &Options, answer: Answer) -> (Connected, Option<Fake>) {
    let (ours, thread) = start(features, answer);
    let stop = Doorbell::new().unwrap();
    let connected = virtio_user::connect(ours, options, &Arc::default(), stop.as_fd());
    (connected, thread.join().unwrap())
}

/// A back-end with rings of this layout that has said nothing wrong, and the front-end's side of it.
pub fn honest(layout: Layout) -> (Session, Queue, Fake) {
    with(features(layout))
}

/// The same with these features.
pub fn with(features: u64) -> (Session, Queue, Fake) {
    let (connected, fake) = connect(features, &ALL, |_| None);
    let (session, mut queues) = connected.unwrap();
    (session, queues.remove(0), fake.unwrap())
}

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
