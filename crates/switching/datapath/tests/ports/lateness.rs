//! When a neighbour's frame is delivered beside a port that makes the switch work: by copies, by messages, by hashes. Lateness is counted in
//! turns of the loud port, each of which has its bounds.

use std::sync::{Arc, Mutex};

use port::{Egress, Outcome, Queue, SteeringCell};
use port_testing::{FakeEgress, Sender};
use switch::MacAddr;
use switch::multicast::Router;

use crate::common::{frame, wait_until};
use crate::mirrors::{mirror, target, watch};
use crate::multicast::igmp;
use crate::receiver::Receiver;
use crate::steering::Fickle;
use crate::{ALL, Plugged, Switch, mac, plain, plug, refresh};

/// A busy worker polls for events of its other queues after so many rounds; the round before and the one after count too.
const ROUNDS: u64 = 16 + 2;
/// Frames of the loud port: more than are carried meanwhile, unless this thread has no CPU.
const FRAMES: u16 = 6000;

/// Sends frames of a neighbour while a flood is carried.
fn assert_on_time(switch: &Switch, loud: &Plugged<Receiver>, flood: impl Iterator<Item = Vec<u8>>) {
    /// This port and the next are free.
    const FIRST: u8 = 200;
    let red = plain(&switch.datapath, FIRST);
    let (clock, seen) = (loud.sender.clone(), Arc::<Mutex<Vec<u64>>>::default());
    let noted = seen.clone();
    let noting: Box<dyn Egress> = Box::new(FakeEgress::new(move |frame, _| {
        if frame.source() == MacAddr(mac(FIRST)) {
            noted.lock().unwrap().push(clock.turns());
        }
        Ok(Outcome::Delivered)
    }));
    let blue = plug(&switch.datapath, FIRST + 1, Sender::new(), ((), noting));
    refresh(&switch.datapath);
    flood.for_each(|frame| loud.sender.send(frame));
    wait_until("the flood", || loud.sender.turns() > 2);
    for n in 0..10 {
        red.sender.send(frame(blue.mac, red.mac, 100, n));
        // After it: this thread may lose its CPU in between.
        let before = loud.sender.turns();
        wait_until("the frame", || seen.lock().unwrap().len() > n as usize);
        let late = seen.lock().unwrap()[n as usize].saturating_sub(before);
        assert!(late <= ROUNDS, "frame {n} after {late} turns");
    }
}

#[test]
fn floods_and_their_copies_for_mirrors_delay_no_neighbour() {
    let switch = Switch::new(1);
    let loud = plain(&switch.datapath, 0);
    let listeners: Vec<_> = (10..18).map(|n| plain(&switch.datapath, n)).collect();
    let mirrors: Vec<_> = (0..2).map(|_| mirror(&switch, 0)).collect();
    let targets = [3, 4].map(|n| target(&switch, n, Receiver::new()));
    for ((_, port), target) in mirrors.iter().zip(&targets) {
        switch.datapath.aim(port, &target.port);
    }
    let both = [&mirrors[0].0, &mirrors[1].0];
    listeners.iter().chain([&loud]).for_each(|port| watch(&switch, port, &both));
    let flood = (0..FRAMES).map(|n| frame(ALL, loud.mac, 2000, n.into()));
    assert_on_time(&switch, &loud, flood);
    let copies: u64 = both.iter().map(|mirror| mirror.counts().copied).sum();
    assert!(copies > 100, "{copies}");
}

/// Each message is about another group, beside as many as there may be.
#[test]
fn reports_delay_no_neighbour() {
    let switch = Switch::new(1);
    switch.datapath.snoop(true);
    let loud = plain(&switch.datapath, 0);
    let others: Vec<_> = (1..17).map(|n| plain(&switch.datapath, n)).collect();
    let router = plain(&switch.datapath, 20);
    switch.datapath.set_router(router.port.id(), Router::Always);
    refresh(&switch.datapath);
    let report = |from: [u8; 6], group: u16| {
        let [high, low] = group.to_be_bytes();
        igmp(from, [1, 0, 0x5e, 9, high, low], &[0x16, 0, 0, 0, 239, 9, high, low])
    };
    for (n, other) in (0u16..).zip(&others) {
        (0..64).for_each(|group| other.sender.send(report(other.mac, 10_000 + 64 * n + group)));
    }
    let members = || switch.datapath.multicast().map_or(0, |counts| counts.members);
    wait_until("the members", || members() == 1024);
    let flood = (0..FRAMES).map(|group| report(loud.mac, group));
    assert_on_time(&switch, &loud, flood);
    assert!(switch.datapath.multicast().is_some_and(|counts| counts.refused > 0));
}

/// The receiver wants each frame in another queue than the last one, and every flow hashed.
#[test]
fn hashes_delay_no_neighbour() {
    let switch = Switch::new(1);
    let loud = plain(&switch.datapath, 0);
    let (cell, log) = (Arc::<SteeringCell>::default(), Arc::<Mutex<Vec<u16>>>::default());
    let queues = [0, 1].map(|number| {
        let egress = Fickle { number, cell: cell.clone(), log: log.clone() };
        Queue { ingress: Sender::new().1, egress: Box::new(egress) }
    });
    let fickle = switch.datapath.attach("fickle", queues.into(), Vec::new());
    switch.datapath.teach(fickle.id(), MacAddr(mac(1))).unwrap();
    let flood = (0..FRAMES).map(|n| frame(mac(1), loud.mac, 300, n.into()));
    assert_on_time(&switch, &loud, flood);
    wait_until("frames", || !log.lock().unwrap().is_empty());
}
