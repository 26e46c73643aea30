//! Ports in VLANs and isolated ports, beside a naive model.

use std::collections::BTreeSet;

use datapath::PortParts;
use port::{DropReason, Queue};
use proptest::prelude::*;
use switch::{MacAddr, Membership, Tagging, VlanId};

use crate::common::wait_until;
use crate::{ALL, Receiver, Sender, Switch, mac, refresh};

/// A port of the test.
struct Member {
    port: std::sync::Arc<datapath::Port>,
    sender: Sender,
    receiver: Receiver,
    membership: Membership,
}

fn vlan(number: u16) -> VlanId {
    VlanId::new(number).unwrap()
}

fn access(number: u16) -> Membership {
    Membership { tagging: Some(Tagging::Access(vlan(number))), isolated: false }
}

fn trunk(tagged: &[u16], native: Option<u16>) -> Membership {
    let tagged = tagged.iter().copied().map(vlan).collect();
    Membership {
        tagging: Some(Tagging::Trunk { tagged, native: native.map(vlan) }),
        isolated: false,
    }
}

fn isolated(membership: Membership) -> Membership {
    Membership { isolated: true, ..membership }
}

fn attach(switch: &Switch, memberships: &[Membership]) -> Vec<Member> {
    let attach = |(n, membership): (u8, &Membership)| {
        let ((sender, ingress), (receiver, egress)) = (Sender::new(), Receiver::new());
        let given = (*membership != Membership::default()).then(|| membership.clone());
        let queues = vec![Queue { ingress, egress }];
        let parts = PortParts { queues, ..PortParts::default() };
        let port = switch.datapath.attach_member(&format!("port{n}"), parts, given);
        switch.datapath.teach(port.id(), MacAddr(mac(n))).unwrap();
        Member { port, sender, receiver, membership: membership.clone() }
    };
    let members = (0..).zip(memberships).map(attach).collect();
    refresh(&switch.datapath);
    members
}

/// A frame with these tags.
fn frame(to: [u8; 6], from: u8, tags: &[u16]) -> Vec<u8> {
    let mut bytes = [to, mac(from)].concat();
    for tag in tags {
        bytes.extend([0x81, 0x00]);
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]);
    bytes.extend(vec![7; 300]);
    bytes
}

/// The model: the VLAN that a port's frame is in, and its tags without that of the VLAN.
fn classify(membership: &Membership, tags: &[u16]) -> Option<(u16, Vec<u16>)> {
    match (&membership.tagging, tags) {
        (None, _) => Some((0, tags.to_vec())),
        (Some(Tagging::Access(vlan)), []) => Some((vlan.number(), Vec::new())),
        (Some(Tagging::Access(_)), _) => None,
        (Some(Tagging::Trunk { native, .. }), []) => Some((native.as_ref()?.number(), Vec::new())),
        (Some(Tagging::Trunk { tagged, .. }), [first, rest @ ..]) => {
            tagged.contains(*first).then(|| (*first, rest.to_vec()))
        }
    }
}

/// The model: the tags with which a frame leaves by a port, if it may.
fn leave(membership: &Membership, vlan: u16, inner: &[u16]) -> Option<Vec<u16>> {
    match &membership.tagging {
        None => (vlan == 0).then(|| inner.to_vec()),
        Some(Tagging::Access(own)) => (own.number() == vlan && inner.is_empty()).then(Vec::new),
        Some(Tagging::Trunk { native: Some(native), .. }) if native.number() == vlan => {
            inner.is_empty().then(Vec::new)
        }
        Some(Tagging::Trunk { tagged, .. }) => {
            tagged.contains(vlan).then(|| [&[vlan], inner].concat())
        }
    }
}

fn any_membership() -> impl Strategy<Value = Membership> {
    let vlans = || prop::sample::select(vec![10u16, 20, 30]);
    let tagging = prop_oneof![
        Just(Membership::default()),
        vlans().prop_map(access),
        (prop::collection::btree_set(vlans(), 1..3), prop::option::of(vlans())).prop_map(
            |(tagged, native): (BTreeSet<u16>, _)| {
                trunk(&tagged.into_iter().collect::<Vec<_>>(), native)
            }
        ),
    ];
    (tagging, any::<bool>())
        .prop_map(|(membership, isolated)| Membership { isolated, ..membership })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Every frame reaches the ports that the model says, with the tags that it says, and no other port.
    #[test]
    fn frames_go_where_the_model_says(
        memberships in prop::collection::vec(any_membership(), 2..6),
        frames in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::option::of(any::<prop::sample::Index>()),
             prop::collection::vec(prop::sample::select(vec![10u16, 20, 30, 40]), 0..3)),
            1..30),
    ) {
        let switch = Switch::new(1);
        let members = attach(&switch, &memberships);
        for (from, to, tags) in frames {
            let from = from.index(members.len());
            let to = to.map(|to| to.index(members.len()));
            let number = u8::try_from(from).unwrap();
            let address = to.map_or(ALL, |to| mac(u8::try_from(to).unwrap()));
            let before = members[from].sender.answers().len();
            members[from].sender.send(frame(address, number, &tags));
            wait_until("an answer", || members[from].sender.answers().len() > before);
            let sender = &members[from].membership;
            let classified = classify(sender, &tags);
            // An address that the domain knows gets it alone; a native VLAN that is tagged too is in one domain.
            let is_in = |one: &Membership, vlan| match &one.tagging {
                None => vlan == 0,
                Some(Tagging::Access(own)) => own.number() == vlan,
                Some(Tagging::Trunk { tagged, native }) => {
                    tagged.contains(vlan) || native.is_some_and(|native| native.number() == vlan)
                }
            };
            for (n, member) in members.iter().enumerate() {
                let expected = classified.as_ref().and_then(|(vlan, inner)| {
                    let known = to.filter(|to| is_in(&members[*to].membership, *vlan));
                    let reached = known.is_none_or(|to| to == n) && known != Some(from);
                    let apart = sender.isolated && member.membership.isolated;
                    let both = n != from && reached && !apart && is_in(&member.membership, *vlan);
                    both.then(|| leave(&member.membership, *vlan, inner)).flatten()
                });
                let expected: Vec<_> =
                    expected.iter().map(|tags| frame(address, number, tags)).collect();
                prop_assert_eq!(member.receiver.take(), expected, "port {} from {} tags {:?}", n, from, tags);
            }
        }
    }
}

#[test]
fn a_frame_of_a_vlan_that_is_not_the_ports_is_counted() {
    let switch = Switch::new(1);
    let members = attach(&switch, &[access(10), access(10)]);
    members[0].sender.send(frame(mac(1), 0, &[10]));
    members[0].sender.send(frame(mac(1), 0, &[]));
    wait_until("the answers", || members[0].sender.answers().len() == 2);
    assert_eq!(members[0].port.counters().snapshot().dropped(DropReason::Vlan), 1);
    assert_eq!(members[1].receiver.take(), [frame(mac(1), 0, &[])]);
}

#[test]
fn a_frame_that_reaches_no_port_of_its_vlan_or_no_open_one_is_counted() {
    let unknown = [2, 0, 0, 0, 9, 9];
    for memberships in [
        [access(10), access(20), trunk(&[20, 30], None)],
        [isolated(access(10)), isolated(access(10)), access(20)],
        [isolated(Membership::default()), isolated(Membership::default()), access(20)],
    ] {
        let switch = Switch::new(1);
        let members = attach(&switch, &memberships);
        for to in [unknown, ALL] {
            members[0].sender.send(frame(to, 0, &[]));
        }
        wait_until("the answers", || members[0].sender.answers().len() == 2);
        assert_eq!(members[0].port.counters().snapshot().dropped(DropReason::NoPort), 1);
        assert!(members.iter().all(|member| member.receiver.count() == 0));
    }
}

#[test]
fn an_address_is_learnt_in_its_vlan_only() {
    let switch = Switch::new(1);
    let members = attach(&switch, &[access(10), access(10), access(20), access(20)]);
    let station = [2, 0, 0, 0, 9, 9];
    let from = |to: [u8; 6]| [&to[..], &station, &[0x88, 0xb5], &[7; 50]].concat();
    members[0].sender.send(from(mac(1)));
    members[2].sender.send(from(mac(3)));
    wait_until("both", || members[1].receiver.count() == 1 && members[3].receiver.count() == 1);
    let entries = switch.datapath.addresses();
    let mut of_station: Vec<_> = entries.iter().filter(|one| one.mac.0 == station).collect();
    of_station.sort_by_key(|one| one.vlan);
    let places: Vec<_> = of_station.iter().map(|one| (one.vlan, one.port)).collect();
    assert_eq!(places, [(10, members[0].port.id()), (20, members[2].port.id())]);
}

#[test]
fn a_port_that_leaves_a_vlan_gets_none_of_its_frames() {
    let switch = Switch::new(2);
    let members = attach(&switch, &[access(10), access(10), isolated(Membership::default())]);
    members[1].sender.send(frame(mac(0), 1, &[]));
    wait_until("a frame", || members[0].receiver.count() == 1);
    switch.datapath.set_member(members[1].port.id(), Some(access(20)));
    for to in [mac(1), ALL] {
        let before = members[0].sender.answers().len();
        members[0].sender.send(frame(to, 0, &[]));
        wait_until("an answer", || members[0].sender.answers().len() > before);
    }
    assert_eq!(members[1].receiver.count(), 0);
    assert_eq!(members[2].receiver.count(), 0);
    // Back, and out of all VLANs.
    switch.datapath.set_member(members[1].port.id(), Some(access(10)));
    members[0].sender.send(frame(ALL, 0, &[]));
    wait_until("a frame", || members[1].receiver.count() == 1);
    for member in &members {
        switch.datapath.set_member(member.port.id(), None);
    }
    members[0].sender.send(frame(ALL, 0, &[10]));
    wait_until("frames", || members[2].receiver.count() == 1 && members[1].receiver.count() == 2);
}
