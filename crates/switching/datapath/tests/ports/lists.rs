//! Guests that list the multicast groups that they want.

use netfront::Config;
use port::DropReason;
use wire::ethernet::MacAddr;

use crate::common::{A, ALL, Guest, Host, frame, receive, send, wait_until};

fn group(n: u8) -> MacAddr {
    MacAddr([1, 0, 0x5e, 1, 1, n])
}

/// Changes the list of a guest, and waits for the answers. Returns how many were errors.
fn list(guest: &mut Guest, changes: impl Iterator<Item = (MacAddr, bool)>) -> u64 {
    let tx = &mut guest.queues[0].tx;
    let (mut answers, mut sent) = (0, 0);
    for (group, is_wanted) in changes {
        wait_until("room on the ring", || {
            answers += tx.reclaim().unwrap();
            tx.list_group(group, is_wanted).is_ok()
        });
        tx.publish();
        sent += 2;
    }
    wait_until("the answers", || {
        answers += tx.reclaim().unwrap();
        answers == sent
    });
    tx.take_errors()
}

/// Sends a frame to each of these from `a`, and then a broadcast. Returns which of them `b` gets.
fn reached(a: &mut Guest, b: &mut Guest, to: &[MacAddr]) -> Vec<MacAddr> {
    for (n, to) in (0..).zip(to.iter().map(|to| to.0).chain([ALL])) {
        wait_until("room on the ring", || send(&mut a.queues[0], &frame(to, A, 100, n)));
    }
    until_broadcast(b)
}

/// To whom the frames are that a guest gets before a broadcast.
fn until_broadcast(guest: &mut Guest) -> Vec<MacAddr> {
    let mut got = Vec::new();
    wait_until("the broadcast", || {
        while let Some(bytes) = receive(&mut guest.queues[0]) {
            got.push(MacAddr(bytes[..6].try_into().unwrap()));
        }
        got.last() == Some(&MacAddr(ALL))
    });
    got.pop();
    got
}

fn three(host: &Host) -> [Guest; 3] {
    ["0a", "0b", "0c"].map(|name| {
        let config = Config { multicast_control: name == "0b", ..Config::default() };
        host.guest(&format!("02:00:00:00:00:{name}"), config)
    })
}

#[test]
fn a_guest_gets_the_groups_that_it_lists_and_broadcasts() {
    let host = Host::new(1, 1).listing();
    let [mut a, mut b, mut c] = three(&host);
    let all = [1, 2, 3].map(group);
    assert_eq!(reached(&mut a, &mut b, &all), []);
    // The broadcast may be there before the worker counts the frames of its batch.
    let dropped = || b.port.counters().snapshot().dropped(DropReason::NotWanted);
    wait_until("the count", || dropped() == 3);
    assert_eq!(until_broadcast(&mut c), all, "it has not asked");
    assert_eq!(list(&mut b, [(group(1), true), (group(3), true)].into_iter()), 0);
    while receive(&mut b.queues[0]).is_some() {}
    assert_eq!(reached(&mut a, &mut b, &all), [group(1), group(3)]);
    assert_eq!(list(&mut b, [(group(1), false), (group(9), false)].into_iter()), 0);
    assert_eq!(reached(&mut a, &mut b, &all), [group(3)]);
    // It changes its mind while it is connected.
    let key = format!("{}/request-multicast-control", b.vif.frontend());
    for (value, expected) in [("0", &all[..]), ("1", &all[2..])] {
        host.store.write(None, &key, value).unwrap();
        b.vif.frontend_changed().unwrap();
        assert_eq!(reached(&mut a, &mut b, &all), expected);
    }
    // The next backend does not know the list.
    let connection = host.restart(&mut b);
    b.port = host.carry(b.domain.id(), connection);
    b.vif.frontend_changed().unwrap();
    assert_eq!(reached(&mut a, &mut b, &all), all);
    assert_eq!(list(&mut b, [(group(1), true)].into_iter()), 0);
    assert_eq!(reached(&mut a, &mut b, &all), all);
}

#[test]
fn a_list_is_bounded_and_its_guests_alone() {
    let host = Host::new(1, 1).listing();
    let [mut a, mut b, mut c] = three(&host);
    let changes = (0..=255).map(|n| (group(n), true));
    assert_eq!(list(&mut b, changes), 256 - 64);
    assert_eq!(list(&mut b, [(MacAddr(A), true)].into_iter()), 1, "a station is no group");
    // As fast as it can, while others go on.
    let groups = [70, 80].map(group);
    std::thread::scope(|scope| {
        scope.spawn(|| list(&mut b, (0..5000).map(|n| (group(1), n % 2 == 0))));
        (0..50).for_each(|_| assert_eq!(reached(&mut a, &mut c, &groups), groups));
    });
    assert_eq!(list(&mut c, [(group(1), true)].into_iter()), 0);
    assert_eq!(reached(&mut a, &mut c, &groups), groups, "it has not asked, and loses nothing");
}
