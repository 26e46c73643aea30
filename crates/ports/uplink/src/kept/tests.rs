//! Random frames that are kept, copied late or never, against a list of what they held.

use port::{Fragment, Window};
use proptest::prelude::*;

use super::*;

const SIZE: usize = 2048;
const SPARE: usize = 5;
const HEADER: u8 = 128;
const _: () = assert!(HEADER as usize == HEADER_MAX);

/// A queue that reads frames, and receivers that keep some.
struct Queue {
    whole: Arc<Region>,
    buffers: KeptBuffers,
    window: Window,
    /// What is kept, and the bytes that it must have until it is dropped.
    kept: Vec<(KeptFrame, Vec<u8>)>,
    read: u8,
}

impl Queue {
    fn new() -> Self {
        let whole = Arc::new(Region::anonymous((WINDOW + SPARE) * SIZE).unwrap());
        let buffers = KeptBuffers::new(&whole, SIZE).unwrap();
        Self { whole, buffers, window: Window::new(), kept: Vec::new(), read: 0 }
    }

    /// Reads a frame of `body` bytes into a free slot, as an ingress does.
    fn read(&mut self, body: u16) -> bool {
        self.read = self.read.wrapping_add(1);
        let Some((slot, frame)) = self.window.push() else { return false };
        self.buffers.renew(slot);
        let at = self.buffers.current(slot) * SIZE + HEADROOM;
        self.whole.copy_in(at, &vec![self.read; body.into()]).unwrap();
        frame.bytes.fill(self.read ^ 0xff);
        frame.header_len = HEADER;
        frame.len = u32::from(body) + u32::from(HEADER);
        frame.fragments.clear();
        frame.fragments.push(Fragment::in_region(0, at as u64, body));
        true
    }

    /// A receiver keeps the frame in hand at place `n` of the order.
    fn keep(&mut self, n: usize) -> bool {
        let order = self.window.order();
        let Some(slot) = order.get(n % order.len().max(1)) else { return false };
        let frame = self.window.frame(*slot);
        let Some(kept) = self.buffers.keep(frame) else { return false };
        let fill = frame.bytes[0] ^ 0xff;
        let body = frame.len as usize - HEADER_MAX;
        let bytes = [vec![fill ^ 0xff; HEADER_MAX], vec![fill; body]].concat();
        self.kept.push((kept, bytes));
        true
    }

    fn check(&self) {
        for (KeptFrame { memory, offset }, bytes) in &self.kept {
            let mut got = vec![0; bytes.len()];
            memory.copy_out(*offset, &mut got).unwrap();
            assert!(got == *bytes, "a kept frame was overwritten");
        }
    }
}

proptest! {
    #[test]
    fn a_kept_frame_stays_as_it_was(steps in prop::collection::vec((0..5u8, 1..1500u16), 1..400)) {
        let mut queue = Queue::new();
        for (step, n) in steps {
            match step {
                0 | 1 => {
                    queue.read(n);
                }
                2 => {
                    queue.keep(n.into());
                }
                3 if !queue.kept.is_empty() => {
                    queue.kept.swap_remove(usize::from(n) % queue.kept.len());
                }
                _ => queue.window.retain(|_, frame| frame.len % 3 == u32::from(n) % 3),
            }
            queue.check();
        }
    }
}

#[test]
fn a_receiver_that_gives_nothing_back_stops_no_reads() {
    let mut queue = Queue::new();
    // Each frame is kept for ever by somebody, while there are spare buffers.
    for n in 0..10 * WINDOW {
        assert!(queue.read(1000), "frame {n}");
        assert_eq!(queue.keep(0), n < SPARE, "frame {n}");
        queue.window.retain(|_, _| false);
        queue.check();
    }
    // One that comes back is used again.
    queue.kept.pop();
    assert!(queue.read(1000));
    let kept = (0..3).any(|_| queue.keep(0));
    assert!(kept);
}

#[test]
fn several_receivers_keep_one_frame_in_one_buffer() {
    let mut queue = Queue::new();
    assert!(queue.read(700));
    for _ in 0..3 * SPARE {
        assert!(queue.keep(0));
    }
    queue.window.retain(|_, _| false);
    queue.read(700);
    queue.check();
    assert_eq!(queue.buffers.state.borrow().free.len(), SPARE - 1);
}
