//! Frames that a packet socket has in a ring.

use std::sync::Arc;
use std::time::{Duration, Instant};

use port::{Budget, Ingress as _, Outcome, Received, WINDOW};

use super::network::{LIMIT, in_own_network, ip, send, set_up, take};
use super::reader;
use crate::TapIngress;
use crate::packet::{self, SocketDrops};
use crate::tap::TapQueue;

/// An end of a wire whose other end sends, and the socket of the first.
fn ring(mtu: u32) -> (TapIngress, Arc<TapQueue>) {
    ip(&format!("link add nic0 mtu {mtu} type veth peer name pv0 mtu {mtu}"));
    set_up(1);
    let socket = Arc::new(packet::open_with_rings("nic0", 1).unwrap().remove(0));
    ip("link set nic0 addrgenmode none up");
    let mut ingress = reader(socket.clone());
    // Until the kernel has noticed that the wire has both ends, it sends nothing.
    let is_empty = |ingress: &mut TapIngress| {
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        ingress.finish(&[Outcome::Delivered; WINDOW]);
        received.fresh == 0
    };
    let start = Instant::now();
    while is_empty(&mut ingress) && start.elapsed() < LIMIT {
        send(1, b"first");
        std::thread::sleep(Duration::from_millis(1));
    }
    send(1, b"last");
    while payloads(&mut ingress, 1).last().unwrap() != b"last" {}
    (ingress, socket)
}

/// The payloads of the next `count` datagrams.
fn payloads(ingress: &mut TapIngress, count: usize) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let frames = take(ingress);
        assert!(!frames.is_empty(), "{} of {count} came", taken.len());
        // The stack announces itself by other protocols.
        let datagrams = frames.into_iter().filter(|(bytes, _)| bytes[12..14] == [8, 0]);
        taken.extend(datagrams.map(|(bytes, _)| bytes[42..].to_vec()));
    }
    taken
}

#[test]
fn frames_of_all_lengths_come_whole_and_in_order() {
    in_own_network(|| {
        let (mut ingress, _) = ring(9000);
        // Those beyond a slot wait in the socket.
        let lengths = [1, 18, 86, 87, 1400, 1900, 2000, 8900, 5, 3000, 60, 60];
        let sent: Vec<Vec<u8>> = lengths
            .iter()
            .enumerate()
            .map(|(n, len)| (0..*len).map(|at: usize| (at * 7 + n).to_le_bytes()[0]).collect())
            .collect();
        sent.iter().for_each(|payload| send(1, payload));
        let seen = payloads(&mut ingress, sent.len());
        for (n, (sent, seen)) in sent.iter().zip(&seen).enumerate() {
            // Short frames are padded by nobody here.
            assert_eq!(sent, seen, "frame {n} of {} bytes", sent.len());
        }
    });
}

#[test]
fn a_ring_is_used_round_and_round() {
    in_own_network(|| {
        let (mut ingress, _) = ring(1500);
        for round in 0..50_u8 {
            (0..100).for_each(|n| send(1, &[round, n]));
            let seen = payloads(&mut ingress, 100);
            let expected: Vec<_> = (0..100).map(|n| vec![round, n]).collect();
            assert_eq!(seen, expected, "round {round}");
        }
    });
}

#[test]
fn a_full_ring_loses_the_newest_frames_and_goes_on() {
    in_own_network(|| {
        let (mut ingress, socket) = ring(1500);
        let drops = SocketDrops::of(vec![socket]);
        (0..5000_u16).for_each(|n| send(1, &n.to_le_bytes()));
        let lost = drops.read();
        assert!((2000..5000).contains(&lost), "{lost}");
        let seen = payloads(&mut ingress, 2000);
        let expected: Vec<_> = (0..2000_u16).map(|n| n.to_le_bytes().to_vec()).collect();
        assert_eq!(seen[..2000], expected);
        // What came before the ring was full may still be there.
        send(1, b"after");
        while !payloads(&mut ingress, 1).iter().any(|payload| payload == b"after") {}
    });
}

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
