//! Frames between guests, through real rings, grants, events and the switch.

mod common;

use common::{Host, frame, receive, send, wait_until};
use netback::{RxChannel, TxChannel};
use netfront::RING_LEN;
use wire::netif::header_channel;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const ALL: [u8; 6] = [0xff; 6];

#[test]
fn frames_of_every_size_cross_whole_and_in_order() {
    use RxChannel::{Copy, Flip, GuestCopy, GuestCopyMapped};
    use TxChannel::{Header, Remap};
    for header_channel in [true, false] {
        let pairs = [Copy, Flip, GuestCopy, GuestCopyMapped].map(|rx| [(Header, rx), (Remap, rx)]);
        for (tx, rx) in pairs.concat() {
            println!("tx {tx}, rx {rx}, header channel {header_channel}");
            // Packets that are mapped anew leave the buffers.
            let kept = if tx == Remap { RING_LEN } else { 2 * RING_LEN };
            cross(&Host::with_channels(1, 1, tx, rx), header_channel, kept);
        }
    }
}

/// `kept`: pages of the sender that stay mapped with grant reuse.
fn cross(host: &Host, header_channel: bool, kept: usize) {
    let config = netfront::Config { header_channel, ..netfront::Config::default() };
    let mut a = host.guest("02:00:00:00:00:0a", config);
    let mut b = host.guest("02:00:00:00:00:0b", config);
    // The switch learns both addresses.
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    wait_until("the broadcast", || receive(&mut a.queues[0]).is_some());
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
    assert_eq!(b.port.counters().snapshot().egress_frames, sent.len() as u64);
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
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let mut b = host.guest("02:00:00:00:00:0b", netfront::Config::default());
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    wait_until("the broadcast", || receive(&mut a.queues[0]).is_some());
    // 256 buffers, 64 frames in flight, and the rest on the sender's ring.
    let mut sent = 0;
    wait_until("room for more frames than there are buffers", || {
        while sent < 400 && send(&mut a.queues[0], &frame(B, A, 100, sent)) {
            sent += 1;
        }
        sent == 400
    });
    for n in 0..sent {
        let mut got = None;
        wait_until("the next frame", || {
            got = receive(&mut b.queues[0]);
            got.is_some()
        });
        assert!(got.unwrap() == frame(B, A, 100, n), "frame {n} differs");
    }
}

#[test]
fn a_guest_receives_no_more_frames_than_it_posts_buffers() {
    let host = Host::new(1, 1);
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let mut b = host.guest("02:00:00:00:00:0b", netfront::Config::default());
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    wait_until("the broadcast", || receive(&mut a.queues[0]).is_some());
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
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let mut b = host.guest("02:00:00:00:00:0b", netfront::Config::default());
    let mut c = host.guest("02:00:00:00:00:0c", netfront::Config::default());
    let c_mac = [2, 0, 0, 0, 0, 0xc];
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    assert!(send(&mut c.queues[0], &frame(ALL, c_mac, 60, 0)));
    let mut heard = 0;
    wait_until("the broadcasts", || {
        heard += usize::from(receive(&mut a.queues[0]).is_some());
        heard == 2
    });
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
    let mut got = None;
    wait_until("a frame to the guest beside it", || {
        got = receive(&mut c.queues[0]);
        got.is_some()
    });
    assert_eq!(got.unwrap(), frame(c_mac, A, 100, 7));
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
    let mut take = |b: &mut common::Guest, received: &mut u32| {
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
