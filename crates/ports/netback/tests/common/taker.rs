//! An honest guest that receives frames, and a worker's pass that delivers them.

use std::time::Duration;

use machine::Machine;
use netback::VifQueue;
use offload::{Checksum, Features};
use port::{Broken, DropReason, Ingress, Outcome, WINDOW};
use port_testing::{offer, receive, transport_sum, with_body};

use super::guest::{BUFFERS, DATA, PAGE, PAGES, RSP_PROD, RX_RING, Raw};
use super::tampered::Tampered;

/// A guest that posts buffers and takes frames.
pub struct Taker {
    pub raw: Raw,
    queue: VifQueue<Tampered>,
    posted: u32,
    taken: u32,
}

/// The first byte after its buffers. From here on its memory is 0xa5, and must stay so.
pub const BEHIND: usize = (DATA + BUFFERS) as usize * PAGE;

impl Taker {
    pub fn new(machine: &Machine, hypervisor: Tampered, features: Features) -> Self {
        let raw = Raw::new(machine);
        (DATA..PAGES).for_each(|page| raw.write(page, 0, [0xa5u8; PAGE]));
        let mut vif = raw.announce(hypervisor);
        let queue = raw.connect(&mut vif, features);
        let mut taker = Self { raw, queue, posted: 0, taken: 0 };
        taker.post();
        taker
    }

    fn post(&mut self) {
        let end = self.taken.wrapping_add(256);
        self.raw.post(std::mem::replace(&mut self.posted, end)..end);
    }

    /// Takes the frames that have come, and posts new buffers.
    fn take_all(&mut self) -> Vec<Option<Vec<u8>>> {
        let end: u32 = self.raw.read(RX_RING, RSP_PROD);
        let count = end.wrapping_sub(self.taken);
        let arrived = (0..count).map(|_| self.take()).collect();
        self.post();
        arrived
    }

    /// Takes the next response: the bytes of a fragment, or nothing.
    fn take(&mut self) -> Option<Vec<u8>> {
        let response = self.raw.response(self.taken);
        let page = DATA + self.taken % BUFFERS;
        self.taken = self.taken.wrapping_add(1);
        (response.status >= 0).then(|| self.raw.received(page, response))
    }
}

/// One pass of a worker: takes frames, delivers them one by one, answers.
///
/// Checks that each frame arrives with the header that was parsed, even if the guest has changed
/// it since (XSA-155).
pub fn pass(
    sender: &mut VifQueue<Tampered>,
    taker: &mut Taker,
    now: Duration,
) -> Result<(), Broken> {
    receive(&mut sender.tx)?;
    let mut outcomes = [Outcome::Waiting; WINDOW];
    for slot in sender.tx.window().order() {
        let frame = sender.tx.window().frame(*slot);
        let outcome = with_body(&sender.tx, |body| {
            let delivered = offer(&mut taker.queue.rx, body, frame, now);
            delivered.expect("the taker keeps to the rules")
        });
        let arrived = taker.take_all();
        if let ([Some(got)], None, Outcome::Delivered) = (&*arrived, frame.gso, outcome) {
            assert!(got.len() == frame.len as usize);
            assert_eq!(got[..14], frame.header()[..14]);
            // Software changes checksums only.
            if frame.checksum != Checksum::Partial {
                assert_eq!(got[..frame.header().len()], *frame.header());
            } else if !taker.queue.rx.features().csum_v4 {
                // A body is read once, for its checksum and for sending: the sum is right, even if the guest has changed it since.
                assert_eq!(transport_sum(got), 0xffff, "the body was read twice");
            }
        }
        outcomes[usize::from(*slot)] = match outcome {
            Outcome::Waiting => Outcome::Dropped(DropReason::NoRoom),
            other => other,
        };
    }
    sender.tx.finish(&outcomes);
    sender.tx.arm().map(drop)
}
