//! The histograms of a port: frames per batch, and how long batches are in the daemon.

use std::time::{Duration, Instant};

use datapath::{Distribution, PortMemory};
use port::{Egress, Outcome};
use port_testing::{FakeEgress, Sender};

use crate::common::{frame, wait_until};
use crate::{Receiver, Switch, attach, lockstep, plain, plug, slow};

/// How long a frame waits in these tests.
const WAIT: Duration = Duration::from_millis(20);

/// The buckets with values, by their largest value.
fn filled(distribution: &Distribution) -> Vec<(u64, u64)> {
    distribution.buckets.iter().copied().filter(|(_, count)| *count > 0).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

#[test]
fn a_batch_is_counted_where_it_comes_from_and_where_it_goes() {
    let (datapath, mut worker) = lockstep();
    let red = attach(&datapath, 0, PortMemory::default(), Sender::new(), Receiver::new());
    let blue = attach(&datapath, 1, PortMemory::default(), Sender::new(), Receiver::new());
    let green = attach(&datapath, 2, PortMemory::default(), Sender::new(), Receiver::new());
    assert!(worker.run());
    for burst in [1, 10, 32] {
        (0..burst).for_each(|n| red.sender.send(frame(blue.mac, red.mac, 100, n)));
        red.sender.send(frame(green.mac, red.mac, 100, 0));
        assert!(worker.run());
    }
    let sent = red.port.batches();
    assert_eq!(filled(&sent.ingress_frames), [(2, 1), (16, 1), (64, 1)]);
    assert_eq!((sent.ingress_frames.sum, sent.egress_frames.count()), (2 + 11 + 33, 0));
    assert_eq!(sent.nanoseconds.count(), 3);
    let received = blue.port.batches();
    assert_eq!(filled(&received.egress_frames), [(1, 1), (16, 1), (32, 1)]);
    assert_eq!((received.egress_frames.sum, received.nanoseconds.count()), (43, 0));
    assert_eq!(filled(&green.port.batches().egress_frames), [(1, 3)]);
}

#[test]
fn a_workers_time_is_that_of_the_sender() {
    let (red_work, blue_work) = (Duration::from_millis(2), Duration::from_millis(1));
    let begin = Instant::now();
    let (datapath, mut worker) = lockstep();
    let toiling = |time| -> ((), Box<dyn Egress>) {
        let egress = FakeEgress::new(move |_, _| {
            std::thread::sleep(time);
            Ok(Outcome::Delivered)
        });
        ((), Box::new(egress))
    };
    // Frames from red cost what blue's side takes, and the other way round.
    let red = attach(&datapath, 0, PortMemory::default(), Sender::new(), toiling(blue_work));
    let blue = attach(&datapath, 1, PortMemory::default(), Sender::new(), toiling(red_work));
    let idle = attach(&datapath, 2, PortMemory::default(), Sender::new(), Receiver::new());
    for n in 0..5 {
        red.sender.send(frame(blue.mac, red.mac, 100, n));
        blue.sender.send(frame(red.mac, blue.mac, 100, n));
        worker.run();
    }
    let all = nanoseconds(begin.elapsed());
    let [of_red, of_blue, of_idle] =
        [&red.port, &blue.port, &idle.port].map(|port| port.batches().worker_nanoseconds);
    assert!(of_red >= 5 * nanoseconds(red_work), "{of_red}");
    assert!(of_blue >= 5 * nanoseconds(blue_work), "{of_blue}");
    assert!(of_red + of_blue <= all, "{of_red} {of_blue} of {all}");
    assert_eq!(of_idle, 0);
}

#[test]
fn waiting_for_room_is_time_in_the_daemon() {
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let blue = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(1));
    let begin = Instant::now();
    red.sender.send(frame(blue.mac, red.mac, 100, 0));
    wait_until("the first batch", || red.port.batches().nanoseconds.count() == 1);
    let first = red.port.batches().nanoseconds.sum;
    red.sender.send(frame(blue.mac, red.mac, 100, 1));
    wait_until("the second batch", || red.port.batches().ingress_frames.count() == 2);
    std::thread::sleep(WAIT);
    assert_eq!((blue.egress.count(), red.port.batches().nanoseconds.count()), (1, 1));
    blue.egress.make_room(1);
    wait_until("its end", || red.port.batches().nanoseconds.count() == 2);
    let all = nanoseconds(begin.elapsed());
    let times = red.port.batches().nanoseconds;
    assert!((first + nanoseconds(WAIT)..=all).contains(&times.sum), "{first} {times:?} {all}");
    assert_eq!(filled(&blue.port.batches().egress_frames), [(1, 2)]);
}

#[test]
fn waiting_for_a_device_is_time_in_the_daemon() {
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let blue = slow(&switch.datapath, 1);
    let busy = plain(&switch.datapath, 2);
    red.sender.send(frame(blue.mac, red.mac, 100, 0));
    wait_until("the device", || blue.egress.in_flight() == 1);
    // The batch is blue's as soon as the device has it.
    wait_until("blue's batch", || blue.port.batches().egress_frames.count() == 1);
    std::thread::sleep(WAIT);
    assert_eq!(red.port.batches().nanoseconds.count(), 0);
    // Another queue has work, so that the worker reads the clock after each turn.
    (0..1000).for_each(|n| busy.sender.send(frame(red.mac, busy.mac, 100, n)));
    blue.egress.finish(0);
    wait_until("the end", || red.port.batches().nanoseconds.count() == 1);
    assert!(red.port.batches().nanoseconds.sum >= nanoseconds(WAIT));
    wait_until("busy's frames", || busy.sender.answers().len() == 1000);
    wait_until("the end of busy's batches", || {
        let counts = busy.port.batches();
        counts.nanoseconds.count() == counts.ingress_frames.count()
    });
}

/// Each worker has its own counters: what two count at a time is not lost.
#[test]
fn two_workers_count_at_a_time() {
    const FRAMES: u32 = 20_000;
    let switch = Switch::new(2);
    let [red, green] = [0, 1].map(|n| plain(&switch.datapath, n));
    let blue = plug(&switch.datapath, 2, Sender::new(), accepting());
    std::thread::scope(|scope| {
        for from in [&red, &green] {
            scope.spawn(|| {
                (0..FRAMES).for_each(|n| from.sender.send(frame(blue.mac, from.mac, 60, n)));
            });
        }
    });
    for from in [&red, &green] {
        wait_until("all frames", || from.sender.answers().len() == FRAMES as usize);
        let counts = from.port.batches();
        assert_eq!(counts.ingress_frames.sum, u64::from(FRAMES));
    }
    assert_eq!(blue.port.batches().egress_frames.sum, 2 * u64::from(FRAMES));
}

fn accepting() -> ((), Box<dyn Egress>) {
    ((), Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered))))
}

/// A guest's frames wait in the device one by one: its batches are all counted in the end, in any order.
#[test]
fn a_window_of_batches_that_wait_ends_like_any_other() {
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let blue = slow(&switch.datapath, 1);
    for n in 0..64 {
        red.sender.send(frame(blue.mac, red.mac, 100, n));
        wait_until("the device", || blue.egress.in_flight() == n as usize + 1);
    }
    (64..200).for_each(|n| red.sender.send(frame(blue.mac, red.mac, 100, n)));
    wait_until("all frames", || {
        match blue.egress.in_flight() {
            0 => {}
            frames => drop(blue.egress.finish(frames / 2)),
        }
        red.sender.answers().len() == 200
    });
    wait_until("the end of all batches", || {
        let counts = red.port.batches();
        counts.nanoseconds.count() == counts.ingress_frames.count()
    });
    assert_eq!(red.port.batches().ingress_frames.sum, 200);
}
