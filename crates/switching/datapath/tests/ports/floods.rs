//! Where the switch sends the frames of test ports.

use port::{DropReason, Outcome};
use port_testing::Sender;
use switch::MacAddr;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{ALL, Switch, plain, plug, refresh};

#[test]
fn a_flood_goes_to_every_port_but_the_one_it_came_from() {
    let switch = Switch::new(1);
    let ports = [0, 1, 2, 3].map(|n| plain(&switch.datapath, n));
    let unknown = [2, 0, 0, 0, 9, 9];
    for (n, from) in (0u32..).zip(&ports) {
        let sent = [frame(ALL, from.mac, 3000, n), frame(unknown, from.mac, 300, n)];
        sent.iter().for_each(|bytes| from.sender.send(bytes));
        wait_until("the answers", || from.sender.answers().len() == 2);
        for to in &ports {
            let wanted: &[_] = if to.mac == from.mac { &[] } else { &sent };
            assert_eq!(to.egress.take(), wanted);
        }
    }
}

#[test]
fn a_frame_to_a_station_that_no_port_gets_is_a_drop_and_one_to_a_group_is_not() {
    let unknown = [2, 0, 0, 0, 9, 9];
    let group = [1, 0, 0x5e, 1, 1, 1];
    for workers in [1, 2] {
        let switch = Switch::new(workers);
        let alone = plain(&switch.datapath, 0);
        let outcomes = |sent: &[[u8; 6]]| {
            let before = alone.sender.answers().len();
            let frames = sent.iter().zip(0..).map(|(to, n)| frame(*to, alone.mac, 300, n));
            frames.for_each(|bytes| alone.sender.send(bytes));
            wait_until("the answers", || alone.sender.answers().len() == before + sent.len());
            let answers = alone.sender.answers();
            answers[before..].iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>()
        };
        let dropped = || {
            let counts = alone.port.counters().snapshot();
            [DropReason::NoPort, DropReason::Storm].map(|reason| counts.dropped(reason))
        };
        let (lost, taken) = (Outcome::Dropped(DropReason::NoPort), Outcome::Delivered);
        let sent = [unknown, ALL, unknown, group];
        assert_eq!(outcomes(&sent), [lost, taken, lost, taken]);
        assert_eq!(dropped(), [2, 0]);
        // Another port may have the station behind it.
        let other = plain(&switch.datapath, 1);
        assert_eq!(outcomes(&sent), [taken; 4]);
        assert_eq!(other.egress.count(), 4);
        switch.datapath.detach(other.port.id());
        refresh(&switch.datapath);
        assert_eq!(outcomes(&[unknown]), [lost]);
        assert_eq!(dropped(), [3, 0]);
    }
}

#[test]
fn nobody_waits_for_a_port_that_misses_a_flood() {
    let switch = Switch::new(1);
    let (a, p) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
    let full = plug(&switch.datapath, 2, Sender::new(), Receiver::with_room(1));
    let sent = [0, 1, 2].map(|n| frame(ALL, a.mac, 300, n));
    sent.iter().for_each(|bytes| a.sender.send(bytes));
    wait_until("the answers", || a.sender.answers().len() == 3);
    assert!(a.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
    assert_eq!(p.egress.take(), sent);
    assert_eq!(full.egress.take(), sent[..1]);
    assert_eq!(full.port.counters().snapshot().dropped(DropReason::NoRoom), 2);
}

#[test]
fn a_frame_that_waits_does_not_teach_the_switch_again() {
    let switch = Switch::new(1);
    let old = plain(&switch.datapath, 0);
    let new = plain(&switch.datapath, 1);
    let full = plug(&switch.datapath, 2, Sender::new(), Receiver::with_room(0));
    let p = plain(&switch.datapath, 3);
    let station = [2, 0, 0, 0, 7, 7];
    let place = || {
        let entries = switch.datapath.addresses();
        entries.iter().find(|entry| entry.mac == MacAddr(station)).map(|entry| entry.port)
    };
    let waiting = frame(full.mac, station, 300, 0);
    old.sender.send(&waiting);
    wait_until("the station", || place() == Some(old.port.id()));
    // The station moves while its frame waits.
    new.sender.send(frame(p.mac, station, 300, 1));
    wait_until("the move", || place() == Some(new.port.id()));
    assert_eq!(old.sender.answers(), []);
    // It is offered again with the next frame, which waits too.
    let behind = frame(full.mac, old.mac, 300, 2);
    let turns = old.sender.turns();
    old.sender.send(&behind);
    wait_until("another turn", || old.sender.turns() > turns);
    assert_eq!(place(), Some(new.port.id()));
    full.egress.make_room(2);
    wait_until("the end of the wait", || old.sender.answers().len() == 2);
    assert_eq!(full.egress.take(), [waiting, behind]);
    assert_eq!(place(), Some(new.port.id()));
    let to_station = frame(station, p.mac, 300, 3);
    p.sender.send(&to_station);
    wait_until("a frame to the station", || new.egress.take() == [to_station.clone()]);
    assert_eq!(old.egress.take(), [] as [Vec<u8>; 0]);
}
