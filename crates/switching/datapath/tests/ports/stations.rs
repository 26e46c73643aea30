//! Who has an address: ports that send with each other's.

use std::time::Instant;

use datapath::TeachError;
use port::Outcome;
use switch::{MacAddr, PortId};

use crate::common::{frame, wait_until};
use crate::{ALL, Switch, plain};

/// The port that the switch has an address on.
fn place(switch: &Switch, mac: [u8; 6]) -> Option<PortId> {
    let entries = switch.datapath.addresses();
    entries.iter().find(|entry| entry.mac == MacAddr(mac)).map(|entry| entry.port)
}

#[test]
fn nobody_takes_the_address_of_a_configured_guest() {
    const FRAMES: u32 = 200;
    let switch = Switch::new(2);
    let [victim, peer, thief] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    for n in 0..FRAMES {
        // In all the ways in which a switch learns.
        for to in [ALL, peer.mac, [2, 0, 0, 0, 9, 9]] {
            thief.sender.send(frame(to, victim.mac, 60, n));
        }
        peer.sender.send(frame(victim.mac, peer.mac, 300, n));
    }
    wait_until("the answers", || {
        let answered = |sender: &port_testing::Sender| sender.answers().len();
        answered(&thief.sender) == 3 * FRAMES as usize && answered(&peer.sender) == FRAMES as usize
    });
    let sent: Vec<_> = (0..FRAMES).map(|n| frame(victim.mac, peer.mac, 300, n)).collect();
    let mut arrived = victim.egress.take();
    arrived.retain(|bytes| bytes[..6] == victim.mac);
    assert!(arrived == sent, "{} of {FRAMES} frames arrived", arrived.len());
    assert!(thief.egress.take().is_empty());
    assert_eq!(place(&switch, victim.mac), Some(victim.port.id()));
    let counted = thief.port.counters().snapshot().learning;
    assert!(counted.moves == 0 && counted.refused_moves > 0, "{counted:?}");
    assert_eq!(switch.datapath.learning(), counted);
    // The address is free once its port has gone.
    assert_eq!(
        switch.datapath.teach(thief.port.id(), MacAddr(victim.mac)),
        Err(TeachError::Taken(victim.port.id()))
    );
    switch.datapath.detach(victim.port.id());
    switch.datapath.teach(thief.port.id(), MacAddr(victim.mac)).unwrap();
}

#[test]
fn a_station_that_two_ports_fight_for_moves_once_per_second() {
    let switch = Switch::new(2);
    let [one, other, peer] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    let station = [2, 0, 0, 0, 7, 7];
    let start = Instant::now();
    for n in 0..1000 {
        for port in [&one, &other] {
            port.sender.send(frame(peer.mac, station, 60, n));
            // In turn, so that there is something to move.
            wait_until("the answer", || port.sender.answers().len() > n as usize);
        }
    }
    // One in each second that was touched.
    let most = start.elapsed().as_secs() + 2;
    let moves = switch.datapath.learning().moves;
    assert!((1..=most).contains(&moves), "{moves} moves, at most {most}");
    let counted = [&one, &other].map(|port| port.port.counters().snapshot().learning);
    assert_eq!(counted[0].moves + counted[1].moves, moves);
    assert!(counted[0].refused_moves + counted[1].refused_moves > 500, "{counted:?}");
    assert!(one.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
}

#[test]
fn a_station_that_moves_takes_its_frames_along() {
    let switch = Switch::new(1);
    let [old, new, peer] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    let station = [2, 0, 0, 0, 7, 7];
    old.sender.send(frame(peer.mac, station, 60, 0));
    wait_until("the station", || place(&switch, station) == Some(old.port.id()));
    new.sender.send(frame(peer.mac, station, 60, 1));
    wait_until("the move", || place(&switch, station) == Some(new.port.id()));
    let to_station = frame(station, peer.mac, 300, 2);
    peer.sender.send(&to_station);
    wait_until("the frame", || new.egress.take() == [to_station.clone()]);
    assert!(old.egress.take().is_empty());
    assert_eq!(new.port.counters().snapshot().learning.moves, 1);
}
