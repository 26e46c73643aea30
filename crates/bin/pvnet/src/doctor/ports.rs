//! Ports over vhost-user: both ends of one, in this process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use offload::Features;
use port::{Doorbell, Queue};
use vhost_user::{Device, DeviceOptions, Session};
use virtio_user::Options;

use super::check::text;

/// A back-end that serves its rings to nobody.
struct Nobody;

impl Device for Nobody {
    fn start(&self, _: Vec<Queue>) {}

    fn stop(&self, _: &str) {}
}

/// Has a back-end and a front-end agree.
pub(super) fn both_ends() -> Result<String, String> {
    let (front, back) = UnixStream::pair().map_err(text)?;
    let offloads = Features::ALL;
    let offered = DeviceOptions { queues: 1, packed: true, offloads, guest_offloads: true };
    let session = Session::new(offered, Arc::new(Nobody), Arc::default()).map_err(text)?;
    let thread = thread::spawn(move || session.run(back));
    let wanted = Options { queues: 1, packed: true, sends: offloads, receives: offloads };
    let stop = Doorbell::new().map_err(text)?;
    let connected = virtio_user::connect(front, &wanted, &Arc::default(), stop.as_fd());
    let layout = connected.map(|(session, _)| session.agreed().layout()).map_err(text)?;
    // The front-end is gone.
    thread.join().map_err(|_| "the back-end's thread panicked")?;
    Ok(format!("a back-end and a front-end agreed on {layout:?} rings").to_lowercase())
}
