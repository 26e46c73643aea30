//! Frames that a device still reads after the call that delivered them.

use std::time::{Duration, Instant};

use port::{DropReason, Outcome};

use crate::common::{Host, frame, receive, send, wait_for, wait_until};
use crate::{ALL, Switch, mac, plain, slow};

/// The answers, by frame.
fn by_number(mut answers: Vec<(u32, Outcome)>) -> Vec<(u32, Outcome)> {
    answers.sort_by_key(|(number, _)| *number);
    answers
}

/// All of `count` frames are delivered, and answered once.
fn delivered(count: u32) -> Vec<(u32, Outcome)> {
    (0..count).map(|number| (number, Outcome::Delivered)).collect()
}

#[test]
fn a_frame_is_answered_once_and_not_before_its_device_has_finished() {
    // On one worker, and on two: the device's event is another worker's then.
    for workers in [1, 2] {
        let switch = Switch::new(workers);
        let a = plain(&switch.datapath, 0);
        let d = slow(&switch.datapath, 1);
        let p = plain(&switch.datapath, 2);
        let bytes = |n: u32| frame(d.mac, a.mac, 2000 + n as usize, n);
        for n in 0..6 {
            a.sender.send(bytes(n));
        }
        wait_until("six frames in flight", || d.egress.in_flight() == 6);
        std::thread::sleep(Duration::from_millis(120)); // two retries
        assert_eq!(a.sender.answers(), []);
        assert_eq!(d.egress.in_flight(), 6, "none is offered twice");

        // One that came late ends first.
        assert_eq!(d.egress.finish(4), bytes(4));
        wait_until("its answer", || !a.sender.answers().is_empty());
        assert_eq!(a.sender.answers(), [(4, Outcome::Delivered)]);

        // Frames behind those in flight are delivered.
        let later = frame(p.mac, a.mac, 1000, 6);
        a.sender.send(&later);
        wait_until("a later frame", || p.egress.count() == 1);
        wait_until("its answer", || a.sender.answers().len() == 2);
        assert_eq!(a.sender.answers()[1], (6, Outcome::Delivered));

        for n in [0, 1, 2, 3, 5] {
            assert_eq!(d.egress.finish(0), bytes(n));
        }
        wait_until("all answers", || a.sender.answers().len() == 7);
        std::thread::sleep(Duration::from_millis(120));
        assert_eq!(by_number(a.sender.answers()), delivered(7));
        let counted = d.port.counters().snapshot();
        assert_eq!((counted.egress_frames, counted.dropped_total()), (6, 0));
        assert_eq!(d.egress.cancelled(), []);
    }
}

#[test]
fn a_delivery_that_failed_in_the_device_is_counted_and_answered() {
    let switch = Switch::new(1);
    let (a, d) = (plain(&switch.datapath, 0), slow(&switch.datapath, 1));
    for n in 0..2 {
        a.sender.send(frame(d.mac, a.mac, 500, n));
    }
    wait_until("two frames in flight", || d.egress.in_flight() == 2);
    d.egress.finish_as(0, Outcome::Dropped(DropReason::Stalled));
    d.egress.finish_as(0, Outcome::SourceFault);
    wait_until("the answers", || a.sender.answers().len() == 2);
    let wanted = [(0, Outcome::Dropped(DropReason::Stalled)), (1, Outcome::SourceFault)];
    assert_eq!(by_number(a.sender.answers()), wanted);
    let counted = d.port.counters().snapshot();
    assert_eq!(counted.egress_frames, 0);
    assert_eq!(counted.dropped(DropReason::Stalled), 1);
    assert_eq!(counted.dropped(DropReason::MemoryFault), 1, "as where it is found at once");
}

#[test]
fn a_worker_with_a_window_in_flight_sleeps() {
    // Behind a window of 64 are fewer than the events without work after which a queue is polled each millisecond: each frame may come alone.
    const FRAMES: u32 = 76;
    let switch = Switch::new(1);
    let (a, d) = (plain(&switch.datapath, 0), slow(&switch.datapath, 1));
    for n in 0..FRAMES {
        a.sender.send(frame(d.mac, a.mac, 300, n));
    }
    wait_until("a full window", || d.egress.in_flight() == port::WINDOW);
    std::thread::sleep(Duration::from_millis(50));
    let (started, turns, reaps) = (Instant::now(), a.sender.turns(), d.egress.reaps());
    std::thread::sleep(Duration::from_millis(500));
    let (turns, reaps) = (a.sender.turns() - turns, d.egress.reaps() - reaps);
    // One poll every 50 ms, in case an event was lost.
    let most = u64::try_from(started.elapsed().as_millis()).unwrap() / 50 + 4;
    assert!(turns <= most && reaps <= most, "{turns} turns and {reaps} polls, at most {most}");

    let mut finished = 0;
    wait_until("the end of all", || {
        while d.egress.in_flight() > 0 {
            d.egress.finish(0);
            finished += 1;
        }
        finished == FRAMES
    });
    wait_until("all answers", || a.sender.answers().len() == FRAMES as usize);
    assert_eq!(a.sender.answers(), delivered(FRAMES), "in order, as the device finished them");
}

#[test]
fn the_end_of_a_delivery_wakes_the_worker_that_waits_for_it() {
    // Were the event lost, each frame would take up to 50 ms, until the next poll: 25 in the middle.
    const POLL: Duration = Duration::from_millis(50);
    for workers in [1, 2] {
        let switch = Switch::new(workers);
        let (a, d) = (plain(&switch.datapath, 0), slow(&switch.datapath, 1));
        let (mut sent, mut ended) = (Vec::new(), Vec::new());
        for n in 0..21 {
            let began = Instant::now();
            a.sender.send(frame(d.mac, a.mac, 300, n));
            spin_until(|| d.egress.in_flight() == 1);
            sent.push(began.elapsed());
            std::thread::sleep(Duration::from_millis(1));
            let finished = Instant::now();
            d.egress.finish(0);
            spin_until(|| a.sender.answers().len() > n as usize);
            ended.push(finished.elapsed());
        }
        // A frame that is sent wakes a worker too, with as much other work on the machine.
        let [sent, ended] = [sent, ended].map(|mut times| {
            times.sort();
            times[times.len() / 2]
        });
        assert!(ended < POLL / 4 + 2 * sent, "{ended:?}, and {sent:?} for a frame that is sent");
    }
}

/// Waits without sleep, which would be a part of what is measured.
fn spin_until(is_done: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not come");
        std::thread::yield_now();
    }
}

#[test]
fn a_busy_device_gets_every_byte_and_answers_every_frame_once() {
    const FRAMES: u32 = 2000;
    let switch = Switch::new(2);
    let (a, d) = (plain(&switch.datapath, 0), slow(&switch.datapath, 1));
    let b = plain(&switch.datapath, 2);
    let len = |n: u32| 60 + (n as usize * 37) % 9000;
    std::thread::scope(|scope| {
        for (from, to) in [(&a, &d), (&b, &d)] {
            scope.spawn(move || {
                (0..FRAMES).for_each(|n| from.sender.send(frame(to.mac, from.mac, len(n), n)));
            });
        }
        scope.spawn(|| {
            let (mut ended, mut choice) = (0, 1usize);
            while ended < 2 * FRAMES {
                let count = d.egress.in_flight();
                if count == 0 {
                    std::thread::yield_now();
                    continue;
                }
                // Any of them, in no order.
                choice = choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let bytes = d.egress.finish((choice >> 33) % count);
                let n = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
                let from = if bytes[6..12] == a.mac { a.mac } else { b.mac };
                assert!(bytes == frame(d.mac, from, len(n), n), "frame {n} differs");
                ended += 1;
            }
        });
    });
    for port in [&a.sender, &b.sender] {
        wait_until("all answers", || port.answers().len() >= FRAMES as usize);
        assert_eq!(by_number(port.answers()), delivered(FRAMES));
    }
}

#[test]
fn a_guest_gets_its_pages_back_in_order() {
    let host = Host::new(1, 1);
    let mut guest = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let own = [2, 0, 0, 0, 0, 0xa];
    let d = slow(&host.datapath, 1);
    let queue = &mut guest.queues[0];
    for n in 0..4 {
        assert!(send(queue, &frame(d.mac, own, 3000, n)));
    }
    wait_until("four frames in flight", || d.egress.in_flight() == 4);
    for n in [3u32, 2, 1] {
        assert_eq!(d.egress.finish(n as usize), frame(d.mac, own, 3000, n));
    }
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(queue.tx.reclaim().unwrap(), 0, "answers come in the order of the requests");
    assert_eq!(d.egress.finish(0), frame(d.mac, own, 3000, 0));
    let mut answers = 0;
    wait_until("all answers", || {
        answers += queue.tx.reclaim().unwrap();
        answers == 4
    });
    assert_eq!(queue.tx.take_errors(), 0);
    // The other way, past a device that still reads.
    assert!(send(queue, &frame(d.mac, own, 3000, 9)));
    wait_until("a frame in flight", || d.egress.in_flight() == 1);
    d.sender.send(frame(own, mac(1), 3000, 5));
    assert!(wait_for("a frame to the guest", || receive(queue)) == frame(own, mac(1), 3000, 5));
    d.egress.finish(0);
}

#[test]
fn a_flood_is_answered_once_after_the_last_delivery() {
    let switch = Switch::new(1);
    let (a, p) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
    let (d, e) = (slow(&switch.datapath, 2), slow(&switch.datapath, 3));
    let bytes = frame(ALL, a.mac, 4000, 0);
    a.sender.send(&bytes);
    wait_until("both devices", || d.egress.in_flight() == 1 && e.egress.in_flight() == 1);
    wait_until("the port that takes it at once", || p.egress.take() == [bytes.clone()]);
    d.egress.finish(0);
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(a.sender.answers(), []);
    assert_eq!(e.egress.finish(0), bytes);
    wait_until("the answer", || !a.sender.answers().is_empty());
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(a.sender.answers(), delivered(1));
    assert_eq!((p.egress.count(), d.egress.in_flight(), e.egress.in_flight()), (0, 0, 0));
    for port in [&p.port, &d.port, &e.port] {
        assert_eq!(port.counters().snapshot().egress_frames, 1);
    }

    // A fault that one device finds is the sender's, whatever the others say.
    a.sender.send(frame(ALL, a.mac, 4000, 1));
    wait_until("both devices", || d.egress.in_flight() == 1 && e.egress.in_flight() == 1);
    d.egress.finish_as(0, Outcome::SourceFault);
    e.egress.finish(0);
    wait_until("the answer", || a.sender.answers().len() == 2);
    assert_eq!(a.sender.answers()[1], (1, Outcome::SourceFault));
}
