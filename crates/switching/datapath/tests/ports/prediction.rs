//! A queue that always has a frame after another one's turn is read without a poll for its event.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datapath::{Config, PortParts};
use port::{
    Armed, Body, Broken, Budget, Egress, Event, Ingress, Outcome, Outcomes, Queue, Received,
    WINDOW, Window, linearise,
};
use port_testing::{FakeEgress, Sender};
use shm::Region;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{Switch, plain, refresh};

/// One end of what stands for a bridge: what is written to the other end can be read at once.
struct End {
    socket: UnixDatagram,
    /// How often it was read.
    reads: AtomicUsize,
    /// How many frames that brought.
    frames: AtomicUsize,
    /// How many turns its queue had.
    turns: AtomicUsize,
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Event for End {
    fn take(&self) {}

    fn is_of_work(&self) -> bool {
        true
    }
}

struct EndIngress {
    end: Arc<End>,
    window: Window,
    no_body: Arc<[Region]>,
    is_drained: bool,
}

impl Ingress for EndIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.end.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.is_drained = false;
        self.end.turns.fetch_add(1, Ordering::Relaxed);
        while !budget.is_spent() {
            let Some((_, frame)) = self.window.push() else { break };
            self.end.reads.fetch_add(1, Ordering::Relaxed);
            let mut bytes = [0; 128];
            let Ok(len) = self.end.socket.recv(&mut bytes) else {
                self.window.undo_push();
                self.is_drained = true;
                break;
            };
            self.end.frames.fetch_add(1, Ordering::Relaxed);
            frame.set_header(&bytes[..len]).unwrap();
            budget.charge(Budget::SYSTEM_CALL, len);
            received.fresh += 1;
        }
        Ok(())
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.no_body));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Asleep)
    }
}

/// A sender that knows when it has no more frames.
struct Drained(Box<dyn Ingress>);

impl Ingress for Drained {
    fn event(&self) -> Arc<dyn Event> {
        self.0.event()
    }

    fn window(&self) -> &Window {
        self.0.window()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.0.receive(budget, received)
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.0.with_body(work);
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.0.finish(outcomes);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.0.arm()
    }
}

/// What stands for a bridge: where frames are written, and the queue that they are read from.
fn bridge() -> (Box<dyn Egress>, UnixDatagram, Arc<End>, Box<dyn Ingress>) {
    let (to, socket) = UnixDatagram::pair().unwrap();
    let first = to.try_clone().unwrap();
    socket.set_nonblocking(true).unwrap();
    let [reads, frames, turns] = std::array::from_fn(|_| AtomicUsize::new(0));
    let end = Arc::new(End { socket, reads, frames, turns });
    let (window, no_body) = (Window::new(), [].into());
    let ingress = EndIngress { end: end.clone(), window, no_body, is_drained: false };
    let egress = FakeEgress::new(move |frame, body| {
        let mut bytes = vec![0; frame.len as usize];
        linearise(frame, body, &mut bytes).unwrap();
        to.send(&bytes).unwrap();
        Ok(Outcome::Delivered)
    });
    (Box::new(egress), first, end, Box::new(ingress))
}

/// One worker, which never polls.
fn switch() -> Switch {
    Switch::with(&Config { workers: 1, poll: Duration::ZERO, ..Config::default() })
}

/// Frames go from the queue to the egress, and to nobody else.
fn connect(switch: &Switch, ingress: Box<dyn Ingress>, egress: Box<dyn Egress>) {
    let apart = |ingress, egress| {
        let queues = vec![Queue { ingress, egress }];
        switch.datapath.attach_apart("apart", PortParts { queues, ..PortParts::default() }, None)
    };
    let [from, to] = [apart(ingress, Receiver::new().1), apart(Sender::new().1, egress)];
    switch.datapath.pair(&from, &to);
    refresh(&switch.datapath);
}

/// A sender, and a receiver behind a bridge.
struct Way {
    _switch: Switch,
    sender: Sender,
    receiver: Receiver,
    end: Arc<End>,
}

impl Way {
    fn new() -> Self {
        let switch = switch();
        let (near, _, end, far) = bridge();
        let (sender, ingress) = Sender::new();
        let (receiver, egress) = Receiver::new();
        connect(&switch, Box::new(Drained(ingress)), near);
        connect(&switch, far, egress);
        Self { _switch: switch, sender, receiver, end }
    }

    /// Sends these frames at once, and waits until they are there. Returns how often the bridge was read.
    fn send(&self, numbers: Range<u32>) -> usize {
        let before = self.end.reads.load(Ordering::Relaxed);
        let sent: Vec<_> = numbers.map(|n| frame([2; 6], [4; 6], 100, n)).collect();
        sent.iter().for_each(|frame| self.sender.send(frame));
        wait_until("all frames", || self.receiver.count() >= sent.len());
        assert_eq!(self.receiver.take(), sent);
        self.end.reads.load(Ordering::Relaxed) - before
    }
}

#[test]
fn a_lone_frame_is_read_once() {
    let way = Way::new();
    let reads = |frames: Range<u32>| frames.map(|n| way.send(n..n + 1)).sum::<usize>();
    // Until it is predicted.
    assert!(reads(0..40) > 40);
    let reads = reads(40..140);
    assert!((100..120).contains(&reads), "{reads}");
}

#[test]
fn no_frame_of_a_batch_is_left() {
    let way = Way::new();
    let mut next = 0;
    for round in 0..400 {
        // Lone frames for long enough that each is predicted, and then more at once.
        let count = if round % 40 == 39 { 2 + round / 40 } else { 1 };
        way.send(next..next + count);
        next += count;
    }
}

/// Two devices send a frame to each other for ever, so each turn is predicted: the worker still hears of others, and of commands.
#[test]
fn a_frame_that_circulates_starves_nobody() {
    let switch = switch();
    let [(to_red, first, red, from_red), (to_blue, _, _, from_blue)] = [bridge(), bridge()];
    connect(&switch, from_red, to_blue);
    connect(&switch, from_blue, to_red);
    first.send(&frame([2; 6], [4; 6], 100, 0)).unwrap();
    let third = [2, 3].map(|n| plain(&switch.datapath, n));
    let reads = || red.reads.load(Ordering::Relaxed);
    wait_until("laps", || reads() > 1000);
    for n in 0..20 {
        third[0].sender.send(frame(third[1].mac, third[0].mac, 100, n));
        wait_until("a frame of another port", || third[1].egress.take().len() == 1);
    }
    refresh(&switch.datapath);
}

/// While nobody can take a queue's frames, their event does not wake the worker without end: it would have no time for others.
#[test]
fn frames_that_wait_for_room_wake_the_worker_a_few_times() {
    let switch = switch();
    let (_, first, end, far) = bridge();
    let (receiver, egress) = Receiver::with_room(0);
    connect(&switch, far, egress);
    let sent: Vec<_> = (0..100).map(|n| frame([2; 6], [4; 6], 100, n)).collect();
    let (frames, again) = (sent.clone(), first.try_clone().unwrap());
    // The socket may have less room.
    let sender = std::thread::spawn(move || {
        frames.iter().for_each(|frame| assert_eq!(first.send(frame).unwrap(), frame.len()));
    });
    wait_until("a full window", || end.frames.load(Ordering::Relaxed) == WINDOW);
    let turns = || end.turns.load(Ordering::Relaxed);
    let before = turns();
    std::thread::sleep(Duration::from_millis(30));
    assert!(turns() - before < 8, "{} turns", turns() - before);
    receiver.make_room(sent.len());
    wait_until("all frames", || receiver.count() == sent.len());
    assert_eq!(receiver.take(), sent);
    sender.join().unwrap();
    // What comes next wakes it.
    again.send(&sent[0]).unwrap();
    receiver.make_room(1);
    wait_until("one more", || receiver.count() == 1);
}
