//! Messages as they lie in frames, and the memberships that they make, beside what must hold for all of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use wire::ethernet::MacAddr;

use super::address::Family;
use super::groups::Domain;
use super::message::{GroupChange, Message, message};
use super::state::{Origin, State};
use super::*;

const V4: Domain = Domain { vlan: 0, family: Family::V4 };
const ALL_HOSTS: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

fn group(n: u16) -> MacAddr {
    let [high, low] = n.to_be_bytes();
    MacAddr([1, 0, 0x5e, 1, high, low])
}

/// A frame of these headers; of one that is longer than `shown`, only the first bytes are in the private header.
fn frame(parts: &[&[u8]]) -> Frame {
    let bytes = parts.concat();
    let mut frame = Frame::empty();
    let shown = bytes.len().min(frame::HEADER_MAX);
    frame.bytes[..shown].copy_from_slice(&bytes[..shown]);
    frame.header_len = u8::try_from(shown).unwrap();
    frame.len = u32::try_from(bytes.len()).unwrap();
    frame.parse_headers().unwrap();
    frame
}

fn igmp(to: [u8; 6], body: &[u8]) -> Frame {
    let total = u16::try_from(24 + body.len()).unwrap().to_be_bytes();
    let ip =
        [0x46, 0xc0, total[0], total[1], 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 0, 0, 1, 224, 0, 0, 22];
    frame(&[&to, &[2, 0, 0, 0, 0, 1], &[8, 0], &ip, &[0x94, 4, 0, 0], body])
}

fn mld(to: [u8; 6], body: &[u8]) -> Frame {
    let len = u16::try_from(8 + body.len()).unwrap().to_be_bytes();
    let ip = [&[0x60, 0, 0, 0, len[0], len[1], 0, 1][..], &[0xfe; 16], &[0xff; 16]].concat();
    frame(&[&to, &[2, 0, 0, 0, 0, 1], &[0x86, 0xdd], &ip, &[58, 0, 5, 2, 0, 0, 1, 0], body])
}

fn report(changes: &[(MacAddr, GroupChange)], is_complete: bool) -> Option<Message> {
    Some(Message::Report { changes: changes.iter().copied().collect(), is_complete })
}

#[test]
fn messages_of_igmp() {
    use GroupChange::{Join, Leave};
    let of = |body: &[u8]| message(&igmp(ALL_HOSTS, body));
    let query = |general| Some(Message::Query { general });
    let [five, six] = [5, 6].map(group);
    for (body, expected) in [
        (&[0x11, 0, 0, 0, 0, 0, 0, 0][..], query(Some(10))),
        (&[0x11, 100, 0, 0, 0, 0, 0, 0], query(Some(10))),
        (&[0x11, 1, 0, 0, 0, 0, 0, 0], query(Some(1))),
        (&[0x11, 0xff, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0], query(Some(3175))),
        (&[0x11, 10, 0, 0, 239, 1, 0, 5], query(None)),
        (&[0x11], query(None)),
        (&[], query(None)),
        (&[0x12, 0, 0, 0, 239, 1, 0, 5], report(&[(five, Join)], true)),
        (&[0x16, 0, 0, 0, 239, 129, 0, 5], report(&[(five, Join)], true)),
        (&[0x17, 0, 0, 0, 239, 1, 0, 5], report(&[(five, Leave)], true)),
        (&[0x16, 0, 0, 0, 224, 0, 0, 251], report(&[], true)),
        (&[0x16, 0, 0, 0, 10, 1, 0, 5], report(&[], true)),
        (&[0x16, 0, 0, 0, 239], report(&[], true)),
        (&[0x13, 0, 0, 0, 0, 0, 0, 0], None),
    ] {
        assert_eq!(of(body), expected, "{body:?}");
    }
    let record = |kind, sources: u8, last| {
        [&[kind, 0, 0, sources, 239, 1, 0, last][..], &vec![9; 4 * usize::from(sources)]].concat()
    };
    let v3 = |count: u8, records: &[Vec<u8>]| {
        of(&[&[0x22, 0, 0, 0, 0, 0, 0, count][..], &records.concat()].concat())
    };
    let both = [record(2, 0, 5), record(3, 0, 6)];
    assert_eq!(v3(2, &both), report(&[(five, Join), (six, Leave)], true));
    let sources = [record(5, 2, 5), record(1, 1, 6), record(6, 1, 7), record(9, 0, 8)];
    assert_eq!(v3(4, &sources), report(&[(five, Join), (six, Join)], true));
    // Of 20 records, those behind the private header are not read.
    let many: Vec<_> = (0..20).map(|n| record(4, 0, n)).collect();
    let Some(Message::Report { changes, is_complete: false }) = v3(20, &many) else { panic!() };
    assert_eq!(changes.len(), (128 - 14 - 24 - 8) / 8);
    assert_eq!(v3(2, &[record(2, 200, 5), record(2, 0, 6)]), report(&[(five, Join)], false));
    assert_eq!(v3(9, &both[..1]), report(&[(five, Join)], false));
}

#[test]
fn messages_of_mld() {
    let of = |body: &[u8]| message(&mld([0x33, 0x33, 0, 0, 0, 1], body));
    let address = |last: [u8; 4]| [&[0xff, 5][..], &[0; 10], &last].concat();
    let mac = MacAddr([0x33, 0x33, 1, 2, 3, 4]);
    let fixed = |kind, delay: u16, address: &[u8]| {
        let [high, low] = delay.to_be_bytes();
        of(&[&[kind, 0, 0, 0, high, low, 0, 0][..], address].concat())
    };
    assert_eq!(fixed(130, 10_000, &[0; 16]), Some(Message::Query { general: Some(10) }));
    assert_eq!(fixed(130, 0xffff, &[0; 16]), Some(Message::Query { general: Some(8388) }));
    assert_eq!(fixed(130, 1, &address([1, 2, 3, 4])), Some(Message::Query { general: None }));
    assert_eq!(fixed(131, 0, &address([1, 2, 3, 4])), report(&[(mac, GroupChange::Join)], true));
    assert_eq!(fixed(132, 0, &address([1, 2, 3, 4])), report(&[(mac, GroupChange::Leave)], true));
    assert_eq!(fixed(131, 0, &address([0xff, 2, 3, 4])), report(&[], true), "a solicited node");
    assert_eq!(fixed(135, 0, &[0; 16]), None);
    let v2 = |count: u8, records: usize| {
        let record = [&[4, 0, 0, 0][..], &address([1, 2, 3, 4])].concat();
        of(&[&[143, 0, 0, 0, 0, 0, 0, count][..], &record.repeat(records)].concat())
    };
    assert_eq!(v2(2, 2), report(&[(mac, GroupChange::Join); 2], true));
    assert_eq!(v2(3, 3), report(&[(mac, GroupChange::Join); 2], false));
    // Extensions that go on behind the private header may hide a query.
    let ip = [&[0x60, 0, 0, 0, 1, 0, 0, 1][..], &[0xfe; 16], &[0xff; 16]].concat();
    let options = [&[58, 20][..], &[0; 240]].concat();
    let hidden = frame(&[&[0x33, 0x33, 0, 0, 0, 1], &[2; 6], &[0x86, 0xdd], &ip, &options]);
    assert_eq!(message(&hidden), Some(Message::Query { general: None }));
}

/// A frame that has just come from a port, in no VLAN.
fn arrival<'a>(port: u16, frame: &'a Frame, ports: &'a PortSet) -> Arrival<'a, 'a> {
    Arrival { frame, port: PortId(port), vlan: 0, ports, is_fresh: true, now: 0 }
}

/// Hosts accept these addresses: they would answer the query, and not repeat the report.
#[test]
fn a_message_counts_at_the_address_of_any_group() {
    let snooping = Snooping::default();
    snooping.set_router(ROUTER, Router::Always);
    let (groups, ports) = (snooping.groups(), (0..4).map(PortId).collect::<PortSet>());
    let route = |port, frame: &Frame| snooping.route(&groups, arrival(port, frame, &ports));
    for to in [[0xff; 6], [1, 0x80, 0xc2, 0, 0, 0x20], [0x33, 0x33, 0, 0, 0, 1], ALL_HOSTS] {
        let query = igmp(to, &[0x11, 100, 0, 0, 0, 0, 0, 0]);
        assert!(matches!(route(1, &query), Reach::Nowhere), "{to:?}");
        assert!(matches!(route(ROUTER.0, &query), Reach::All), "{to:?}");
        let report = igmp(to, &[0x16, 0, 0, 0, 239, 1, 0, 5]);
        let reach = route(1, &report);
        let takes = [0, 1, 2, 3].map(|port| reach.takes(PortId(port)));
        assert_eq!(takes, [true, false, false, false], "{to:?}");
    }
    let other = frame(&[&[0xff; 6], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 46]]);
    assert!(matches!(route(1, &other), Reach::All));
}

/// Linux takes a message in such a frame, whatever the address of its packet.
#[test]
fn a_message_to_one_station_goes_where_it_may_and_asks_nobody_else() {
    let snooping = Snooping::default();
    snooping.set_router(ROUTER, Router::Always);
    let ports = (0..4).map(PortId).collect::<PortSet>();
    let route = |port, frame: &Frame| {
        let groups = snooping.groups();
        let reach = snooping.route_unicast(&groups, arrival(port, frame, &ports));
        reach.map(|reach| [0, 1, 2, 3].map(|port| reach.takes(PortId(port))))
    };
    const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
    let query = igmp(STATION, &[0x11, 100, 0, 0, 0, 0, 0, 0]);
    assert_eq!(route(1, &query), Some([false; 4]), "the router itself would fall silent");
    assert_eq!(route(ROUTER.0, &query), Some([true; 4]));
    let of_mld = [&[130, 0, 0, 0, 0, 1, 0, 0][..], &[0; 16]].concat();
    assert_eq!(route(1, &mld(STATION, &of_mld)), Some([false; 4]));
    // A host of version 2 that sees it keeps its own report back.
    let report = igmp(STATION, &[0x16, 0, 0, 0, 239, 1, 0, 5]);
    assert_eq!(route(1, &report), Some([true, false, false, false]));
    assert_eq!(snooping.counts().members, 1, "it counts for the port that has sent it");
    let solicitation = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0; 16]].concat();
    assert_eq!(route(1, &mld(STATION, &solicitation)), None);

    // Two queries to a group prune those that do not answer; of two to one station the others know nothing.
    for _ in 0..3 {
        route(ROUTER.0, &query);
    }
    snooping.sweep(1000);
    let groups = snooping.groups();
    assert!(groups.reach(V4, group(7)).takes(PortId(2)));
}

/// Segment routing has such extensions.
#[test]
fn a_packet_with_long_extensions_is_no_query_unless_hosts_would_take_it() {
    let with_hop_limit = |hops| {
        let ip = [&[0x60, 0, 0, 0, 1, 0, 43, hops][..], &[0xfe; 16], &[0xfe; 16]].concat();
        let routing = [&[6, 20][..], &[0; 240]].concat();
        message(&frame(&[&[2; 6], &[2, 0, 0, 0, 0, 1], &[0x86, 0xdd], &ip, &routing]))
    };
    assert_eq!(with_hop_limit(1), Some(Message::Query { general: None }));
    assert_eq!(with_hop_limit(64), None);
}

/// The ports among `ports` that get a group.
fn reached(state: &State, group: MacAddr, ports: &PortSet) -> BTreeSet<u16> {
    let groups = state.groups();
    let reach = groups.reach(V4, group);
    ports.iter().filter(|port| reach.takes(*port)).map(|port| port.0).collect()
}

const ROUTER: PortId = PortId(0);

/// A router and three hosts, asked twice by second 200.
fn asked() -> (State, PortSet) {
    let (mut state, ports) = (State::default(), (0..4).map(PortId).collect());
    state.set_router(ROUTER, Router::Always);
    for now in [50, 150] {
        query(&mut state, ROUTER, &ports, now);
    }
    state.sweep(200);
    (state, ports)
}

fn origin(port: PortId) -> Origin {
    Origin { domain: V4, port }
}

fn query(state: &mut State, from: PortId, ports: &PortSet, now: u32) {
    state.note(origin(from), &Message::Query { general: Some(10) }, ports, now);
}

fn say(state: &mut State, from: u16, changes: &[(MacAddr, GroupChange)], now: u32) -> bool {
    let message = report(changes, true).unwrap();
    state.note(origin(PortId(from)), &message, &PortSet::default(), now)
}

#[test]
fn a_group_goes_to_its_members_and_routers_once_all_were_asked() {
    let (mut state, ports) = (State::default(), (0..4).map(PortId).collect());
    state.set_router(ROUTER, Router::Always);
    assert!(say(&mut state, 1, &[(group(1), GroupChange::Join)], 0));
    state.sweep(1000);
    assert_eq!(reached(&state, group(1), &ports), [0, 1, 2, 3].into(), "nobody has asked");
    for now in [2000, 2100] {
        query(&mut state, ROUTER, &ports, now);
        say(&mut state, 1, &[(group(1), GroupChange::Join)], now + 5);
    }
    assert!(!state.sweep(2105) && state.sweep(2111));
    assert_eq!(reached(&state, group(1), &ports), [0, 1].into());
    assert_eq!(reached(&state, group(2), &ports), [0].into());
    assert_eq!(reached(&state, MacAddr([1, 0, 0x5e, 0, 0, 9]), &ports).len(), 4);
    assert!(say(&mut state, 2, &[(group(1), GroupChange::Join)], 2200));
    assert_eq!(reached(&state, group(1), &ports), [0, 1, 2].into());
    // A new port may be a member of anything.
    let more: PortSet = (0..5).map(PortId).collect();
    assert_eq!(reached(&state, group(1), &more), [0, 1, 2, 4].into());
    // Two queries without an answer.
    for now in [2300, 2400] {
        query(&mut state, ROUTER, &ports, now);
        say(&mut state, 2, &[(group(1), GroupChange::Join)], now + 5);
    }
    state.sweep(2411);
    assert_eq!(reached(&state, group(1), &ports), [0, 2].into());
    // Without a querier, nobody is dropped.
    state.sweep(1_000_000);
    assert_eq!(reached(&state, group(1), &ports), [0, 2].into());
}

#[test]
fn queries_in_one_second_count_once() {
    let (mut state, ports) = (State::default(), (0..4).map(PortId).collect());
    state.set_router(ROUTER, Router::Always);
    (0..100).for_each(|_| query(&mut state, ROUTER, &ports, 50));
    state.sweep(1000);
    assert_eq!(reached(&state, group(1), &ports).len(), 4);
    query(&mut state, ROUTER, &ports, 51);
    state.sweep(1000);
    assert_eq!(reached(&state, group(1), &ports), [0].into());
}

#[test]
fn a_leave_counts_for_its_port_and_can_be_answered() {
    let (mut state, ports) = asked();
    for port in [1, 2] {
        say(&mut state, port, &[(group(1), GroupChange::Join)], 300);
    }
    say(&mut state, 3, &[(group(1), GroupChange::Leave)], 301);
    say(&mut state, 1, &[(group(1), GroupChange::Leave)], 301);
    state.sweep(303);
    assert_eq!(reached(&state, group(1), &ports), [0, 1, 2].into());
    say(&mut state, 1, &[(group(1), GroupChange::Join)], 303);
    state.sweep(400);
    assert_eq!(reached(&state, group(1), &ports), [0, 1, 2].into(), "another host behind it");
    say(&mut state, 1, &[(group(1), GroupChange::Leave)], 401);
    state.sweep(404);
    assert_eq!(reached(&state, group(1), &ports), [0, 2].into());
}

#[test]
fn who_exceeds_a_limit_gets_everything_and_takes_nothing() {
    let (mut state, ports) = asked();
    say(&mut state, 1, &[(group(9999), GroupChange::Join)], 300);
    // Joins as fast as it can, and then as many as it may.
    for n in 0..CHANGES_PER_SECOND * 4 + 1 {
        say(&mut state, 2, &[(group(u16::try_from(n).unwrap()), GroupChange::Join)], 300);
    }
    assert_eq!(state.counts().refused, 1);
    assert_eq!(reached(&state, group(500), &ports), [0, 2].into());
    assert_eq!(state.counts().members, 1 + GROUPS_PER_PORT);
    for n in 0..10_000 {
        say(&mut state, 2, &[(group(n), GroupChange::Join)], 1000 + u32::from(n));
    }
    assert_eq!(state.counts().members, 1 + GROUPS_PER_PORT);
    assert_eq!(reached(&state, group(9999), &ports), [0, 1, 2].into());
    // Many of its kind fill the table; others lose nothing.
    for port in 10..60 {
        for n in 0..64 {
            say(&mut state, port, &[(group(port * 64 + n), GroupChange::Join)], 20_000);
        }
    }
    assert_eq!(state.counts().groups, GROUPS_MAX);
    say(&mut state, 3, &[(group(60_000), GroupChange::Join)], 20_000);
    assert!(reached(&state, group(60_000), &ports).contains(&3));
    state.forget(PortId(2), true);
    assert!(state.counts().groups < GROUPS_MAX);
    assert!(!reached(&state, group(9998), &ports).contains(&1));
}

#[test]
fn a_report_that_goes_on_behind_the_header_has_its_port_get_everything() {
    let (mut state, ports) = asked();
    let message = report(&[(group(1), GroupChange::Join)], false).unwrap();
    assert!(state.note(origin(PortId(2)), &message, &ports, 300));
    assert_eq!(reached(&state, group(7), &ports), [0, 2].into());
    for now in [400, 500] {
        query(&mut state, ROUTER, &ports, now);
    }
    state.sweep(600);
    assert_eq!(reached(&state, group(7), &ports), [0].into());
}

#[test]
fn routers_are_learnt_where_they_may_be() {
    let (mut state, ports) = asked();
    let may = |state: &State, port| state.groups().may_query(PortId(port));
    assert!(may(&state, 0) && !may(&state, 1));
    query(&mut state, PortId(1), &ports, 300);
    assert_eq!(reached(&state, group(1), &ports), [0].into(), "a guest is no router");
    state.set_router(PortId(1), Router::Learnt);
    assert!(may(&state, 1));
    query(&mut state, PortId(1), &ports, 300);
    assert_eq!(reached(&state, group(1), &ports), [0, 1].into());
    assert!(state.groups().routers(V4).takes(PortId(1)));
    assert!(!state.sweep(554) && state.sweep(555));
    assert_eq!(reached(&state, group(1), &ports), [0].into());
    state.set_router(ROUTER, Router::Never);
    state.reset();
    assert_eq!(reached(&state, group(1), &ports).len(), 4);
}

/// What a port does in a step.
#[derive(Clone, Debug)]
enum Step {
    Say(u16, u16, GroupChange),
    Truncated(u16),
    Query(u16),
    Pause(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let change = prop_oneof![3 => Just(GroupChange::Join), 1 => Just(GroupChange::Leave)];
    prop_oneof![
        6 => (0u16..4, 0u16..4, change).prop_map(|(port, group, change)| Step::Say(port, group, change)),
        1 => (1u16..4).prop_map(Step::Truncated),
        2 => (0u16..4).prop_map(Step::Query),
        2 => (1u32..200).prop_map(Step::Pause),
    ]
}

/// Runs the steps of some ports, and returns which ports get which group after each.
fn run(steps: &[Step], takes_part: impl Fn(u16) -> bool) -> Vec<Vec<BTreeSet<u16>>> {
    let (mut state, ports) = asked();
    let mut now = 300;
    let after = |step: &Step| {
        match step {
            Step::Say(port, n, change) if takes_part(*port) => {
                say(&mut state, *port, &[(group(*n), *change)], now);
            }
            Step::Truncated(port) if takes_part(*port) => {
                let message = report(&[], false).unwrap();
                state.note(origin(PortId(*port)), &message, &ports, now);
            }
            Step::Query(port) if takes_part(*port) => query(&mut state, PortId(*port), &ports, now),
            Step::Pause(seconds) => now += seconds,
            _ => {}
        }
        state.sweep(now);
        (0..4).map(|n| reached(&state, group(n), &ports)).collect()
    };
    steps.iter().map(after).collect()
}

proptest! {
    /// Whatever port 3 does, the others get what they get without it.
    #[test]
    fn no_port_changes_what_others_get(steps in prop::collection::vec(any_step(), 1..100)) {
        let others = |all: Vec<Vec<BTreeSet<u16>>>| -> Vec<Vec<BTreeSet<u16>>> {
            let without = |set: BTreeSet<u16>| set.into_iter().filter(|port| *port != 3).collect();
            all.into_iter().map(|sets| sets.into_iter().map(without).collect()).collect()
        };
        prop_assert_eq!(others(run(&steps, |_| true)), others(run(&steps, |port| port != 3)));
    }

    /// A port that has joined a group, and has not left it, gets it until two queries stay unanswered.
    #[test]
    fn members_get_their_groups(steps in prop::collection::vec(any_step(), 1..100)) {
        let mut unanswered: BTreeMap<(u16, u16), u32> = BTreeMap::new();
        for (step, sets) in steps.iter().zip(run(&steps, |_| true)) {
            match step {
                Step::Say(port, group, GroupChange::Join) => _ = unanswered.insert((*port, *group), 0),
                Step::Say(port, group, GroupChange::Leave) => _ = unanswered.remove(&(*port, *group)),
                Step::Query(0) => unanswered.values_mut().for_each(|count| *count += 1),
                _ => {}
            }
            for ((port, group), _) in unanswered.iter().filter(|(_, count)| **count < 2) {
                prop_assert!(sets[usize::from(*group)].contains(port), "port {port}, group {group}");
            }
            // The router gets all.
            prop_assert!(sets.iter().all(|set| set.contains(&0)));
        }
    }

    /// No frame makes it panic.
    #[test]
    fn any_bytes_are_read(
        ip in prop::sample::select(vec![[0x08, 0x00], [0x86, 0xdd]]),
        start in prop::sample::select(vec![0x45u8, 0x46, 0x4f, 0x60]),
        mut bytes in prop::collection::vec(any::<u8>(), 40..300),
        proto in prop::sample::select(vec![0u8, 2, 44, 58]),
    ) {
        bytes[0] = start;
        bytes[if ip[0] == 8 { 9 } else { 6 }] = proto;
        let parts = [&[0x33, 0x33, 0, 0, 0, 1], &[2u8; 6][..], &ip, &bytes].concat();
        let mut frame = Frame::empty();
        let shown = parts.len().min(frame::HEADER_MAX);
        frame.bytes[..shown].copy_from_slice(&parts[..shown]);
        frame.header_len = u8::try_from(shown).unwrap();
        frame.len = u32::try_from(parts.len()).unwrap();
        if frame.parse_headers().is_ok() {
            let _ = message(&frame);
        }
    }
}
