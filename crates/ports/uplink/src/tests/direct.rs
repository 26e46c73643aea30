//! A queue for each guest against the real tun and macvtap drivers.

#![allow(clippy::cast_possible_truncation, reason = "lengths and counts of a test")]

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use port::{Budget, Ingress, Outcome, Received, WINDOW};
use wire::ethernet::MacAddr;

use super::network::{LIMIT, Memory, PAGES, in_own_network, ip, mac, send, set_up, take};
use super::reader;
use crate::guest_queue::REST;
use crate::tap::{Tap, TapOffload, TapQueue};
use crate::{Copied, DirectIngress, GuestQueue, Macvtap, Steering, packet};

/// Opens a shared queue and one for each of some guests.
type Device = fn(u8) -> (Vec<TapQueue>, Steering);

/// Runs `test` with each kind of device that chooses queues by destination.
fn on_each_device(test: impl Fn(Device) + Sync) {
    for device in [tap, macvtap] {
        in_own_network(|| test(device));
    }
}

/// A tap with a shared queue and `guests` others.
fn tap(guests: u8) -> (Vec<TapQueue>, Steering) {
    let queues = Tap::open("pv0", 1 + usize::from(guests), TapOffload::ALL).unwrap();
    let steering = Steering::attach(&queues[0], 16).unwrap();
    set_up(guests);
    (queues, steering)
}

/// As [`tap`], with a macvtap over one end of a veth pair whose other end is `pv0`.
fn macvtap(guests: u8) -> (Vec<TapQueue>, Steering) {
    ip("link add pv0 type veth peer name nic0");
    ip("link set nic0 addrgenmode none");
    ip("link set nic0 up");
    ip("link add link nic0 name mv0 type macvtap mode passthru");
    ip("link set mv0 addrgenmode none");
    let queues = Macvtap::open("mv0", 1 + usize::from(guests), TapOffload::ALL).unwrap();
    let lower = packet::interface_index("nic0").unwrap();
    let steering = Steering::attach_macvtap(lower, 1 + u16::from(guests), 16).unwrap();
    ip("link set mv0 allmulticast on up");
    set_up(guests);
    (queues, steering)
}

fn ingress(tap: TapQueue, queue: &Arc<GuestQueue>) -> DirectIngress {
    DirectIngress::new(reader(Arc::new(tap)), queue.clone(), true)
}

/// The queue of the first guest, which it has, and that guest's memory.
fn served(tap: TapQueue, steering: &Steering) -> (Arc<GuestQueue>, Arc<Memory>, DirectIngress) {
    let (queue, memory) = (Arc::<GuestQueue>::default(), Memory::new());
    queue.assign(mac(1), memory.clone(), Some(memory.lent()));
    steering.steer(mac(1), 1).unwrap();
    let ingress = ingress(tap, &queue);
    (queue, memory, ingress)
}

#[test]
fn the_kernel_chooses_the_queue_by_destination() {
    on_each_device(|device| {
        let (queues, steering) = device(3);
        (1..=2).for_each(|guest| steering.steer(mac(guest), guest.into()).unwrap());
        let broadcast = UdpSocket::bind("10.9.0.254:0").unwrap();
        broadcast.set_broadcast(true).unwrap();
        let came = |queue: &TapQueue| {
            let mut bytes = vec![0; 70_000];
            let len = rustix::io::read(queue, &mut bytes).ok()?;
            Some(bytes[10..len].to_vec())
        };
        // The kernel passes frames on in other threads, too.
        let comes = |queue: &TapQueue| {
            let start = Instant::now();
            std::iter::repeat_with(|| came(queue))
                .inspect(|_| std::thread::sleep(Duration::from_micros(200)))
                .take_while(|_| start.elapsed() < LIMIT)
                .find_map(|frame| frame)
        };
        for round in 0..20u8 {
            (1..=3).for_each(|guest| send(guest, &[round; 100]));
            broadcast.send_to(&[round; 100], ("10.9.0.255", 9)).unwrap();
            for guest in 1..=2 {
                let frame =
                    comes(&queues[usize::from(guest)]).expect("a frame in the guest's queue");
                assert_eq!(frame[..6], mac(guest).0);
            }
            let shared = std::iter::from_fn(|| comes(&queues[0]));
            let is_udp = |frame: &Vec<u8>| frame[23] == 17;
            assert_eq!(shared.filter(is_udp).take(2).count(), 2, "unknown and broadcast");
            assert!(came(&queues[1]).is_none() && came(&queues[2]).is_none());
        }
        steering.forget(mac(1));
        send(1, &[1; 100]);
        assert!(comes(&queues[0]).is_some() && came(&queues[1]).is_none());
        let many = (0..32).map(|n| steering.steer(MacAddr([2, 1, 0, 0, 0, n]), 1));
        assert!(many.filter(Result::is_err).count() >= 16, "the map is bounded");
    });
}

#[test]
fn frames_are_read_into_the_guests_buffers_once_the_queue_is_proven() {
    on_each_device(|device| {
        let (mut queues, steering) = device(1);
        let (queue, memory, mut ingress) = served(queues.pop().unwrap(), &steering);
        for (n, len) in [1000, 50, 100, 1472, 30_000].into_iter().enumerate() {
            let byte = 0x40 + n as u8;
            // The stack fragments what is longer than the MTU.
            send(1, &vec![byte; len]);
            for (bytes, is_lent) in take(&mut ingress) {
                assert_eq!(bytes[..6], mac(1).0);
                assert_eq!(is_lent, n > 0, "the first frame proves the queue");
                if bytes.len() > 200 {
                    assert_eq!(memory.has(byte), n > 0);
                }
            }
            while len > 1472 && queue.counts().direct() < 3 + 20 {
                assert!(take(&mut ingress).iter().all(|(_, is_lent)| *is_lent));
            }
        }
        assert_eq!(queue.counts().copied(Copied::Unproven), 1);
        assert_eq!(memory.free.lock().unwrap().len(), PAGES, "all buffers came back");
    });
}

/// The map still says that an old guest's frames go to the queue, as if the change had not come through, or another program had
/// changed the queues. The new guest never sees one of them.
#[test]
fn another_guests_frames_do_not_reach_the_buffers() {
    on_each_device(|device| {
        let (mut queues, steering) = device(2);
        let (queue, first, second) = (Arc::<GuestQueue>::default(), Memory::new(), Memory::new());
        let mut ingress = ingress(queues.pop().unwrap(), &queue);
        let number = 2;
        (1..=2).for_each(|guest| steering.steer(mac(guest), number).unwrap());
        queue.assign(mac(1), first.clone(), Some(first.lent()));
        (0..3).for_each(|_| {
            send(1, &[0xa5; 1400]);
            take(&mut ingress);
        });
        assert!(first.has(0xa5));
        // The guest goes. Its frames are dropped, and not flooded.
        queue.release();
        assert!(!queue.is_free(), "it rests");
        send(1, &[0xa5; 1400]);
        let mut received = Received::default();
        let start = Instant::now();
        while received.fresh == 0 && start.elapsed() < LIMIT {
            ingress.receive(&mut Budget::default(), &mut received).unwrap();
        }
        assert_eq!((received.fresh, received.refused.len()), (1, 1));
        ingress.finish(&[Outcome::Dropped(port::DropReason::PortGone); WINDOW]);
        assert_eq!(queue.counts().late(), 1);
        // Too early, another guest gets it.
        queue.assign(mac(2), second.clone(), Some(second.lent()));
        for _ in 0..50 {
            send(1, &[0xa5; 1400]);
            send(2, &[0x5a; 1400]);
            take(&mut ingress);
        }
        assert!(!second.has(0xa5), "a frame of the first guest is in the second's memory");
        assert_eq!(queue.counts().misdirected(), 0, "no frame was read there even for a moment");
        assert!(!second.has(0x5a), "the queue is not trusted");
        // When others' frames end, it is trusted again.
        std::thread::sleep(REST + Duration::from_millis(100));
        (0..3).for_each(|_| {
            send(2, &[0x5a; 1400]);
            take(&mut ingress);
        });
        assert!(second.has(0x5a));
        // A frame that comes in a trusted queue is wiped out, goes on whole, and ends the trust.
        send(1, &[0xa5; 1400]);
        let taken = take(&mut ingress);
        assert!(taken.iter().any(|(bytes, is_lent)| bytes[..6] == mac(1).0 && !is_lent));
        assert!(taken.iter().all(|(bytes, _)| bytes[42..].iter().all(|byte| *byte == 0xa5)));
        assert!(!second.has(0xa5), "it was wiped out");
        assert_eq!(queue.counts().misdirected(), 1);
        for memory in [first, second] {
            assert_eq!(memory.free.lock().unwrap().len(), PAGES, "all buffers came back");
        }
    });
}

/// After small frames the next is read into one page of the guest. A larger one is whole all the same, and the next one after it
/// finds room for all of it.
#[test]
fn a_large_frame_after_small_ones_is_whole_and_lent() {
    in_own_network(|| {
        let (mut queues, steering) = tap(1);
        ip("link set pv0 mtu 60000");
        let (queue, memory, mut ingress) = served(queues.pop().unwrap(), &steering);
        let mut sent = 0;
        let mut next = |len: usize| {
            sent += 1;
            (0..len).map(|at| ((at + sent) % 251) as u8).collect::<Vec<_>>()
        };
        // The lengths at which a body ends with its first page, one byte before, and one after, among them.
        for len in [40_000, 59_000, 4054 - 1, 4054, 4054 + 1, 8150, 8151, 100, 30_000] {
            let small = std::iter::repeat_n(60, 20);
            for payload in small.chain([len, len]).map(&mut next) {
                send(1, &payload);
                let taken = take(&mut ingress);
                assert_eq!(taken.len(), 1);
                assert_eq!(taken[0].0[42..], payload);
            }
        }
        assert_eq!(queue.counts().direct() + 1, sent as u64, "all but the first are lent");
        assert_eq!(memory.free.lock().unwrap().len(), PAGES, "all buffers came back");
    });
}

/// As [`another_guests_frames_do_not_reach_the_buffers`], for a frame of which a part was read to the driver domain's buffers.
#[test]
fn a_large_frame_of_another_guest_is_wiped_out_after_small_ones() {
    in_own_network(|| {
        let (mut queues, steering) = tap(2);
        ip("link set pv0 mtu 60000");
        let (queue, memory) = (Arc::<GuestQueue>::default(), Memory::new());
        let mut ingress = ingress(queues.pop().unwrap(), &queue);
        (1..=2).for_each(|guest| steering.steer(mac(guest), 2).unwrap());
        queue.assign(mac(1), memory.clone(), Some(memory.lent()));
        for _ in 0..20 {
            send(1, &[0x5a; 60]);
            take(&mut ingress);
        }
        send(2, &[0xa5; 50_000]);
        let taken = take(&mut ingress);
        let [(bytes, false)] = &taken[..] else { panic!("one frame that is not lent") };
        assert_eq!(bytes[..6], mac(2).0);
        assert_eq!(bytes[42..], [0xa5; 50_000]);
        assert!(!memory.has(0xa5), "it was wiped out");
        assert_eq!(queue.counts().misdirected(), 1);
        assert_eq!(memory.free.lock().unwrap().len(), PAGES, "all buffers came back");
    });
}

#[test]
fn a_guest_without_buffers_gets_copies() {
    on_each_device(|device| {
        let (mut queues, steering) = device(1);
        let (queue, memory, mut ingress) = served(queues.pop().unwrap(), &steering);
        memory.free.lock().unwrap().truncate(3);
        for _ in 0..3 {
            send(1, &[0x33; 1000]);
            assert!(take(&mut ingress).iter().all(|(_, is_lent)| !is_lent));
        }
        assert_eq!(queue.counts().copied(Copied::NoBuffers), 2);
        assert_eq!(memory.free.lock().unwrap().len(), 3, "what was lent came back");
        assert!(!memory.has(0x33));
    });
}

/// How many turns it takes until `frames` frames have come, and the most frames of one turn.
fn turns(ingress: &mut DirectIngress, frames: usize) -> (usize, usize) {
    let (mut turns, mut all, mut most) = (0, 0, 0);
    let start = Instant::now();
    while all < frames && start.elapsed() < LIMIT {
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        ingress.finish(&[Outcome::Delivered; WINDOW]);
        (turns, all, most) = (turns + 1, all + received.fresh, most.max(received.fresh));
    }
    (turns, most)
}

/// A worker has other guests' queues to serve. A flood for a guest that posts no buffers, and for one that has died, takes no more
/// turns and no longer ones than a flood for a guest with buffers, and a turn asks the guest once.
#[test]
fn a_flood_for_a_guest_without_buffers_takes_the_turns_of_any_flood() {
    const FLOOD: usize = 200;
    in_own_network(|| {
        let (mut queues, steering) = tap(1);
        let (queue, memory, mut ingress) = served(queues.pop().unwrap(), &steering);
        let flood = || (0..FLOOD).for_each(|_| send(1, &[0x33; 1000]));
        send(1, &[0x33; 100]);
        take(&mut ingress);
        flood();
        let usual = turns(&mut ingress, FLOOD);
        assert_eq!(queue.counts().direct(), FLOOD as u64);
        let free = std::mem::take(&mut *memory.free.lock().unwrap());
        let asked = memory.asked.load(Ordering::Relaxed);
        flood();
        let without = turns(&mut ingress, FLOOD);
        assert_eq!(queue.counts().copied(Copied::NoBuffers), FLOOD as u64);
        assert_eq!(without, usual);
        let asked = memory.asked.load(Ordering::Relaxed) - asked;
        assert!(asked <= without.0, "asked {asked} times in {} turns", without.0);
        *memory.free.lock().unwrap() = free;
        flood();
        queue.release();
        assert_eq!(turns(&mut ingress, FLOOD), usual, "it has died");
        assert_eq!(queue.counts().late(), FLOOD as u64);
    });
}
