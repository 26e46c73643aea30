//! A NIC that is slower than who sends by it.

use std::time::Duration;

use offload::Gso;
use port::{Body, DropReason, Egress, Frame, Offer, Outcome, WINDOW};
use port_testing::{offer, segments, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::egress::{Sender, tso};
use super::super::network::{LIMIT, in_own_network, ip};
use super::super::platform;
use super::{Queue, bytes, take_over, whole, wire};

/// Buffers of a queue for frames that go out.
const TX_BUFFERS: usize = 512;
/// Segments of one call.
const SEGMENTS: u16 = 128;

/// A NIC that sends nothing makes frames wait, and then drops them; when it goes on, so do they.
#[test]
fn frames_wait_for_a_nic_that_is_down_but_not_for_ever() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let queue = &mut queues[0];
        let room = queue.egress.room_event().unwrap();
        let is_rung = || {
            let mut fds = [PollFd::new(&room, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        ip("link set nic0 down");
        let sent = bytes(1000, 1);
        let sender = Sender::new(&platform(), &sent);
        let frame = whole(&sender, &sent);
        let body = Body::Regions(&sender.regions);
        for _ in 0..TX_BUFFERS / WINDOW {
            assert_eq!(queue.offer(body, &[&frame; WINDOW]), [Outcome::Delivered; WINDOW]);
        }
        assert_eq!(queue.offer(body, &[&frame; 2]), [Outcome::Waiting; 2]);
        assert!(!queue.egress.is_stalled());
        // Checks are fewer and fewer.
        let ms = Duration::from_millis;
        let mut due = queue.egress.flush(ms(1), false).unwrap();
        for _ in 0..20 {
            let next = queue.egress.flush(due, true).unwrap();
            assert!(next > due && next <= due + ms(50));
            due = next;
        }
        assert!(!is_rung());
        let late = offer(&mut queue.egress, body, &frame, ms(500));
        assert_eq!(late, Ok(Outcome::Dropped(DropReason::Stalled)));
        assert!(queue.egress.is_stalled());
        ip("link set nic0 up");
        let mut now = ms(600);
        while let Some(due) = queue.egress.flush(now, true) {
            assert!(now < LIMIT, "the NIC takes no frames");
            now = due;
            // The kernel completes them on a thread of its own.
            std::thread::sleep(ms(1));
        }
        assert!(is_rung() && !queue.egress.is_stalled());
        outside.take(TX_BUFFERS);
        for _ in 0..2 * TX_BUFFERS / WINDOW {
            assert_eq!(queue.offer(body, &[&frame; WINDOW]), [Outcome::Delivered; WINDOW]);
            outside.take(WINDOW);
        }
        assert!(!queue.egress.is_stalled());
    });
}

/// Has `count` frames fill the buffers of a NIC that is down.
fn fill(queue: &mut Queue, body: Body<'_>, frame: &Frame, mut count: usize) {
    while count > 0 {
        let now = count.min(WINDOW);
        assert_eq!(queue.offer(body, &vec![frame; now]), vec![Outcome::Delivered; now]);
        count -= now;
    }
}

/// However often it is asked for frames and notifications, it checks a full queue when that is due. What it drops costs no system
/// call.
#[test]
fn a_full_queue_is_checked_by_the_time() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let queue = &mut queues[0];
        let sent = bytes(1000, 1);
        let sender = Sender::new(&platform(), &sent);
        let (frame, body) = (whole(&sender, &sent), Body::Regions(&sender.regions));
        ip("link set nic0 down");
        fill(queue, body, &frame, TX_BUFFERS);
        assert_eq!(queue.offer(body, &[&frame]), [Outcome::Waiting]);
        let due = queue.egress.flush(Duration::ZERO, false).unwrap();
        ip("link set nic0 up");
        let before = due - Duration::from_micros(1);
        for _ in 0..20 {
            assert_eq!(queue.egress.flush(before, true), Some(due));
            assert_eq!(offer(&mut queue.egress, body, &frame, before), Ok(Outcome::Waiting));
        }
        assert!(outside.is_empty());
        queue.egress.flush(due, false);
        assert_eq!(outside.take(TX_BUFFERS).len(), TX_BUFFERS);
        // With buffers left, a frame that is dropped does not send those before it.
        queue.egress.flush(due + Duration::from_secs(1), false);
        ip("link set nic0 down");
        fill(queue, body, &frame, 1);
        ip("link set nic0 up");
        assert_eq!(queue.send(&bytes(1515, 0)), Outcome::Dropped(DropReason::TooLarge));
        assert!(outside.is_empty());
        fill(queue, body, &frame, 1);
        assert_eq!(outside.take(2).len(), 2);
    });
}

/// A shortage of buffers ends when those that were under way have come back. The next one is another: its frames wait.
#[test]
fn a_shortage_ends_when_the_nic_has_sent_all() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let queue = &mut queues[0];
        let (single, many) = (bytes(1000, 1), tcp(10_000));
        let sender = Sender::new(&platform(), &single);
        let (frame, body) = (whole(&sender, &single), Body::Regions(&sender.regions));
        let of_many = Sender::new(&platform(), &many);
        // 100 segments, and 12 buffers are left.
        let large = of_many.mapped(&many, Some(Gso { size: 100, ..tso() }));
        let mut now = Duration::ZERO;
        for _ in 0..3 {
            ip("link set nic0 down");
            fill(queue, body, &frame, TX_BUFFERS - 12);
            for wait in [0, 190] {
                let now = now + Duration::from_millis(wait);
                let body = Body::Regions(&of_many.regions);
                let outcome = offer(&mut queue.egress, body, &large, now);
                assert_eq!(outcome, Ok(Outcome::Waiting), "{now:?}");
            }
            ip("link set nic0 up");
            now += Duration::from_secs(1);
            while queue.egress.flush(now, true).is_some() {
                now += Duration::from_millis(1);
                assert!(now.subsec_millis() < 900, "the NIC takes no frames");
                std::thread::sleep(Duration::from_millis(1));
            }
            outside.take(TX_BUFFERS - 12);
        }
    });
}

/// A call makes a bounded number of segments, and the next one goes on behind them.
#[test]
fn a_frame_of_many_segments_is_sent_in_parts() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let queue = &mut queues[0];
        let bytes = tcp(12_000);
        let sender = Sender::new(&platform(), &bytes);
        let gso = |size| Gso { size, ..tso() };
        let body = Body::Regions(&sender.regions);
        // 150 segments, 30, 30.
        let [large, small] = [80, 400].map(|size| sender.mapped(&bytes, Some(gso(size))));
        let partial = |segments| Outcome::Partial { segments };
        let outcomes = queue.offer(body, &[&large, &small]);
        assert_eq!(outcomes, [partial(SEGMENTS), Outcome::Waiting]);
        let expected = segments(&bytes, gso(80));
        assert_eq!(outside.take(SEGMENTS.into()), expected[..SEGMENTS.into()]);
        // 22, 30, 30, 30, and no room for another 30.
        let mut offers = [&large, &small, &small, &small, &small, &small].map(Offer::new);
        offers[0].sent = SEGMENTS;
        queue.egress.deliver(body, &mut offers, Duration::ZERO).unwrap();
        let outcomes = offers.map(|offer| offer.outcome);
        assert_eq!(outcomes[..4], [Outcome::Delivered; 4]);
        assert_eq!(outcomes[4..], [partial(0), Outcome::Waiting]);
        let small = segments(&bytes, gso(400));
        let expected = [&expected[SEGMENTS.into()..], &small, &small, &small].concat();
        assert_eq!(outside.take(expected.len()), expected);
        assert_eq!(queue.egress.flush(Duration::ZERO, false), None, "nothing waits for room");
    });
}
