//! Frames between guests, through real rings, grants, events and the switch.

use std::net::{IpAddr, SocketAddr};

use netback::{RxChannel, TxChannel};
use netfront::{FlowHash, HashConfig, RING_LEN};
use offload::{Checksum, Gso, GsoKind, complete_checksum};
use port_testing::segments;
use switch::{Membership, Tagging, VlanId};
use wire::headers::Headers;
use wire::netif::{HashKind, header_channel};

use crate::common::{
    A, ALL, B, Guest, Host, await_any, frame, receive, receive_hashed, receive_whole, send,
    send_as, wait_for, wait_until,
};

#[test]
fn frames_of_every_size_cross_whole_and_in_order() {
    use RxChannel::{Copy, Flip, GuestCopy, GuestCopyMapped};
    use TxChannel::{Header, Remap};
    for header_channel in [true, false] {
        let pairs = [Copy, Flip, GuestCopy, GuestCopyMapped].map(|rx| [(Header, rx), (Remap, rx)]);
        for (tx, rx) in pairs.concat() {
            println!("tx {tx}, rx {rx}, header channel {header_channel}");
            let kept = match (tx, rx) {
                (_, Flip) => 0,
                // Packets that are mapped anew leave the buffers.
                (Remap, _) => RING_LEN,
                (Header, _) => 2 * RING_LEN,
            };
            cross(&Host::with_channels(1, 1, tx, rx), header_channel, kept);
        }
    }
}

/// `kept`: pages of the sender that stay mapped with grant reuse.
fn cross(host: &Host, header_channel: bool, kept: usize) {
    let config = netfront::Config { header_channel, ..netfront::Config::default() };
    let [mut a, mut b] = host.pair(config);
    let sizes = (14..200).chain((200..9000).step_by(97)).chain((9000..65_535).step_by(3571));
    let sent: Vec<_> =
        sizes.enumerate().map(|(n, len)| frame(B, A, len, u32::try_from(n).unwrap())).collect();
    let mut next = 0;
    for bytes in &sent {
        while !send(&mut a.queues[0], bytes) {
            if let Some(got) = receive(&mut b.queues[0]) {
                assert!(got == sent[next], "frame {next} differs");
                next += 1;
            }
        }
    }
    wait_until("every frame", || {
        while let Some(got) = receive(&mut b.queues[0]) {
            assert!(got == sent[next], "frame {next} differs");
            next += 1;
        }
        next == sent.len()
    });
    assert_eq!(a.queues[0].tx.take_errors(), 0);
    // The last ones may be here before they are counted.
    let counted = || b.port.counters().snapshot().egress_frames;
    wait_until("every frame's count", || counted() == sent.len() as u64);
    // No channel still holds pages of frames. The rings, the header pages and the persistent
    // grants stay mapped.
    let control = a.frontend.control().map_or(0, |_| 1 + kept);
    let rings = 2 + control + a.queues[0].tx.headers().map_or(0, |_| header_channel::PAGES);
    wait_until("the end of every mapping", || a.domain.pinned() == rings);
    for guest in [&a, &b] {
        assert_eq!(guest.domain.exchange_count().held, 0);
    }
}

#[test]
fn a_guest_that_takes_nothing_makes_senders_wait_and_loses_nothing() {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(netfront::Config::default());
    // 256 buffers, 64 frames in flight, and the rest on the sender's ring.
    let mut sent = 0;
    wait_until("room for more frames than there are buffers", || {
        while sent < 400 && send(&mut a.queues[0], &frame(B, A, 100, sent)) {
            sent += 1;
        }
        sent == 400
    });
    for n in 0..sent {
        assert!(await_any(&mut b) == frame(B, A, 100, n), "frame {n} differs");
    }
}

#[test]
fn a_guest_receives_no_more_frames_than_it_posts_buffers() {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(netfront::Config::default());
    let mut received = netfront::Received::default();
    let (mut sent, mut taken) = (0, 0);
    wait_until("a frame in each of 256 buffers", || {
        while sent < 256 && send(&mut a.queues[0], &frame(B, A, 100, sent)) {
            sent += 1;
        }
        while b.queues[0].rx.receive(&mut received).unwrap() {
            taken += 1;
        }
        taken == 256
    });
    b.queues[0].rx.publish_some(3);
    for n in 0..5 {
        assert!(send(&mut a.queues[0], &frame(B, A, 100, n)));
    }
    wait_until("a frame in each of three buffers", || {
        while b.queues[0].rx.receive(&mut received).unwrap() {
            taken += 1;
        }
        taken == 259
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!b.queues[0].rx.receive(&mut received).unwrap());
}

#[test]
fn a_stalled_guest_holds_others_back_only_briefly() {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(netfront::Config::default());
    let mut c = host.guest("02:00:00:00:00:0c", netfront::Config::default());
    let c_mac = [2, 0, 0, 0, 0, 0xc];
    assert!(send(&mut c.queues[0], &frame(ALL, c_mac, 60, 0)));
    await_any(&mut a);
    let mut sent = 0;
    wait_until("room for a thousand frames to a guest that takes none", || {
        while sent < 1000 && send(&mut a.queues[0], &frame(B, A, 100, sent)) {
            sent += 1;
        }
        sent == 1000
    });
    assert!(b.port.is_stalled());
    while receive(&mut c.queues[0]).is_some() {}
    assert!(send(&mut a.queues[0], &frame(c_mac, A, 100, 7)));
    assert_eq!(await_any(&mut c), frame(c_mac, A, 100, 7));
    // It is served again once it wakes up.
    while receive(&mut b.queues[0]).is_some() {}
    wait_until("the end of the stall", || {
        send(&mut a.queues[0], &frame(B, A, 100, 9));
        receive(&mut b.queues[0]).is_some_and(|got| got == frame(B, A, 100, 9))
    });
    assert!(!b.port.is_stalled());
}

#[test]
fn flows_spread_over_queues_and_each_stays_in_order() {
    let host = Host::new(2, 4);
    let config = netfront::Config { queues: 4, ..netfront::Config::default() };
    let mut a = host.guest("02:00:00:00:00:0a", config);
    let mut b =
        host.guest("02:00:00:00:00:0b", netfront::Config { split_event_channels: false, ..config });
    assert_eq!((a.queues.len(), b.queues.len()), (4, 4));
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    wait_until("the broadcast", || a.queues.iter_mut().any(|queue| receive(queue).is_some()));
    let udp = |flow: u16, n: u32| {
        let mut bytes = frame(B, A, 90, n);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34]
            .copy_from_slice(&[0x45, 0, 0, 76, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[34..36].copy_from_slice(&flow.to_be_bytes());
        bytes[36..42].copy_from_slice(&[0, 9, 0, 56, 0, 0]);
        bytes[42..46].copy_from_slice(&n.to_be_bytes());
        bytes
    };
    let mut seen = [(); 64].map(|()| None::<(usize, u32)>);
    let mut received = 0;
    let mut take = |b: &mut Guest, received: &mut u32| {
        for queue in 0..4 {
            while let Some(got) = receive(&mut b.queues[queue]) {
                let flow = usize::from(u16::from_be_bytes([got[34], got[35]]));
                let n = u32::from_be_bytes([got[42], got[43], got[44], got[45]]);
                if let Some((same, before)) = seen[flow] {
                    assert_eq!(same, queue, "flow {flow} moved");
                    assert!(n > before, "flow {flow} out of order");
                }
                seen[flow] = Some((queue, n));
                *received += 1;
            }
        }
    };
    for n in 0..40 {
        for flow in 0..64u16 {
            while !send(&mut a.queues[usize::from(flow % 4)], &udp(flow, n)) {
                take(&mut b, &mut received);
            }
        }
    }
    wait_until("every frame", || {
        take(&mut b, &mut received);
        received == 40 * 64
    });
    let used: std::collections::BTreeSet<_> =
        seen.iter().flatten().map(|(queue, _)| queue).collect();
    assert_eq!(used.len(), 4, "flows of one pair of hosts use all queues");
}

/// Source, destination, hash of the addresses, hash of addresses and ports: Microsoft's "Verifying the RSS Hash Calculation".
const RSS_VECTORS: [(&str, &str, u32, u32); 4] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
];

/// A segment of a TCP flow from A to B.
fn tcp(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut bytes = [&B[..], &A].concat();
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            bytes.extend([from.octets(), to.octets()].concat());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            bytes.extend([from.octets(), to.octets()].concat());
        }
        _ => panic!("of one kind"),
    }
    bytes.extend([source.port().to_be_bytes(), destination.port().to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Sends each vector from A. B gets it once, in this queue and with this hash.
fn expect(a: &mut Guest, b: &mut Guest, expected: impl Fn(bool, u32, u32) -> (usize, Option<u32>)) {
    for (source, destination, of_addresses, of_flow) in RSS_VECTORS {
        let [source, destination]: [SocketAddr; 2] =
            [source, destination].map(|text| text.parse().unwrap());
        let sent = tcp(source, destination);
        assert!(send(&mut a.queues[0], &sent));
        let (queue, hash) = wait_for("the segment", || {
            let mut queues = b.queues.iter_mut().enumerate();
            queues.find_map(|(n, queue)| {
                let (bytes, hash) = receive_hashed(queue)?;
                assert!(bytes == sent, "another frame");
                Some((n, hash))
            })
        });
        let is_v4 = source.is_ipv4();
        let (wanted, value) = expected(is_v4, of_addresses, of_flow);
        let kind = match (is_v4, value == Some(of_flow)) {
            (true, true) => HashKind::Ipv4Tcp,
            (true, false) => HashKind::Ipv4,
            (false, true) => HashKind::Ipv6Tcp,
            (false, false) => HashKind::Ipv6,
        };
        assert_eq!(
            (queue, hash),
            (wanted, value.map(|value| FlowHash { kind, value })),
            "{source}"
        );
    }
    assert!(b.queues.iter_mut().all(|queue| receive(queue).is_none()), "a frame came twice");
}

#[test]
fn flows_go_where_the_receivers_hash_and_table_say() {
    use RxChannel::{Copy, Flip, GuestCopy, GuestCopyMapped};
    // The pages of a guest that flips them are enough for one queue.
    for (rx, queues) in [(Copy, 4), (Flip, 1), (GuestCopy, 4), (GuestCopyMapped, 4)] {
        println!("rx {rx}");
        hash_flows(&Host::with_channels(2, 4, TxChannel::Header, rx), queues);
    }
}

fn hash_flows(host: &Host, queues: u32) {
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let config = netfront::Config { queues, hash: true, ..netfront::Config::default() };
    let mut b = host.guest("02:00:00:00:00:0b", config);
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    wait_until("the broadcast", || receive(&mut a.queues[0]).is_some());
    // Until it asks, there are no hashes.
    let mut seen = Vec::new();
    for (source, destination, ..) in RSS_VECTORS {
        let sent = tcp(source.parse().unwrap(), destination.parse().unwrap());
        assert!(send(&mut a.queues[0], &sent));
        seen.push(wait_for("the segment", || b.queues.iter_mut().find_map(receive_hashed)));
    }
    assert!(seen.iter().all(|(_, hash)| hash.is_none()));
    let mapping: Vec<u32> = (0..128).map(|n| n / 3 % queues).collect();
    let all = HashConfig { mapping: mapping.clone(), ..HashConfig::over(1) };
    b.frontend.control().unwrap().set_hash(&all).unwrap();
    let place = |hash: u32| mapping[hash as usize % 128] as usize;
    expect(&mut a, &mut b, |_, _, flow| (place(flow), Some(flow)));
    // A guest that asks for the hashes of IPv4 addresses only. Frames without a hash go where hash 0 goes.
    let shifted: Vec<_> = mapping.iter().map(|queue| (queue + 1) % queues).collect();
    let addresses = HashConfig { kinds: vec![HashKind::Ipv4], mapping: shifted, ..all.clone() };
    b.frontend.control().unwrap().set_hash(&addresses).unwrap();
    let count = queues as usize;
    expect(&mut a, &mut b, |is_v4, addresses, _| match is_v4 {
        true => ((place(addresses) + 1) % count, Some(addresses)),
        false => (1 % count, None),
    });
    // Without a table, the hash modulo the queues is the queue.
    let modulo = HashConfig { mapping: Vec::new(), ..all.clone() };
    b.frontend.control().unwrap().set_hash(&modulo).unwrap();
    expect(&mut a, &mut b, |_, _, flow| (flow as usize % count, Some(flow)));
    // The next backend goes on with it, and floods by it too: the switch has forgotten where B is.
    b.frontend.control().unwrap().set_hash(&all).unwrap();
    let connection = host.restart(&mut b);
    b.port = host.carry(b.domain.id(), connection);
    expect(&mut a, &mut b, |_, _, flow| (place(flow), Some(flow)));
}

/// Linux' netfront discards a frame whose checksum it would have to find behind a tag.
#[test]
fn a_guest_on_a_trunk_gets_tagged_frames_cut_and_summed() {
    use RxChannel::{Copy, Flip, GuestCopy, GuestCopyMapped};
    for rx in [Copy, Flip, GuestCopy, GuestCopyMapped] {
        println!("rx {rx}");
        reach_trunk(&Host::with_channels(1, 1, TxChannel::Header, rx));
    }
}

fn reach_trunk(host: &Host) {
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let mut b = host.guest("02:00:00:00:00:0b", netfront::Config::default());
    let vlan = VlanId::new(10).unwrap();
    let trunk = Tagging::Trunk { tagged: [vlan].into_iter().collect(), native: None };
    for (guest, tagging) in [(&a, Tagging::Access(vlan)), (&b, trunk)] {
        let membership = Membership { tagging: Some(tagging), isolated: false };
        host.datapath.set_member(guest.port.id(), Some(membership));
    }
    let tagged = |bytes: &[u8]| [&bytes[..12], &[0x81, 0x00, 0x00, 0x0a], &bytes[12..]].concat();
    assert!(send(&mut b.queues[0], &tagged(&frame(ALL, B, 60, 0))));
    wait_until("the broadcast", || receive(&mut a.queues[0]).is_some());

    let [from, to]: [SocketAddr; 2] =
        ["10.0.0.1:80", "10.0.0.2:81"].map(|text| text.parse().unwrap());
    let mut sent = tcp(from, to);
    sent.extend((0..4000).map(|n: usize| (n * 7).to_le_bytes()[0]));
    sent[16..18].copy_from_slice(&4040u16.to_be_bytes());
    let gso = Gso { kind: GsoKind::TcpV4, size: 1448 };
    let mut whole = tagged(&sent);
    let headers = Headers::parse(&whole).unwrap();
    complete_checksum(&mut whole, &headers).unwrap();
    for (asked, expected) in [(Some(gso), segments(&tagged(&sent), gso)), (None, vec![whole])] {
        assert!(send_as(&mut a.queues[0], &sent, Checksum::Partial, asked));
        for expected in expected {
            let (bytes, received) =
                wait_for("the next segment", || receive_whole(&mut b.queues[0]));
            assert!(bytes == expected, "another segment");
            assert_eq!((received.checksum, received.gso), (Checksum::Unknown, None));
        }
    }
    // Without its tag it stays as it is.
    let sent = [&sent[6..12], &sent[..6], &tagged(&sent)[12..]].concat();
    assert!(send_as(&mut b.queues[0], &sent, Checksum::Partial, Some(gso)));
    let (bytes, received) = wait_for("the frame", || receive_whole(&mut a.queues[0]));
    assert_eq!(bytes.len() + 4, sent.len());
    assert_eq!((received.checksum, received.gso), (Checksum::Partial, Some(gso)));
}

#[test]
fn a_guest_leaves_and_nothing_of_it_stays() {
    let host = Host::new(1, 1);
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let before = open_files();
    for round in 0..20u32 {
        let mut b = host.guest("02:00:00:00:00:0b", netfront::Config::default());
        assert!(send(&mut b.queues[0], &frame(ALL, B, 60, round)));
        wait_until("the broadcast", || receive(&mut a.queues[0]).is_some());
        assert!(send(&mut a.queues[0], &frame(B, A, 1000, round)));
        assert!(b.domain.pinned() > 0);
        host.datapath.detach(b.port.id());
        assert_eq!(b.domain.pinned(), 0, "a grant stays mapped");
        host.machine.destroy(b.domain.id());
        host.machine.store().forget(b.domain.id());
        assert!(host.datapath.addresses().iter().all(|entry| entry.mac.0 != B));
    }
    wait_until("the closing of every descriptor", || open_files() <= before);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
