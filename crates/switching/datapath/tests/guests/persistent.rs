//! Guests with persistent grants.

use hypervisor::Counted;
use netback::{GrantReuse, RxChannel, TxChannel};
use netfront::{Config, ControlError};
use wire::netif::GrefMapping;
use wire::netif::ctrl::status;

use crate::common::{
    A, ALL, B, Guest, Host, PERSISTENT, await_any, frame, receive, send, wait_until,
};

/// Frames in each direction.
const FRAMES: u32 = 300;

/// The cost of a run.
struct Taken {
    hypercalls: u64,
    notifications: u64,
    hits: u64,
    misses: u64,
}

/// Sends a frame; it arrives whole.
fn cross(from: &mut Guest, to: &mut Guest, bytes: &[u8]) {
    wait_until("room", || send(&mut from.queues[0], bytes));
    assert!(await_any(to) == bytes, "another frame arrived");
}

/// Sends frames both ways, one at a time, so that every configuration has the same batches.
fn run(config: Config) -> Taken {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(config);
    let count = |what| host.platform.meter().count(what);
    host.platform.meter().switch(true);
    for n in 0..FRAMES {
        let len = 60 + (n * 37 % 9000) as usize;
        cross(&mut a, &mut b, &frame(B, A, len, n));
        cross(&mut b, &mut a, &frame(A, B, len, n));
    }
    host.platform.meter().switch(false);
    Taken {
        hypercalls: count(Counted::Hypercalls),
        notifications: count(Counted::Notifications),
        hits: count(Counted::GrantHits),
        misses: count(Counted::GrantMisses),
    }
}

#[test]
fn frames_between_mapped_pages_take_no_hypercalls_but_for_events() {
    for header_channel in [true, false] {
        let config = Config { header_channel, ..Config::default() };
        let with = run(config);
        let without = run(Config { persistent_grants: false, ..config });
        assert!(with.hits >= u64::from(2 * FRAMES) && with.misses == 0);
        assert_eq!((without.hits, without.misses), (0, 0));
        // At least one batch of copies per frame, and two if the header is fetched.
        let copies = u64::from(2 * FRAMES) * if header_channel { 1 } else { 2 };
        assert!(without.hypercalls - without.notifications >= copies);
        assert_eq!(with.hypercalls, with.notifications);
        let each = |taken: &Taken| taken.hypercalls as f64 / f64::from(2 * FRAMES);
        println!("hypercalls a frame: {} with, {} without", each(&with), each(&without));
        assert!(each(&with) < each(&without) * 0.75);
    }
}

/// Santos et al. (2008, §4.4) expect that nearly every packet finds its page, because pages of a ring cycle.
#[test]
fn in_steady_state_nearly_every_page_is_found_mapped() {
    for (reuse, tx) in [
        (GrantReuse::Agreed, TxChannel::Header),
        (GrantReuse::Agreed, TxChannel::Remap),
        (GrantReuse::OnDemand, TxChannel::Header),
        (GrantReuse::OnDemand, TxChannel::Remap),
    ] {
        let host = Host::with_channels(1, 1, tx, RxChannel::Copy).reusing(reuse);
        let [mut a, mut b] = host.pair(Config::default());
        let mut exchange = |from: u32| {
            for n in from..from + FRAMES {
                let len = 60 + (n * 37 % 9000) as usize;
                cross(&mut a, &mut b, &frame(B, A, len, n));
                cross(&mut b, &mut a, &frame(A, B, len, n));
            }
            [&a, &b].map(Guest::grant_usage)
        };
        // Most pages of the rings are used for the first time here.
        let before = exchange(0);
        let meter = host.platform.meter();
        meter.switch(true);
        let after = exchange(FRAMES);
        meter.switch(false);
        // With `remap` and pages as agreed, each packet from the guest is mapped anew.
        let keeps_packets = tx == TxChannel::Header || reuse == GrantReuse::OnDemand;
        for (before, after) in before.into_iter().zip(after) {
            let packets = keeps_packets.then_some([before.tx, after.tx]);
            for [before, after] in packets.into_iter().chain([[before.rx, after.rx]]) {
                let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
                assert!(hits >= u64::from(FRAMES), "{reuse} {tx}: {hits} hits");
                assert!(
                    misses * 100 <= hits + misses,
                    "{reuse} {tx}: {misses} misses, {hits} hits"
                );
                assert_eq!(after.evictions, 0, "{reuse} {tx}");
                assert!(after.mapped > 0, "{reuse} {tx}");
            }
            assert!(after.tx.mapped + after.rx.mapped <= after.bound, "{reuse} {tx}");
            assert!(keeps_packets || after.tx.mapped == 0, "{reuse} {tx}: mapped for nothing");
        }
        let for_grants = meter.count(Counted::Hypercalls) - meter.count(Counted::Notifications);
        if (reuse, tx) == (GrantReuse::Agreed, TxChannel::Header) {
            assert_eq!(for_grants, 0, "hypercalls for {} frames", 2 * FRAMES);
        }
    }
}

#[test]
fn pages_go_and_come_back_while_frames_flow() {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(Config::default());
    let list: Vec<_> = a.queues[0]
        .tx
        .grefs()
        .iter()
        .map(|gref| GrefMapping { gref: gref.0, flags: GrefMapping::READ_ONLY, status: 0 })
        .collect();
    let pinned = a.domain.pinned();
    let count = |what| host.platform.meter().count(what);
    host.platform.meter().switch(true);
    for round in 0..5 {
        let control = a.frontend.control().unwrap();
        assert_eq!(control.size(0).unwrap(), usize::from(PERSISTENT));
        assert!(matches!(control.size(1), Err(ControlError::Refused(status::INVALID_PARAMETER))));
        assert!(control.remove(0, &list).unwrap().into_iter().all(|removed| removed));
        assert!(!control.remove(0, &list[..3]).unwrap().contains(&true));
        assert_eq!(a.domain.pinned(), pinned - list.len());
        let misses = count(Counted::GrantMisses);
        cross(&mut a, &mut b, &frame(B, A, 3000, round));
        assert_eq!(count(Counted::GrantMisses), misses + 1);
        let control = a.frontend.control().unwrap();
        control.add(0, &list).unwrap();
        assert!(matches!(
            control.add(0, &list[..1]),
            Err(ControlError::Refused(status::BUFFER_OVERFLOW))
        ));
        assert_eq!(a.domain.pinned(), pinned);
        cross(&mut a, &mut b, &frame(B, A, 3000, round));
        assert_eq!(count(Counted::GrantMisses), misses + 1);
    }
}

#[test]
fn a_guest_leaves_and_comes_back_and_nothing_stays_mapped() {
    let host = Host::new(2, 2);
    let config = Config { queues: 2, ..Config::default() };
    let mut a = host.guest("02:00:00:00:00:0a", config);
    for round in 0..5 {
        let mut b = host.guest("02:00:00:00:00:0b", config);
        assert!(b.domain.pinned() > 2 * usize::from(PERSISTENT));
        assert!(send(&mut b.queues[1], &frame(ALL, B, 2000, round)));
        wait_until("the broadcast", || a.queues.iter_mut().any(|queue| receive(queue).is_some()));
        host.datapath.detach(b.port.id());
        assert_eq!(b.domain.pinned(), 0, "a grant stays mapped");
        host.machine.destroy(b.domain.id());
        host.machine.store().forget(b.domain.id());
    }
}

/// Pages of two queues are mapped and unmapped while frames cross on all workers.
#[test]
fn frames_stay_whole_while_pages_come_and_go() {
    let host = Host::new(2, 1);
    let [mut a, mut b] = host.pair(Config::default());
    let (sent, received) = (a.queues[0].tx.grefs(), b.queues[0].rx.grefs());
    let list = |grefs: &[hypervisor::GrantRef], flags| -> Vec<_> {
        grefs.iter().map(|gref| GrefMapping { gref: gref.0, flags, status: 0 }).collect()
    };
    let (sent, received) = (list(sent, GrefMapping::READ_ONLY), list(received, 0));
    let Guest { queues: a_queues, frontend: a_frontend, .. } = &mut a;
    let Guest { queues: b_queues, frontend: b_frontend, .. } = &mut b;
    std::thread::scope(|scope| {
        for (frontend, list) in [(a_frontend, sent), (b_frontend, received)] {
            scope.spawn(move || {
                let control = frontend.control().unwrap();
                for _ in 0..40 {
                    // A page in use stays mapped, and is not added again.
                    let removed = control.remove(0, &list).unwrap();
                    let removed = list.iter().zip(removed).filter(|(_, removed)| *removed);
                    let again: Vec<_> = removed.map(|(entry, _)| *entry).collect();
                    control.add(0, &again).unwrap();
                }
            });
        }
        let frames: Vec<_> = (0..2000).map(|n| frame(B, A, 100 + n as usize, n)).collect();
        let mut next = 0;
        for bytes in &frames {
            wait_until("room", || {
                while let Some(got) = receive(&mut b_queues[0]) {
                    assert!(got == frames[next], "frame {next} differs");
                    next += 1;
                }
                send(&mut a_queues[0], bytes)
            });
        }
        wait_until("every frame", || {
            while let Some(got) = receive(&mut b_queues[0]) {
                assert!(got == frames[next], "frame {next} differs");
                next += 1;
            }
            next == frames.len()
        });
    });
    assert_eq!(a.queues[0].tx.take_errors() + b.queues[0].rx.take_errors(), 0);
}
