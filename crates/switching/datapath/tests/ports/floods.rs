//! Where the switch sends the frames of test ports.

use port::{DropReason, Outcome};
use port_testing::Sender;
use switch::MacAddr;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{ALL, Switch, plain, plug};

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
