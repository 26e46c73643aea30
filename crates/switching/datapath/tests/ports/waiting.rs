//! Frames that wait for room: no loss between the willing, and no harm by a slow receiver.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use port::{
    Armed, Body, Broken, Doorbell, DropReason, Egress, Event, Ingress, IngressWrapper, Offer,
    Outcome, WINDOW,
};
use port_testing::FakeEgress;

use crate::common::{frame, wait_until};
use crate::{Plugged, Receiver, Sender, Switch, mac, plain, plug};

const PAIRS: u32 = 1000;

/// A frame from one port to another.
fn between(from: &Plugged<Receiver>, to: &Plugged<Receiver>, n: u32) -> Vec<u8> {
    frame(to.mac, from.mac, 300, n)
}

/// Gives a receiver room for so many frames every millisecond, until `done`. Returns the longest pause between two times.
fn trickle(to: &Plugged<Receiver>, frames: usize, mut done: impl FnMut() -> bool) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    wait_until("the end of the trickle", || {
        longest = longest.max(last.elapsed());
        last = Instant::now();
        to.egress.make_room(frames);
        std::thread::sleep(Duration::from_millis(1));
        done()
    });
    longest
}

/// Tries until nothing is lost. Tries may lose something if this thread did not run for a part of the time for which frames wait; one may
/// otherwise, as a worker's thread may have slept.
fn loses_nothing(mut attempt: impl FnMut() -> (bool, Duration)) {
    let mut unexplained = 0;
    let is_over = (0..5).any(|_| {
        let (has_lost, longest) = attempt();
        unexplained += u32::from(has_lost && longest < Duration::from_millis(50));
        assert!(unexplained <= 1, "a pause of {longest:?}");
        !has_lost
    });
    assert!(is_over, "this thread does not run often enough");
}

fn losses(to: &Plugged<Receiver>) -> u64 {
    to.port.counters().snapshot().dropped(DropReason::NoRoom)
}

#[test]
fn a_slow_receiver_does_not_hold_back_its_senders_other_frames() {
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let green = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
    let blue = plain(&switch.datapath, 2);
    for n in 0..PAIRS {
        red.sender.send(between(&red, &green, n));
        red.sender.send(between(&red, &blue, n));
    }
    // Green takes at most one frame per millisecond: if the others had to wait for it, it would take a
    // thousand by the time that blue has as many.
    let mut given = 0;
    wait_until("blue's frames", || {
        if green.egress.count() == given {
            green.egress.make_room(1);
            given += 1;
        }
        blue.egress.count() == PAIRS as usize
    });
    assert!(green.egress.count() < PAIRS as usize / 2, "{}", green.egress.count());
    wait_until("the end of every frame", || red.sender.answers().len() == 2 * PAIRS as usize);
    assert_eq!(losses(&blue), 0);
}

#[test]
fn a_receiver_that_takes_nothing_costs_no_more() {
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let green = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
    let blue = plain(&switch.datapath, 2);
    // A whole window for green, before anybody knows that there is something else behind it.
    (0..300).for_each(|n| red.sender.send(between(&red, &green, n)));
    (0..PAIRS).for_each(|n| red.sender.send(between(&red, &blue, n)));
    wait_until("all of blue's frames", || blue.egress.count() == PAIRS as usize);
    assert_eq!(losses(&green), 300);
}

#[test]
fn nothing_is_lost_between_two_however_slow_the_receiver_is() {
    loses_nothing(|| {
        let switch = Switch::new(1);
        let red = plain(&switch.datapath, 0);
        let blue = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
        (0..PAIRS).for_each(|n| red.sender.send(between(&red, &blue, n)));
        let longest = trickle(&blue, 2, || red.sender.answers().len() == PAIRS as usize);
        (red.sender.answers().iter().any(|(_, outcome)| *outcome != Outcome::Delivered), longest)
    });
}

/// Fragments of an echo request of 40 kB, to a guest with as many buffers as iPXE.
#[test]
fn a_burst_from_a_wire_waits_for_a_receiver_that_takes_it() {
    loses_nothing(|| {
        let switch = Switch::new(1);
        let mut longest = Duration::ZERO;
        let wire = plug(&switch.datapath, 0, Sender::on_a_wire(), Receiver::new());
        let slow = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(18));
        for burst in 1..=4 {
            for n in 0..28 {
                wire.sender.send(&between(&wire, &slow, n)[..64]);
            }
            longest = longest.max(trickle(&slow, 1, || wire.sender.answers().len() == 28 * burst));
            slow.egress.make_room(18);
        }
        (losses(&slow) > 0, longest)
    });
}

/// Sends as many frames to a receiver without room as to one with room, and gives how many turns the wire had until the latter had
/// all of its own.
fn turns_beside_a_full_receiver(frames: u32) -> u64 {
    let switch = Switch::new(1);
    let full = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
    let blue = plain(&switch.datapath, 2);
    let (sender, ingress) = Sender::on_a_wire();
    // Before it is plugged in, so that every turn finds as many as it can take.
    for n in 0..frames {
        sender.send(&frame(full.mac, mac(0), 300, n)[..64]);
        sender.send(&frame(blue.mac, mac(0), 300, n)[..64]);
    }
    let wire = plug(&switch.datapath, 0, (sender, ingress), Receiver::new());
    wait_until("blue's frames", || blue.egress.count() == frames as usize);
    let turns = wire.sender.turns();
    wait_until("the end of every frame", || wire.sender.answers().len() == 2 * frames as usize);
    assert_eq!((full.egress.count(), losses(&full)), (0, frames.into()));
    turns
}

#[test]
fn frames_from_a_wire_pass_those_that_wait() {
    const FRAMES: u32 = 1000;
    // None of them has to wait for another turn: each takes half a window at least.
    const ENOUGH: u64 = 2 * FRAMES as u64 / (WINDOW as u64 / 2) + 8;
    // The clock cuts turns too, where other programs hold the processor, so one of several runs has to do.
    let one_did = (0..10).any(|_| turns_beside_a_full_receiver(FRAMES) <= ENOUGH);
    assert!(one_did, "more than {ENOUGH} turns in each of ten runs");
}

/// An ingress side that notes how many frames `receiver` had each time that it was armed.
struct ArmLog {
    inner: Box<dyn Ingress>,
    receiver: Receiver,
    armed: Arc<Mutex<Vec<usize>>>,
}

impl IngressWrapper for ArmLog {
    port::wraps!(inner: Ingress);

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.armed.lock().unwrap().push(self.receiver.count());
        self.inner.arm()
    }
}

/// An egress queue without room that takes longer than a turn to say so, in its first calls.
fn slow_to_refuse(calls: usize) -> Box<dyn Egress> {
    let mut calls = 0..calls;
    Box::new(FakeEgress::new(move |_, _| {
        if calls.next().is_some() {
            std::thread::sleep(Duration::from_micros(300));
        }
        Ok(Outcome::Waiting)
    }))
}

#[test]
fn a_queue_whose_turn_was_cut_does_not_wait_for_events() {
    let switch = Switch::new(1);
    // Two turns are cut, with two calls each: the first has fresh frames, the second has none.
    let slow = plug(&switch.datapath, 1, Sender::new(), ((), slow_to_refuse(4)));
    let blue = plain(&switch.datapath, 2);
    let (sender, inner) = Sender::new();
    // Before it is plugged in, so that its first turn takes them all.
    sender.send(frame(slow.mac, mac(0), 300, 0));
    (1..=3).for_each(|n| sender.send(frame(blue.mac, mac(0), 300, n)));
    let armed = Arc::<Mutex<_>>::default();
    let ingress = ArmLog { inner, receiver: blue.egress.clone(), armed: armed.clone() };
    let _red = plug(&switch.datapath, 0, (sender, Box::new(ingress)), Receiver::new());
    wait_until("the frames for others", || blue.egress.count() == 3);
    wait_until("the end of its work", || !armed.lock().unwrap().is_empty());
    let armed = armed.lock().unwrap();
    assert!(armed.iter().all(|count| *count == 3), "armed before all were offered: {armed:?}");
}

/// Finds each checksum wrong, notes what is known of it before, and has no room in its first calls.
struct Summing(Arc<Mutex<Vec<Option<bool>>>>);

impl Egress for Summing {
    fn deliver(
        &mut self,
        _: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            let mut known = self.0.lock().unwrap();
            known.push(offer.is_right);
            offer.is_right = Some(false);
            offer.outcome = if known.len() < 4 { Outcome::Waiting } else { Outcome::Delivered };
        }
        Ok(())
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(Arc::new(Doorbell::new().unwrap()))
    }
}

#[test]
fn what_an_offer_finds_of_a_checksum_is_known_to_the_next() {
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let known = Arc::<Mutex<Vec<_>>>::default();
    let egress: Box<dyn Egress> = Box::new(Summing(known.clone()));
    let green = plug(&switch.datapath, 1, Sender::new(), ((), egress));
    for n in 0..2 {
        red.sender.send(frame(green.mac, red.mac, 300, n));
        wait_until("an answer", || red.sender.answers().len() == n as usize + 1);
    }
    // The second frame has the slot of the first.
    let wrong = Some(false);
    assert_eq!(*known.lock().unwrap(), [None, wrong, wrong, wrong, None]);
}
