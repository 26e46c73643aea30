//! Interfaces that are deleted while their frames are read.

use super::network::{in_own_network, ip};
use crate::tap::{Tap, TapOffload, TapQueue};
use crate::{Macvtap, packet};

/// A queue of each kind on `nic0`.
fn queues() -> Vec<TapQueue> {
    ip("link add nic0 type veth peer name pv0");
    let mut queues = packet::open("nic0", 1).unwrap();
    ip("link add link nic0 name mv0 type macvtap mode passthru");
    queues.extend(Macvtap::open("mv0", 1, TapOffload::ALL).unwrap());
    queues.extend(Tap::open("tap0", 1, TapOffload::ALL).unwrap());
    queues
}

#[test]
fn every_kind_of_queue_tells_a_deleted_interface_from_one_that_is_down() {
    in_own_network(|| {
        let queues = queues();
        let deleted = || queues.iter().map(TapQueue::is_deleted).collect::<Vec<_>>();
        for state in ["up", "down"] {
            ["nic0", "mv0", "tap0"].iter().for_each(|name| ip(&format!("link set {name} {state}")));
            assert_eq!(deleted(), [false; 3], "{state}");
        }
        ["nic0", "tap0"].iter().for_each(|name| ip(&format!("link delete {name}")));
        assert_eq!(deleted(), [true; 3]);
    });
}
