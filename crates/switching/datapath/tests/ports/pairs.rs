//! Ports outside of the switch, in pairs.

use datapath::{Datapath, PortParts};
use port::{DropReason, Egress, Outcome, Queue};
use switch::{Membership, Tagging, VlanId};

use crate::common::{frame, wait_until};
use crate::{ALL, Plugged, Receiver, Sender, Switch, lockstep, mac, plain, refresh};

/// A group address that no bridge forwards.
const LINK_LOCAL: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 2];

/// Attaches a port outside of the switch.
fn apart(datapath: &Datapath, n: u8, receiver: (Receiver, Box<dyn Egress>)) -> Plugged<Receiver> {
    let ((sender, ingress), (handle, egress)) = (Sender::new(), receiver);
    let queues = vec![Queue { ingress, egress }];
    let parts = PortParts { queues, ..PortParts::default() };
    let port = datapath.attach_apart(&format!("apart{n}"), parts, None);
    Plugged { port, mac: mac(n), sender, egress: handle }
}

fn pair(datapath: &Datapath, numbers: [u8; 2]) -> [Plugged<Receiver>; 2] {
    let both = numbers.map(|n| apart(datapath, n, Receiver::new()));
    datapath.pair(&both[0].port, &both[1].port);
    refresh(datapath);
    both
}

#[test]
fn a_port_of_a_pair_and_the_switch_have_nothing_in_common() {
    for workers in [1, 2] {
        let switch = Switch::new(workers);
        let [red, blue] = [0, 1].map(|n| plain(&switch.datapath, n));
        let [guest, tap] = pair(&switch.datapath, [2, 3]);
        // For everybody, for nobody, for a port of the switch, to itself, and with another's address.
        let unknown = [2, 0, 0, 0, 9, 9];
        let destinations = [ALL, LINK_LOCAL, unknown, blue.mac, guest.mac];
        let sent: Vec<_> = destinations.iter().map(|to| frame(*to, red.mac, 300, 7)).collect();
        for (from, to) in [(&guest, &tap), (&tap, &guest)] {
            sent.iter().for_each(|bytes| from.sender.send(bytes));
            wait_until("all frames", || to.egress.count() == sent.len());
            assert_eq!(to.egress.take(), sent);
            wait_until("the answers", || from.sender.answers().len() == sent.len());
            assert_eq!(from.port.counters().snapshot().ingress_frames, sent.len() as u64);
        }
        // What the switch floods does not reach the pair.
        red.sender.send(frame(ALL, red.mac, 300, 8));
        red.sender.send(frame(unknown, red.mac, 300, 9));
        wait_until("flooded frames", || blue.egress.count() == 2);
        blue.sender.send(frame(red.mac, blue.mac, 60, 10));
        wait_until("a frame for red", || red.egress.count() == 1);
        assert_eq!([&guest, &tap].map(|port| port.egress.count()), [0; 2]);
        let addresses: Vec<_> =
            switch.datapath.addresses().iter().map(|entry| entry.port).collect();
        let is_of_pair = |id| [&guest, &tap].iter().any(|port| port.port.id() == id);
        assert!(!addresses.into_iter().any(is_of_pair), "nothing was learnt");
    }
}

/// VLANs are the switch's: a pair has none, and neither an isolated port nor one in a VLAN sees its frames.
#[test]
fn a_pair_and_the_vlans_have_nothing_in_common() {
    let switch = Switch::new(2);
    let vlan = |isolated| Membership {
        tagging: Some(Tagging::Access(VlanId::new(10).unwrap())),
        isolated,
    };
    let [red, blue] = [(0, vlan(false)), (1, vlan(true))].map(|(n, member)| {
        let port = plain(&switch.datapath, n);
        switch.datapath.set_member(port.port.id(), Some(member));
        port
    });
    let [guest, tap] = pair(&switch.datapath, [2, 3]);
    // It is in no VLAN, whoever wants it there.
    switch.datapath.set_member(guest.port.id(), Some(vlan(false)));
    refresh(&switch.datapath);
    let mut tagged = frame(ALL, guest.mac, 300, 1);
    tagged.splice(12..12, [0x81, 0, 0, 10]);
    let sent = [frame(ALL, guest.mac, 300, 2), frame(red.mac, blue.mac, 300, 3), tagged];
    for (from, to) in [(&guest, &tap), (&tap, &guest)] {
        sent.iter().for_each(|bytes| from.sender.send(bytes));
        wait_until("all frames", || to.egress.count() == sent.len());
        assert_eq!(to.egress.take(), sent);
    }
    red.sender.send(frame(ALL, red.mac, 300, 4));
    wait_until("the VLAN's frame", || blue.egress.count() == 1);
    assert_eq!([&red, &guest, &tap].map(|port| port.egress.count()), [0; 3]);
}

#[test]
fn the_number_of_a_lost_peer_goes_to_a_port_that_gets_none_of_the_frames() {
    let switch = Switch::new(1);
    let [guest, tap] = pair(&switch.datapath, [0, 1]);
    let number = tap.port.id();
    switch.datapath.detach(number);
    for in_switch in [true, false] {
        let other = match in_switch {
            true => plain(&switch.datapath, 2),
            false => apart(&switch.datapath, 2, Receiver::new()),
        };
        refresh(&switch.datapath);
        assert_eq!(other.port.id(), number);
        let before = guest.sender.answers().len();
        (0..100).for_each(|n| guest.sender.send(frame(other.mac, guest.mac, 300, n)));
        wait_until("the answers", || guest.sender.answers().len() == before + 100);
        let nowhere = Outcome::Dropped(DropReason::NotForwarded);
        assert!(guest.sender.answers().iter().all(|(_, outcome)| *outcome == nowhere));
        assert_eq!(other.egress.count(), 0);
        if !in_switch {
            // A new device takes the place of the one that was deleted.
            switch.datapath.pair(&guest.port, &other.port);
            guest.sender.send(frame(other.mac, guest.mac, 300, 1));
            wait_until("the frame", || other.egress.count() == 1);
        }
        switch.datapath.detach(other.port.id());
    }
}

/// Ports of the switch have no peer: the lookup decides.
#[test]
fn a_port_of_the_switch_cannot_be_paired() {
    let switch = Switch::new(1);
    let [red, blue, green] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    switch.datapath.pair(&red.port, &blue.port);
    red.sender.send(frame(green.mac, red.mac, 300, 1));
    wait_until("the frame", || green.egress.count() == 1);
    assert_eq!(blue.egress.count(), 0);
}

/// One worker has two guests with a device each. The first guest takes no frame. Each round brings all of the other's frames to
/// it, as if the first one were not there, and the first one's wait where only it can be held back.
#[test]
fn a_guest_that_takes_no_frames_delays_no_other_guest() {
    const ROUNDS: usize = 50;
    let (datapath, mut worker) = lockstep();
    let stalled =
        [apart(&datapath, 0, Receiver::with_room(0)), apart(&datapath, 1, Receiver::new())];
    let other = [2, 3].map(|n| apart(&datapath, n, Receiver::new()));
    for [guest, tap] in [&stalled, &other] {
        datapath.pair(&guest.port, &tap.port);
    }
    let mut number = 0;
    for round in 1..=ROUNDS {
        for _ in 0..32 {
            for [guest, tap] in [&stalled, &other] {
                tap.sender.send(frame(guest.mac, tap.mac, 300, number));
                guest.sender.send(frame(tap.mac, guest.mac, 300, number));
            }
            number += 1;
        }
        assert!(worker.run());
        let [guest, tap] = &other;
        assert_eq!([guest.egress.count(), tap.egress.count()], [32 * round; 2]);
        // It can still send.
        assert_eq!(stalled[1].egress.count(), 32 * round);
    }
    let [guest, tap] = &stalled;
    assert_eq!(guest.egress.count(), 0);
    guest.egress.make_room(usize::MAX >> 1);
    tap.sender.send(frame(guest.mac, tap.mac, 300, number));
    wait_until("a frame for it", || worker.run() && guest.egress.count() > 0);
}
