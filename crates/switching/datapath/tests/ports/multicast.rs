//! Multicast groups that go to their members and to routers only.

use port::DropReason;
use switch::multicast::Router;

use crate::common::wait_until;
use crate::receiver::Receiver;
use crate::{Plugged, Switch, plain, refresh};

const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 1, 1];

/// An IGMP message of version 2 or 3, to the hosts or routers that it is for.
pub fn igmp(from: [u8; 6], to: [u8; 6], body: &[u8]) -> Vec<u8> {
    let total = u8::try_from(20 + body.len()).unwrap();
    let ip = [0x45, 0xc0, 0, total, 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 0, 0, 1, 239, 1, 1, 1];
    [&to, &from, &[8, 0][..], &ip, body].concat()
}

fn query(from: [u8; 6]) -> Vec<u8> {
    // To be answered in no time, which counts as ten seconds.
    igmp(from, [1, 0, 0x5e, 0, 0, 1], &[0x11, 1, 0, 0, 0, 0, 0, 0])
}

fn report(from: [u8; 6]) -> Vec<u8> {
    igmp(from, GROUP, &[0x16, 0, 0, 0, 239, 1, 1, 1])
}

fn leave(from: [u8; 6]) -> Vec<u8> {
    igmp(from, [1, 0, 0x5e, 0, 0, 2], &[0x17, 0, 0, 0, 239, 1, 1, 1])
}

/// A frame to the group, with the addresses of a report of the same station.
fn stream(from: [u8; 6]) -> Vec<u8> {
    [&GROUP, &from, &[0x88, 0xb5][..], &[7; 200]].concat()
}

/// Sends a frame, and returns which of the others it reached.
fn reached(ports: &[Plugged<Receiver>], from: usize, bytes: &[u8]) -> Vec<usize> {
    ports.iter().for_each(|port| drop(port.egress.take()));
    let before = ports[from].sender.answers().len();
    ports[from].sender.send(bytes);
    wait_until("the answer", || ports[from].sender.answers().len() > before);
    let got = |n: &usize| ports[*n].egress.take().iter().any(|got| got == bytes);
    (0..ports.len()).filter(got).collect()
}

fn bed(workers: usize) -> (Switch, Vec<Plugged<Receiver>>) {
    let switch = Switch::new(workers);
    switch.datapath.snoop(true);
    let ports: Vec<_> = (0..4).map(|n| plain(&switch.datapath, n)).collect();
    switch.datapath.set_router(ports[0].port.id(), Router::Always);
    refresh(&switch.datapath);
    (switch, ports)
}

#[test]
fn reports_go_to_routers_and_queries_come_from_them() {
    for workers in [1, 2] {
        let (switch, ports) = bed(workers);
        assert_eq!(reached(&ports, 1, &report(ports[1].mac)), [0]);
        assert_eq!(reached(&ports, 1, &leave(ports[1].mac)), [0]);
        // The same addresses, and no report.
        assert_eq!(reached(&ports, 1, &stream(ports[1].mac)), [0, 2, 3]);
        assert_eq!(reached(&ports, 0, &query(ports[0].mac)), [1, 2, 3]);
        assert_eq!(reached(&ports, 2, &query(ports[2].mac)), [] as [usize; 0]);
        assert_eq!(ports[2].port.counters().snapshot().dropped(DropReason::NotForwarded), 1);
        assert_eq!(switch.datapath.multicast().map(|counts| counts.members), Some(1));
        switch.datapath.snoop(false);
        refresh(&switch.datapath);
        assert_eq!(reached(&ports, 2, &query(ports[2].mac)), [0, 1, 3]);
        assert_eq!(reached(&ports, 1, &report(ports[1].mac)), [0, 2, 3]);
        assert_eq!(switch.datapath.multicast(), None);
    }
}

/// Whoever gets such a frame takes the message in it, as the router does.
#[test]
fn messages_to_one_station_go_where_they_may() {
    for workers in [1, 2] {
        let (switch, ports) = bed(workers);
        let query = |from: usize, to: usize| {
            igmp(ports[from].mac, ports[to].mac, &[0x11, 1, 0, 0, 0, 0, 0, 0])
        };
        let report = |to: [u8; 6]| igmp(ports[1].mac, to, &[0x16, 0, 0, 0, 239, 1, 1, 1]);
        assert_eq!(reached(&ports, 2, &query(2, 0)), [] as [usize; 0]);
        assert_eq!(reached(&ports, 2, &query(2, 3)), [] as [usize; 0]);
        assert_eq!(reached(&ports, 0, &query(0, 3)), [3]);
        assert_eq!(reached(&ports, 1, &report(ports[3].mac)), [] as [usize; 0]);
        assert_eq!(reached(&ports, 1, &report(ports[0].mac)), [0]);
        assert_eq!(
            reached(&ports, 1, &report([2, 9, 9, 9, 9, 9])),
            [] as [usize; 0],
            "unknown, so flooded"
        );
        assert_eq!(ports[2].port.counters().snapshot().dropped(DropReason::NotForwarded), 2);
        // Other frames between the same stations go on.
        let other = [&ports[3].mac[..], &ports[1].mac, &[0x88, 0xb5], &[7; 200]].concat();
        assert_eq!(reached(&ports, 1, &other), [3]);
        switch.datapath.snoop(false);
        refresh(&switch.datapath);
        assert_eq!(reached(&ports, 2, &query(2, 3)), [3]);
    }
}

#[test]
fn a_group_goes_to_its_members_after_two_queries() {
    let (switch, ports) = bed(2);
    for _ in 0..2 {
        reached(&ports, 0, &query(ports[0].mac));
        // Of the queries in one second, one counts.
        std::thread::sleep(std::time::Duration::from_millis(1010));
    }
    reached(&ports, 1, &report(ports[1].mac));
    // Hosts have eleven seconds for an answer.
    switch.datapath.sweep_at(60);
    refresh(&switch.datapath);
    assert_eq!(reached(&ports, 0, &stream(ports[0].mac)), [1]);
    assert_eq!(reached(&ports, 3, &stream(ports[3].mac)), [0, 1]);
    // One that attaches now may be a member.
    let ports: Vec<_> = ports.into_iter().chain([plain(&switch.datapath, 4)]).collect();
    assert_eq!(reached(&ports, 0, &stream(ports[0].mac)), [1, 4]);
    reached(&ports, 3, &report(ports[3].mac));
    refresh(&switch.datapath);
    assert_eq!(reached(&ports, 0, &stream(ports[0].mac)), [1, 3, 4]);
    // Copies that are not made are not paid for, and other frames are flooded as ever.
    let all = [&[0xff; 6], &ports[0].mac[..], &[0x88, 0xb5], &[7; 200]].concat();
    assert_eq!(reached(&ports, 0, &all), [1, 2, 3, 4]);
    let local = [&[1, 0, 0x5e, 0, 0, 251], &ports[0].mac[..], &[0x88, 0xb5], &[7; 200]].concat();
    assert_eq!(reached(&ports, 0, &local), [1, 2, 3, 4]);
    switch.datapath.detach(ports[1].port.id());
    assert_eq!(switch.datapath.multicast().map(|counts| counts.members), Some(1));
}
