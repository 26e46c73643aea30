//! Ports that go away while frames are in flight.

use std::sync::mpsc;
use std::time::Duration;

use datapath::Datapath;
use port::{DropReason, Outcome};
use switch::PortId;

use crate::common::{Host, frame, send, wait_until};
use crate::{ALL, Switch, plain, slow};

const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 0xa];

/// Detaches a port, which must not wait for any device.
fn detach(datapath: &Datapath, port: PortId) {
    std::thread::scope(|scope| {
        let (done, finished) = mpsc::channel();
        scope.spawn(move || {
            datapath.detach(port);
            done.send(()).unwrap();
        });
        // Many seconds, because this aborts all tests: a machine that is busy for a while must not do that.
        if finished.recv_timeout(Duration::from_secs(20)).is_err() {
            eprintln!("detaching a port does not end");
            std::process::abort();
        }
    });
}

#[test]
fn a_sender_that_goes_leaves_its_pages_to_the_device() {
    let host = Host::new(1, 1);
    let mut guest = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let (d, p) = (slow(&host.datapath, 1), plain(&host.datapath, 2));
    for n in 0..3 {
        assert!(send(&mut guest.queues[0], &frame(d.mac, GUEST, 9000, n)));
    }
    wait_until("three frames in flight", || d.egress.in_flight() == 3);
    let job = d.egress.take(1);
    assert!(!job.is_revoked());
    detach(&host.datapath, guest.port.id());
    let mut cancelled = d.egress.cancelled();
    cancelled.sort();
    let tickets = [0, 1, 2].map(port::Ticket);
    assert_eq!(cancelled, tickets, "each is cancelled once");

    // The guest ends. The device reads on, and may check whether it should.
    host.machine.destroy(guest.domain.id());
    drop(guest);
    assert!(job.is_revoked());
    assert_eq!(job.read(), frame(d.mac, GUEST, 9000, 1));
    drop(job);
    assert_eq!(d.egress.finish(0), frame(d.mac, GUEST, 9000, 0));
    assert_eq!(d.egress.finish(0), frame(d.mac, GUEST, 9000, 2));
    // The port it was sent to carries frames as before.
    p.sender.send(frame(d.mac, p.mac, 100, 7));
    wait_until("a frame from another port", || d.egress.in_flight() == 1);
    d.egress.finish(0);
    wait_until("its answer", || p.sender.answers() == [(0, Outcome::Delivered)]);
}

#[test]
fn a_sender_that_breaks_leaves_its_pages_to_the_device() {
    let switch = Switch::new(1);
    let (a, d) = (plain(&switch.datapath, 0), slow(&switch.datapath, 1));
    a.sender.send(frame(d.mac, a.mac, 5000, 0));
    wait_until("a frame in flight", || d.egress.in_flight() == 1);
    a.sender.break_down();
    wait_until("the end of the delivery", || d.egress.cancelled().len() == 1);
    assert_eq!(d.egress.finish(0), frame(d.mac, a.mac, 5000, 0));
    detach(&switch.datapath, a.port.id());
    assert_eq!(d.egress.cancelled().len(), 1);
}

#[test]
fn a_device_that_goes_gives_senders_their_frames_back() {
    for workers in [1, 2] {
        let host = Host::new(workers, 1);
        let mut guest = host.guest("02:00:00:00:00:0a", netfront::Config::default());
        let (a, d) = (plain(&host.datapath, 0), slow(&host.datapath, 1));
        for n in 0..3 {
            a.sender.send(frame(d.mac, a.mac, 3000, n));
            assert!(send(&mut guest.queues[0], &frame(d.mac, GUEST, 3000, n)));
        }
        wait_until("six frames in flight", || d.egress.in_flight() == 6);
        detach(&host.datapath, d.port.id());
        wait_until("the answers", || a.sender.answers().len() == 3);
        let gone = Outcome::Dropped(DropReason::PortGone);
        assert_eq!(a.sender.answers(), [0, 1, 2].map(|n| (n, gone)));
        let mut answers = 0;
        wait_until("the guest's answers", || {
            answers += guest.queues[0].tx.reclaim().unwrap();
            answers == 3
        });
        assert_eq!(guest.queues[0].tx.take_errors(), 3);
        assert_eq!(d.port.counters().snapshot().dropped(DropReason::PortGone), 6);
        // Its number goes to another port, which has nothing of it.
        let next = slow(&host.datapath, 1);
        assert_eq!(next.port.id(), d.port.id());
        a.sender.send(frame(next.mac, a.mac, 3000, 3));
        wait_until("a frame to the next port", || next.egress.in_flight() == 1);
        next.egress.finish(0);
        wait_until("its answer", || a.sender.answers().last() == Some(&(3, Outcome::Delivered)));
        assert_eq!(next.egress.cancelled(), []);
    }
}

#[test]
fn a_flood_outlives_one_of_its_receivers() {
    let switch = Switch::new(1);
    let (a, d, e) =
        (plain(&switch.datapath, 0), slow(&switch.datapath, 1), slow(&switch.datapath, 2));
    a.sender.send(frame(ALL, a.mac, 3000, 0));
    wait_until("both devices", || d.egress.in_flight() == 1 && e.egress.in_flight() == 1);
    detach(&switch.datapath, d.port.id());
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(a.sender.answers(), []);
    assert_eq!(e.egress.finish(0), frame(ALL, a.mac, 3000, 0));
    wait_until("the answer", || a.sender.answers() == [(0, Outcome::Delivered)]);
}

#[test]
fn the_datapath_ends_with_frames_in_flight() {
    let switch = Switch::new(2);
    let (a, d) = (plain(&switch.datapath, 0), slow(&switch.datapath, 1));
    a.sender.send(frame(d.mac, a.mac, 3000, 0));
    wait_until("a frame in flight", || d.egress.in_flight() == 1);
    drop(switch);
    assert_eq!(d.egress.finish(0), frame(d.mac, a.mac, 3000, 0));
}
