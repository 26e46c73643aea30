//! The driver with the real card and the real hypervisor's part, under every protection.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use cdna::message::Permissions;
use cdnafront::{CardQueue, Config, Interface, ReceivedFrame, open, open_port};
use contexts::Protection;
use datapath::Datapath;
use netdev::{Device, Metadata, Queue as _};
use port::{Outcome, linearise};
use port_testing::{FakeEgress, Sender};
use wire::ethernet::MacAddr;

use crate::world::{PROTECTIONS, TIMEOUT, World, mac, signal, wait};

/// An address that no context has.
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 1, 0]);

/// A frame of a protocol for experiments, with `payload` bytes that depend on `seed`.
fn frame(to: MacAddr, from: MacAddr, payload: usize, seed: usize) -> Vec<u8> {
    let mut bytes = [to.0, from.0].concat();
    bytes.extend([0x88, 0xb5]);
    bytes.extend((0..payload).map(|n| (n * 7 + n / 251 + seed * 31).to_le_bytes()[0]));
    bytes
}

fn send(queue: &mut CardQueue, bytes: &[u8]) {
    crate::send(queue, bytes, Metadata::default()).unwrap();
}

fn receive(queue: &mut CardQueue) -> Option<Vec<u8>> {
    crate::receive(queue).unwrap().map(|(bytes, _)| bytes)
}

fn opened(guests: u8, protection: Protection) -> (Arc<Mutex<World>>, Vec<(Interface, CardQueue)>) {
    let (world, contexts) = World::new(guests, protection, Permissions::default());
    let queues = contexts.into_iter().map(|context| open(context, &Config::default())).collect();
    world.lock().unwrap().settle();
    (world, queues)
}

#[test]
fn frames_cross_the_card_and_the_wire_under_every_protection() {
    for protection in PROTECTIONS {
        let (world, mut guests) = opened(2, protection);
        let [(interface, one), (_, two)] = &mut guests[..] else { panic!("two guests") };
        assert!(interface.is_open() && interface.features().tso_v4);
        for n in 0..600 {
            let len = [46, 500, 1500, 4082, 4083, 65_000][n % 6];
            let (to_two, out) = (frame(mac(2), mac(1), len, n), frame(PEER, mac(1), len, n + 1));
            let coming = frame(mac(1), PEER, len, n + 2);
            send(one, &to_two);
            send(one, &out);
            one.kick();
            {
                let mut world = world.lock().unwrap();
                world.card.wire().arriving.push_back(coming.clone());
                world.settle();
                assert_eq!(std::mem::take(&mut world.card.wire().sent), [out], "{protection:?}");
            }
            assert_eq!(receive(two), Some(to_two), "{protection:?}");
            assert_eq!(receive(one), Some(coming));
            assert_eq!((receive(one), receive(two)), (None, None));
            one.reclaim().unwrap();
            one.give_back();
            two.give_back();
        }
        let mut world = world.lock().unwrap();
        if protection == Protection::Hypervisor {
            let (descriptors, calls) = world.calls(1);
            assert!(descriptors >= 1200 && calls < descriptors, "{descriptors} in {calls}");
        }
        assert_eq!(world.revoke_all(), 0, "no reference is left");
        drop(world);
        assert!(!guests[0].0.is_open());
    }
}

/// The card's thread: it sleeps when it may.
fn run_card(world: &Mutex<World>, stop: &AtomicBool) {
    let doorbells = world.lock().unwrap().doorbells();
    while !stop.load(Ordering::Relaxed) {
        let time = {
            let mut world = world.lock().unwrap();
            let next = world.step();
            world.sleep(next)
        };
        if let Some(time) = time {
            wait(doorbells.iter().map(AsFd::as_fd), time);
            for doorbell in &doorbells {
                let _ = rustix::io::read(doorbell, &mut [0; 8]);
            }
        }
        world.lock().unwrap().wake();
    }
}

/// Sends `count` frames to the other guest, at most 64 beyond what it has received; receives as many. Sleeps when
/// there is nothing to do.
fn run_guest(queue: &mut CardQueue, to: MacAddr, from: MacAddr, count: usize) {
    let (mut sent, mut received) = (0, 0);
    let mut began = Instant::now();
    while received < count || sent < count {
        let before = (sent, received);
        while let Some(bytes) = receive(queue) {
            let len = 46 + received % 1400;
            assert!(bytes == frame(from, to, len, received), "frame {received}");
            received += 1;
        }
        queue.give_back();
        queue.reclaim().unwrap();
        while sent < count && sent < received + 64 && queue.has_room() {
            send(queue, &frame(to, from, 46 + sent % 1400, sent));
            sent += 1;
        }
        queue.kick();
        if (sent, received) != before {
            began = Instant::now();
        } else if !queue.arm(!queue.has_room()).unwrap() {
            assert!(wait(queue.events(), TIMEOUT), "no interrupt after frame {received}");
            queue.clear([true; 2]).unwrap();
        }
        assert!(began.elapsed() < TIMEOUT, "no progress after frame {received}");
    }
}

#[test]
fn no_wake_up_is_lost_between_guests_and_a_card_that_sleep() {
    for protection in PROTECTIONS {
        let (world, mut guests) = opened(2, protection);
        world.lock().unwrap().has_thread.store(true, Ordering::Relaxed);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let card = scope.spawn(|| run_card(&world, &stop));
            let [(_, one), (_, two)] = &mut guests[..] else { panic!("two guests") };
            let ends = [
                scope.spawn(move || run_guest(one, mac(2), mac(1), 5000)),
                scope.spawn(move || run_guest(two, mac(1), mac(2), 5000)),
            ];
            let ended = ends.map(ScopedJoinHandle::join);
            stop.store(true, Ordering::Relaxed);
            signal(&world.lock().unwrap().doorbells()[0]);
            card.join().unwrap();
            assert!(ended.iter().all(Result::is_ok), "{protection:?}");
        });
        assert_eq!(world.lock().unwrap().revoke_all(), 0);
    }
}

/// Sends to the other guest and receives from it as fast as it can, until its context is taken away.
fn run_until_revoked(interface: &Interface, queue: &mut CardQueue, to: MacAddr, from: MacAddr) {
    let (mut sent, began) = (0, Instant::now());
    while interface.is_open() {
        while sent % 64 != 63 && queue.has_room() {
            send(queue, &frame(to, from, 46 + sent % 9000, sent));
            sent += 1;
        }
        sent += 1;
        queue.kick();
        let mut frame = ReceivedFrame::default();
        // The hypervisor refuses calls before the card has set the status.
        while let Ok(Some(_)) = queue.receive(&mut frame) {}
        queue.give_back();
        let _ = queue.reclaim();
        assert!(began.elapsed() < TIMEOUT, "never revoked");
    }
}

#[test]
fn a_revocation_in_the_middle_of_full_load_leaves_nothing() {
    for protection in PROTECTIONS {
        let (world, mut guests) = opened(2, protection);
        world.lock().unwrap().has_thread.store(true, Ordering::Relaxed);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| run_card(&world, &stop));
            let [(a, one), (b, two)] = &mut guests[..] else { panic!("two guests") };
            scope.spawn(move || run_until_revoked(a, one, mac(2), mac(1)));
            scope.spawn(move || run_until_revoked(b, two, mac(1), mac(2)));
            let began = Instant::now();
            let mut world = loop {
                let world = world.lock().unwrap();
                if world.frames(1).min(world.frames(2)) > 1000 {
                    break world;
                }
                drop(world);
                assert!(began.elapsed() < TIMEOUT, "it was never under load");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(world.revoke_all(), 0, "{protection:?}");
            stop.store(true, Ordering::Relaxed);
            signal(&world.doorbells()[0]);
        });
    }
}

/// Sends every frame back to where it came from, and sleeps when there is none.
fn run_echo(queue: &mut CardQueue, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut any = false;
        while let Some(mut bytes) = receive(queue) {
            let (to, rest) = bytes.split_at_mut(6);
            to.swap_with_slice(&mut rest[..6]);
            send(queue, &bytes);
            any = true;
        }
        queue.give_back();
        queue.reclaim().unwrap();
        queue.kick();
        if !any && !queue.arm(false).unwrap() {
            wait(queue.events(), Duration::from_millis(100));
            queue.clear([true; 2]).unwrap();
        }
    }
}

#[test]
fn the_switch_reaches_a_guest_through_the_driver_domains_context() {
    const STATION: MacAddr = MacAddr([2, 0, 0, 0, 2, 0]);
    for protection in PROTECTIONS {
        let bridge = Permissions(Permissions::PROMISCUOUS.0 | Permissions::ANY_SOURCE.0);
        let (world, contexts) = World::new(2, protection, bridge);
        let Ok([uplink, guest]) = <[_; 2]>::try_from(contexts) else { panic!("two contexts") };
        let config = Config { promiscuous: true, ..Config::default() };
        let (_interface, ingress, egress) = open_port(uplink, &config, Arc::default());
        let (_guest, mut queue) = open(guest, &Config::default());
        world.lock().unwrap().has_thread.store(true, Ordering::Relaxed);
        let datapath = Datapath::start(
            &datapath::Config { workers: 1, ..datapath::Config::default() },
            Box::new(|failure| panic!("{failure:?}")),
        );
        let datapath = datapath.unwrap();
        let attach = |name, ingress, egress, mac| {
            let port = datapath.attach(name, vec![port::Queue { ingress, egress }], Vec::new());
            datapath.teach(port.id(), mac).unwrap();
            port
        };
        let uplink = attach("uplink", Box::new(ingress), Box::new(egress), mac(2));
        let (sender, ingress) = Sender::new();
        let returned = Arc::new(AtomicUsize::new(0));
        let count = returned.clone();
        let egress = FakeEgress::new(move |frame, body| {
            let mut bytes = vec![0; frame.len as usize];
            linearise(frame, body, &mut bytes).unwrap();
            let number = count.fetch_add(1, Ordering::Relaxed);
            assert!(bytes == self::frame(STATION, mac(2), 46 + number * 7, number));
            Ok(Outcome::Delivered)
        });
        attach("vif", ingress, Box::new(egress), STATION);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| run_card(&world, &stop));
            scope.spawn(|| run_echo(&mut queue, &stop));
            let began = Instant::now();
            for round in 0..20 {
                for n in 0..50 {
                    let number = round * 50 + n;
                    sender.send(frame(mac(2), STATION, 46 + number * 7, number));
                }
                while returned.load(Ordering::Relaxed) < (round + 1) * 50 {
                    if began.elapsed() > TIMEOUT {
                        stop.store(true, Ordering::Relaxed);
                        panic!(
                            "{protection:?}: {} of round {round}",
                            returned.load(Ordering::Relaxed)
                        );
                    }
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
            signal(&world.lock().unwrap().doorbells()[0]);
        });
        datapath.detach(uplink.id());
        assert_eq!(world.lock().unwrap().revoke_all(), 0);
    }
}
