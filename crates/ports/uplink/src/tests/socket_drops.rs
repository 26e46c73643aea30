//! Frames that a packet socket had no room for.

use std::sync::Arc;

use super::network::{in_own_network, ip, send, set_up};
use crate::packet::{self, SocketDrops};

#[test]
fn what_nobody_reads_in_time_is_counted_once() {
    in_own_network(|| {
        ip("link add nic0 type veth peer name pv0");
        set_up(1);
        let sockets = packet::open("nic0", 1).unwrap().into_iter().map(Arc::new);
        let drops = SocketDrops::of(sockets.collect());
        ip("link set nic0 up");
        send(1, &[0; 1400]);
        assert_eq!(drops.read(), 0);
        // Twice as much as there is room for.
        (0..8000).for_each(|_| send(1, &[0; 1400]));
        let lost = drops.read();
        assert!((1000..8000).contains(&lost), "{lost}");
        assert_eq!(drops.read(), lost);
    });
}
