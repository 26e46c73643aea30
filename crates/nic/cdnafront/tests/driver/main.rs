//! The driver of a context: against a card that checks every descriptor ([`model`]), and with the real one ([`world`]).

mod card;
mod lent;
mod model;
mod port;
mod queue;
mod world;

use cdnafront::{CardQueue, Fault, ReceivedFrame};
use netdev::{Metadata, Queue as _, Refused};
use shm::Iovec;

/// Sends a frame. Returns whether it fitted.
fn send(queue: &mut CardQueue, frame: &[u8], metadata: Metadata) -> Result<(), Refused> {
    let mut rest = frame;
    for buffer in queue.buffers() {
        let now = rest.len().min(buffer.len);
        buffer.region.copy_in(buffer.offset, &rest[..now]).unwrap();
        rest = &rest[now..];
    }
    queue.submit(Metadata { len: frame.len(), ..metadata })
}

/// The next received frame.
fn receive(queue: &mut CardQueue) -> Result<Option<(Vec<u8>, Metadata)>, Fault> {
    let mut frame = ReceivedFrame::default();
    let Some(metadata) = queue.receive(&mut frame)? else { return Ok(None) };
    let mut all = Vec::new();
    for fragment in queue.fragments(&frame) {
        let Iovec::Shared { region, offset, len } = fragment else { panic!("in shared memory") };
        let mut part = vec![0; len];
        region.copy_out(offset, &mut part).unwrap();
        all.extend(part);
    }
    assert_eq!(all.len(), metadata.len);
    Ok(Some((all, metadata)))
}
