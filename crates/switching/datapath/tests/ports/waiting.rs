//! Frames that wait for room: no loss between the willing, and no harm by a slow receiver.

use std::time::Duration;

use port::{DropReason, Outcome};

use crate::common::{frame, wait_until};
use crate::{Plugged, Receiver, Sender, Switch, plain, plug};

const PAIRS: u32 = 1000;

/// A frame from one port to another.
fn between(from: &Plugged<Receiver>, to: &Plugged<Receiver>, n: u32) -> Vec<u8> {
    frame(to.mac, from.mac, 300, n)
}

/// Gives a receiver room for so many frames every millisecond, until `done`.
fn trickle(to: &Plugged<Receiver>, frames: usize, mut done: impl FnMut() -> bool) {
    wait_until("the end of the trickle", || {
        to.egress.make_room(frames);
        std::thread::sleep(Duration::from_millis(1));
        done()
    });
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
    // Green takes one frame per millisecond: if the others had to wait for it, it would take a
    // thousand by the time that blue has as many.
    trickle(&green, 1, || blue.egress.count() == PAIRS as usize);
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
    let switch = Switch::new(1);
    let red = plain(&switch.datapath, 0);
    let blue = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
    (0..PAIRS).for_each(|n| red.sender.send(between(&red, &blue, n)));
    trickle(&blue, 2, || blue.egress.count() == PAIRS as usize);
    assert!(red.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
}

#[test]
fn frames_from_a_wire_never_wait() {
    let switch = Switch::new(1);
    let wire = plug(&switch.datapath, 0, Sender::on_a_wire(), Receiver::new());
    let full = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(1));
    for n in 0..100 {
        wire.sender.send(&between(&wire, &full, n)[..64]);
    }
    wait_until("the end of every frame", || wire.sender.answers().len() == 100);
    assert_eq!((full.egress.count(), losses(&full)), (1, 99));
}
