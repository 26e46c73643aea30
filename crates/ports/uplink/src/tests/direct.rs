//! A queue for each guest against the real tun driver, in a separate network namespace. These tests need root, and are skipped with
//! a message without it.

#![allow(clippy::cast_possible_truncation, reason = "lengths and counts of a test")]

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hypervisor::PAGE_SIZE;
use offload::Features;
use port::{
    Body, Budget, Ingress, Lender, LentBuffer, LentMemory, Outcome, Received, WINDOW, Wanted,
    linearise,
};
use shm::Region;
use wire::ethernet::MacAddr;

use super::platform;
use crate::guest_queue::REST;
use crate::tap::{Tap, TapOffload, TapQueue};
use crate::{BufferOptions, Buffers, Copied, DirectIngress, GuestQueue, Steering, TapIngress, sys};

const LIMIT: Duration = Duration::from_secs(20);
const PAGES: usize = 64;

/// Runs `test` on a thread in a fresh network namespace, if it can have one.
fn in_own_network(test: impl FnOnce() + Send) {
    let run = || match sys::unshare_network() {
        Ok(()) => test(),
        Err(errno) => {
            let none = format!("no network namespace ({errno}): run this test as root");
            assert!(lab::needed::<(), _>(Err(none)).is_none());
        }
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

fn mac(guest: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 9, guest])
}

/// A tap with a shared queue and `guests` others, and a neighbour 10.9.0.N with each guest's address.
fn tap(guests: u8) -> (Vec<TapQueue>, Steering) {
    let queues = Tap::open("pv0", 1 + usize::from(guests), TapOffload::ALL).unwrap();
    let steering = Steering::attach(&queues[0], 16).unwrap();
    ip("link set pv0 addrgenmode none");
    ip("address add 10.9.0.254/24 dev pv0");
    ip("link set pv0 up");
    for guest in 1..=guests {
        ip(&format!("neighbour add 10.9.0.{guest} lladdr {} dev pv0", mac(guest)));
    }
    (queues, steering)
}

fn send(guest: u8, payload: &[u8]) {
    let socket = UdpSocket::bind("10.9.0.254:0").unwrap();
    socket.send_to(payload, (format!("10.9.0.{guest}"), 9)).unwrap();
}

/// A guest's memory. All buffers can be lent once.
struct Memory {
    region: Arc<Region>,
    free: Mutex<Vec<u32>>,
    /// How often it was asked.
    asked: AtomicUsize,
}

impl Memory {
    fn new() -> Arc<Self> {
        let region = Arc::new(Region::anonymous(PAGES * PAGE_SIZE).unwrap());
        let free = Mutex::new((0..PAGES as u32).collect());
        Arc::new(Self { region, free, asked: AtomicUsize::default() })
    }

    fn lent(&self) -> LentMemory {
        let region = self.region.slice(0..self.region.len()).unwrap();
        LentMemory { lender: 7, region, features: Features::ALL }
    }

    /// Whether a byte is anywhere in it.
    fn has(&self, byte: u8) -> bool {
        let mut bytes = vec![0; self.region.len()];
        self.region.copy_out(0, &mut bytes).unwrap();
        bytes.windows(8).any(|run| run.iter().all(|seen| *seen == byte))
    }
}

impl Lender for Memory {
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut free = self.free.lock().unwrap();
        let left = free.len().saturating_sub(wanted.buffers);
        let tokens = free.drain(left..);
        lent.extend(tokens.map(|token| LentBuffer { token, offset: u64::from(token) * 4096 }));
    }

    fn take_back(&self, tokens: &[u32]) {
        self.free.lock().unwrap().extend(tokens);
    }
}

fn ingress(tap: TapQueue, queue: &Arc<GuestQueue>) -> DirectIngress {
    let options = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };
    let meter = platform().meter().clone();
    let tap = TapIngress::new(meter, Arc::new(tap), Buffers::new(options).unwrap());
    DirectIngress::new(tap, queue.clone(), true)
}

/// Takes frames until there is one. Returns the whole bytes of each, and whether it lies in lent buffers.
fn take(ingress: &mut DirectIngress) -> Vec<(Vec<u8>, bool)> {
    let start = Instant::now();
    loop {
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        let window = ingress.window();
        let frames = window.order().iter().map(|slot| window.frame(*slot));
        let mut taken = Vec::new();
        for frame in frames {
            let mut bytes = vec![0; frame.len as usize];
            // A lender writes the header before the body.
            ingress.with_body(&mut |body: Body<'_>| {
                linearise(frame, body, &mut bytes).unwrap();
            });
            taken.push((bytes, frame.lent.is_any()));
        }
        ingress.finish(&[Outcome::Delivered; WINDOW]);
        if !taken.is_empty() || start.elapsed() > LIMIT {
            return taken;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_kernel_chooses_the_queue_by_destination() {
    in_own_network(|| {
        let (queues, steering) = tap(3);
        (1..=2).for_each(|guest| steering.steer(mac(guest), guest.into()).unwrap());
        let broadcast = UdpSocket::bind("10.9.0.254:0").unwrap();
        broadcast.set_broadcast(true).unwrap();
        let came = |queue: &TapQueue| {
            let mut bytes = vec![0; 70_000];
            let len = rustix::io::read(queue, &mut bytes).ok()?;
            Some(bytes[10..len].to_vec())
        };
        for round in 0..20u8 {
            (1..=3).for_each(|guest| send(guest, &[round; 100]));
            broadcast.send_to(&[round; 100], ("10.9.0.255", 9)).unwrap();
            for guest in 1..=2 {
                let frame =
                    came(&queues[usize::from(guest)]).expect("a frame in the guest's queue");
                assert_eq!(frame[..6], mac(guest).0);
            }
            let shared: Vec<_> = std::iter::from_fn(|| came(&queues[0])).collect();
            let is_udp = |frame: &&Vec<u8>| frame[23] == 17;
            assert_eq!(shared.iter().filter(is_udp).count(), 2, "unknown and broadcast");
            assert!(came(&queues[1]).is_none() && came(&queues[2]).is_none());
        }
        steering.forget(mac(1));
        send(1, &[1; 100]);
        assert!(came(&queues[1]).is_none() && came(&queues[0]).is_some());
        let many = (0..32).map(|n| steering.steer(MacAddr([2, 1, 0, 0, 0, n]), 1));
        assert!(many.filter(Result::is_err).count() >= 16, "the map is bounded");
    });
}

#[test]
fn frames_are_read_into_the_guests_buffers_once_the_queue_is_proven() {
    in_own_network(|| {
        let (mut queues, steering) = tap(1);
        let (queue, memory) = (Arc::<GuestQueue>::default(), Memory::new());
        queue.assign(mac(1), memory.clone(), Some(memory.lent()));
        steering.steer(mac(1), 1).unwrap();
        let mut ingress = ingress(queues.pop().unwrap(), &queue);
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
    in_own_network(|| {
        let (mut queues, steering) = tap(2);
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
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
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

#[test]
fn a_guest_without_buffers_gets_copies() {
    in_own_network(|| {
        let (mut queues, steering) = tap(1);
        let (queue, memory) = (Arc::<GuestQueue>::default(), Memory::new());
        queue.assign(mac(1), memory.clone(), Some(memory.lent()));
        steering.steer(mac(1), 1).unwrap();
        let mut ingress = ingress(queues.pop().unwrap(), &queue);
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

/// Turns until so many frames have come, and the most frames of one turn.
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
        let (queue, memory) = (Arc::<GuestQueue>::default(), Memory::new());
        queue.assign(mac(1), memory.clone(), Some(memory.lent()));
        steering.steer(mac(1), 1).unwrap();
        let mut ingress = ingress(queues.pop().unwrap(), &queue);
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
