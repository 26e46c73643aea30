//! Back-ends that write to their rings what cannot be: the queue breaks with a reason, or the frame counts as malformed.

use std::time::Duration;

use port::{Broken, Outcome, Queue};
use port_testing::{pass, tcp};
use proptest::prelude::*;
use vhost_user::shared::bit;
use virtqueue::Layout;

use crate::connect;
use crate::connect::{Out, sink};
use crate::fake::Fake;

const LAYOUTS: [Layout; 2] = [Layout::Split, Layout::Packed];
/// Bytes of the header before a frame, and of a buffer.
const HEADER: usize = 12;
const BUFFER: u32 = 65 * 64;

/// Takes what the back-end has returned: how many were malformed, and the frames.
fn receive(queue: &mut Queue) -> Result<(u64, Vec<Out>), Broken> {
    let (mut egress, seen) = sink();
    let (received, _) = pass(&mut *queue.ingress, &mut egress, Duration::ZERO)?;
    Ok((received.malformed, std::mem::take(&mut seen.lock().unwrap())))
}

/// Writes a frame in this many buffers to the first one.
fn write(fake: &Fake, buffers: u16, frame: &[u8]) -> u32 {
    let at = fake.first_buffer(0);
    fake.memory.zero(at, HEADER).unwrap();
    fake.memory.write(at + 10, buffers).unwrap();
    fake.memory.copy_in(at + HEADER, frame).unwrap();
    u32::try_from(HEADER + frame.len()).unwrap()
}

/// What cannot come back is tested in `virtqueue/tests/rings/burst.rs`.
#[test]
fn a_buffer_that_cannot_come_back_breaks_the_queue() {
    for layout in LAYOUTS {
        let (_session, mut queue, fake) = connect::honest(layout);
        fake.give_back(0, 0, 0, BUFFER + 1);
        let broken = receive(&mut queue).unwrap_err().to_string();
        let wanted = "4161 bytes were written to a buffer of 4160";
        assert!(broken.contains(wanted), "{layout:?}: {broken}");
    }
}

#[test]
fn a_frame_in_no_buffers_or_too_many_breaks_the_queue() {
    for layout in LAYOUTS {
        for buffers in [0, 19, 0xffff] {
            let (_session, mut queue, fake) = connect::honest(layout);
            let len = write(&fake, buffers, &tcp(100));
            fake.give_back(0, 0, 0, len);
            let broken = receive(&mut queue).unwrap_err().to_string();
            assert!(broken.contains("buffers"), "{broken}");
        }
    }
}

#[test]
fn a_frame_that_cannot_be_one_is_malformed_and_its_buffers_are_offered_again() {
    for layout in LAYOUTS {
        let (_session, mut queue, fake) = connect::honest(layout);
        for (n, written) in [(0, 0), (1, 5), (2, 12), (3, 12 + 13)] {
            let at = fake.first_buffer(0) + usize::from(n) * BUFFER as usize;
            fake.memory.write(at + 10, 1u16).unwrap();
            fake.give_back(0, n, n.into(), written);
        }
        assert_eq!(receive(&mut queue).unwrap(), (4, Vec::new()));
        // A first buffer without the whole header, and a frame that is longer than any.
        let (_session, mut queue, fake) = connect::honest(layout);
        write(&fake, 2, &tcp(100));
        fake.give_back(0, 0, 0, 30);
        fake.give_back(0, 1, 1, 100);
        assert_eq!(receive(&mut queue).unwrap(), (1, Vec::new()));
        let (_session, mut queue, fake) = connect::honest(layout);
        write(&fake, 18, &tcp(100));
        (0..18).for_each(|n| fake.give_back(0, n, n.into(), BUFFER));
        assert_eq!(receive(&mut queue).unwrap(), (1, Vec::new()));
        // A TSO frame that claims to be longer than it is.
        let (_session, mut queue, fake) = connect::honest(layout);
        let mut frame = tcp(100);
        frame[16..18].copy_from_slice(&60_000u16.to_be_bytes());
        let len = write(&fake, 1, &frame);
        let at = fake.first_buffer(0);
        for (offset, value) in [(0, 0x0101u16), (2, 54), (4, 1448), (6, 34), (8, 16)] {
            fake.memory.write(at + offset, value).unwrap();
        }
        fake.give_back(0, 0, 0, len);
        assert_eq!(receive(&mut queue).unwrap(), (1, Vec::new()));
    }
}

#[test]
fn a_frame_of_which_a_part_is_missing_waits_and_holds_up_nobody() {
    for layout in LAYOUTS {
        let (_session, mut queue, fake) = connect::honest(layout);
        let bytes = tcp(5000);
        let (first, rest) = bytes.split_at(BUFFER as usize - HEADER);
        write(&fake, 2, first);
        fake.give_back(0, 0, 0, BUFFER);
        assert_eq!(receive(&mut queue).unwrap(), (0, Vec::new()));
        assert_eq!(queue.ingress.arm().unwrap(), port::Armed::Asleep);
        let (source, mut ingress) = port_testing::Sender::new();
        source.send(tcp(100));
        let sent = pass(&mut *ingress, &mut *queue.egress, Duration::ZERO).unwrap();
        assert_eq!(sent.1, [Outcome::Delivered]);
        fake.memory.copy_in(fake.first_buffer(0) + BUFFER as usize, rest).unwrap();
        fake.give_back(0, 1, 1, u32::try_from(rest.len()).unwrap());
        let (malformed, frames) = receive(&mut queue).unwrap();
        assert_eq!((malformed, frames.len()), (0, 1));
        assert_eq!(frames[0].bytes, bytes);
    }
}

#[test]
fn a_sender_whose_buffers_come_back_wrongly_breaks() {
    for layout in LAYOUTS {
        for id in [1u32, 0, 0xffff] {
            let (_session, mut queue, fake) = connect::honest(layout);
            let (source, mut ingress) = port_testing::Sender::new();
            // The first one comes back, and then `id`, which is out if it is the second one.
            (0..2).for_each(|_| source.send(tcp(100)));
            pass(&mut *ingress, &mut *queue.egress, Duration::ZERO).unwrap();
            fake.give_back(1, 0, 0, 0);
            fake.give_back(1, 1, id, 0);
            let broken = (0..20).find_map(|_| {
                (0..32).for_each(|_| source.send(tcp(100)));
                pass(&mut *ingress, &mut *queue.egress, Duration::ZERO).err()
            });
            let is_out = id == 1;
            assert_eq!(broken.is_none(), is_out, "{layout:?} {id}: {broken:?}");
        }
    }
}

#[test]
fn a_call_without_a_frame_costs_a_poll() {
    let (_session, mut queue, fake) = connect::honest(Layout::Split);
    for _ in 0..3 {
        fake.calls.iter().for_each(|call| {
            rustix::io::write(call, &u64::from(u32::MAX).to_ne_bytes()).unwrap();
        });
        assert_eq!(receive(&mut queue).unwrap(), (0, Vec::new()));
        assert_eq!(queue.ingress.arm().unwrap(), port::Armed::Asleep);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a back-end writes to the memory it shares, between any two steps: no panic, no frame longer than it may be.
    #[test]
    fn a_back_end_that_writes_anything_breaks_at_most_its_own_queue(
        packed in any::<bool>(),
        // Buffers in order, also several by one entry; and frames in one buffer each.
        (in_order, whole) in any::<(bool, bool)>(),
        steps in prop::collection::vec((0usize..8, any::<u16>(), any::<u16>()), 1..120),
    ) {
        let layout = if packed { Layout::Packed } else { Layout::Split };
        let mut features = connect::features(layout) | if in_order { bit::IN_ORDER } else { 0 };
        if whole {
            features &= !bit::MRG_RXBUF;
        }
        let (_session, mut queue, fake) = connect::with(features);
        let (source, mut ingress) = port_testing::Sender::new();
        let first = fake.first_buffer(0);
        for (what, at, word) in steps {
            let ring = what % 2;
            match what / 2 {
                0 => fake.give_back(ring, at % 16, u32::from(word % 16), u32::from(word % 4200)),
                1 => fake.memory.write(fake.rings[ring][1] + 2 * usize::from(at % 64), word).unwrap(),
                2 => fake.memory.write(fake.rings[ring][0] + 2 * usize::from(at % 256), word).unwrap(),
                _ => fake.memory.write(first + usize::from(at % 64) * 2, word).unwrap(),
            }
            source.send(tcp(usize::from(word % 1400)));
            let Ok((_, outcomes)) = pass(&mut *ingress, &mut *queue.egress, Duration::ZERO) else { break };
            prop_assert_eq!(outcomes.len(), 1);
            let Ok((_, frames)) = receive(&mut queue) else { break };
            prop_assert!(frames.iter().all(|frame| frame.bytes.len() <= port::FRAME_MAX));
            if queue.ingress.arm().is_err() {
                break;
            }
        }
    }
}
