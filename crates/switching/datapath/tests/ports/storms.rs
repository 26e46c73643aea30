//! Ports that flood without end.

use port::{DropReason, Outcome};
use port_testing::Sender;

use datapath::Config;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{ALL, Switch, plain, plug};

/// Copies per second that a port may cause.
const COPIES: u32 = 60;

fn switch(workers: usize, flood_copies: u32) -> Switch {
    Switch::with(&Config { workers, flood_copies, ..Config::default() })
}

#[test]
fn a_storm_is_dropped_and_others_are_undisturbed() {
    const STORM: u32 = 5000;
    let unknown = [2, 0, 0, 0, 9, 9];
    for (to, workers) in [(ALL, 1), (ALL, 2), ([1, 0, 0x5e, 0, 0, 1], 1), (unknown, 1)] {
        let switch = switch(workers, COPIES);
        let [storming, a, b] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
        (0..STORM).for_each(|n| storming.sender.send(frame(to, storming.mac, 60, n)));
        // Less than the others may flood; a flooded frame is two copies.
        let flooded: Vec<_> = (0..COPIES / 2).map(|n| frame(ALL, a.mac, 300, n)).collect();
        let unicast: Vec<_> = (0..500).map(|n| frame(b.mac, a.mac, 300, n)).collect();
        flooded.iter().chain(&unicast).for_each(|bytes| a.sender.send(bytes));
        let all = [&storming, &a];
        let count = |n: usize| all[n].sender.answers().len();
        let sent = flooded.len() + unicast.len();
        wait_until("the answers", || (count(0), count(1)) == (STORM as usize, sent));

        assert!(a.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
        let of_a = |frames: Vec<Vec<u8>>| {
            frames.into_iter().filter(|bytes| bytes[6..12] == a.mac).collect::<Vec<_>>()
        };
        assert_eq!(of_a(storming.egress.take()), flooded);
        let received = b.egress.take();
        let passed = received.iter().filter(|bytes| bytes[6..12] == storming.mac).count();
        assert_eq!(of_a(received), [flooded, unicast].concat());
        assert_eq!(a.port.counters().snapshot().dropped(DropReason::Storm), 0);

        let storm = Outcome::Dropped(DropReason::Storm);
        let dropped = storming.sender.answers().iter().filter(|(_, o)| *o == storm).count();
        assert_eq!(passed + dropped, STORM as usize);
        assert!(passed >= COPIES as usize / 2, "{passed} passed");
        let counted = storming.port.counters().snapshot().dropped(DropReason::Storm);
        assert_eq!(counted, dropped as u64);
        // Of 5000 frames in less than 20 s.
        assert!(dropped > STORM as usize / 2, "{dropped} dropped");
    }
}

#[test]
fn limits_change_while_ports_flood() {
    let switch = switch(1, 0);
    let [a, b] = [0, 1].map(|n| plain(&switch.datapath, n));
    let dropped = |from: &crate::Plugged<Receiver>| {
        crate::refresh(&switch.datapath);
        let before = from.port.counters().snapshot().dropped(DropReason::Storm);
        let answers = from.sender.answers().len();
        (0..5000).for_each(|n| from.sender.send(frame(ALL, from.mac, 60, n)));
        wait_until("the answers", || from.sender.answers().len() == answers + 5000);
        from.port.counters().snapshot().dropped(DropReason::Storm) - before
    };
    assert_eq!([dropped(&a), dropped(&b)], [0, 0]);
    switch.datapath.limit_floods_of(a.port.id(), Some(COPIES));
    assert!(dropped(&a) > 2500 && dropped(&b) == 0);
    switch.datapath.limit_floods(COPIES + 1);
    assert!(dropped(&b) > 2500);
    switch.datapath.limit_floods_of(a.port.id(), Some(0));
    assert_eq!(dropped(&a), 0, "no limit of its own");
    // A port that comes later has the present limit.
    let c = plain(&switch.datapath, 2);
    assert!(dropped(&c) > 2500);
    switch.datapath.limit_floods_of(a.port.id(), None);
    switch.datapath.limit_floods(0);
    assert_eq!([dropped(&a), dropped(&b), dropped(&c)], [0, 0, 0]);
}

#[test]
fn long_frames_cost_more() {
    // Each frame is 32 copies of 2 KiB; the second leaves a debt of almost a second.
    let switch = switch(1, 33);
    let [a, b] = [0, 1].map(|n| plain(&switch.datapath, n));
    (0..3).for_each(|n| a.sender.send(frame(ALL, a.mac, 65_000, n)));
    wait_until("the answers", || a.sender.answers().len() == 3);
    assert_eq!(b.egress.count(), 2);
}

#[test]
fn what_a_port_without_room_misses_is_paid_for_too() {
    let switch = switch(1, COPIES);
    let a = plain(&switch.datapath, 0);
    let full = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
    (0..1000).for_each(|n| a.sender.send(frame(ALL, a.mac, 60, n)));
    wait_until("the answers", || a.sender.answers().len() == 1000);
    let missed = full.port.counters().snapshot().dropped(DropReason::NoRoom);
    let dropped = a.port.counters().snapshot().dropped(DropReason::Storm);
    assert_eq!(missed + dropped, 1000);
    assert!(dropped > 0, "an attempt costs as much as a delivery");
}
