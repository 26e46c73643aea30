//! A socket for each guest on a real interface: one end of a veth pair, whose driver copies.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use offload::Features;
use port::{Ingress, LentMemory, Outcome, WINDOW};
use shm::Region;

use super::network::{LIMIT, Memory, PAGES, in_own_network, ip, mac, send, set_up, take, veth};
use super::reader;
use crate::sys::bpf::{self, AttachType, ProgramType};
use crate::tap::TapQueue;
use crate::{Xdp, XdpCounts, XdpIngress, XdpSocket, XdpSocketError, packet, steering};

/// The packet socket of `nic0`, one end of a veth pair.
fn nic(queues: u32, mtu: u32) -> TapQueue {
    veth(queues, mtu);
    ip("link set nic0 up");
    packet::open("nic0", 1).unwrap().remove(0)
}

struct Guest {
    memory: Arc<Memory>,
    socket: Arc<XdpSocket>,
    ingress: XdpIngress,
    counts: Arc<XdpCounts>,
}

/// Gives a receive queue to a guest.
fn guest(xdp: &Xdp, number: u8, queue: u32) -> Guest {
    let (memory, counts) = (Memory::new(), Arc::<XdpCounts>::default());
    let lent = memory.lent();
    let start = Instant::now();
    let socket = loop {
        match xdp.open(queue, &lent.region) {
            // The kernel is not done with the socket that was there before.
            Err(XdpSocketError::Taken { .. }) if start.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => break Arc::new(opened.unwrap()),
        }
    };
    let mut ingress =
        XdpIngress::new(socket.clone(), mac(number), memory.clone(), lent, counts.clone());
    ingress.arm().unwrap();
    xdp.steer(mac(number), &socket).unwrap();
    Guest { memory, socket, ingress, counts }
}

/// Frames with this first byte of their payload.
fn with(frames: &[(Vec<u8>, bool)], byte: u8) -> usize {
    frames.iter().filter(|(bytes, _)| bytes.get(42) == Some(&byte)).count()
}

#[test]
fn the_kernel_puts_a_guests_frames_into_its_buffers_and_no_others() {
    in_own_network(|| {
        let mut ordinary = reader(Arc::new(nic(1, 1500)));
        let xdp = Xdp::attach("nic0", 1, 4).unwrap();
        assert!(xdp.is_in_driver());
        set_up(2);
        let mut first = guest(&xdp, 1, 0);
        assert_eq!(first.memory.free.lock().unwrap().len(), 0, "all are lent");
        let broadcast = UdpSocket::bind("10.9.0.254:0").unwrap();
        broadcast.set_broadcast(true).unwrap();
        // More frames than buffers: they come back and are used again.
        for round in 0..100u8 {
            send(1, &[round; 1472]);
            send(2, &[0xa5; 1472]);
            broadcast.send_to(&[0xa6; 1000], ("10.9.0.255", 9)).unwrap();
            let taken = take(&mut first.ingress);
            assert_eq!(with(&taken, round), 1);
            assert!(taken.iter().all(|(bytes, lent)| *lent && bytes[..6] == mac(1).0));
            assert!(taken.iter().all(|(bytes, _)| bytes.len() == 1514 && bytes[1513] == round));
            let mut others = take(&mut ordinary);
            while others.len() < 2 {
                others.extend(take(&mut ordinary));
            }
            assert_eq!([with(&others, 0xa5), with(&others, 0xa6)], [1, 1]);
        }
        assert_eq!((first.counts.direct(), first.counts.misdirected()), (100, 0));
        assert!(first.memory.has(99), "the last frame lies there");
        assert!(!first.memory.has(0xa5) && !first.memory.has(0xa6));
        // It goes. All its buffers come back, and its frames take the ordinary way.
        xdp.forget(mac(1), &first.socket);
        drop(first.ingress);
        assert_eq!(first.memory.free.lock().unwrap().len(), PAGES);
        for _ in 0..20 {
            send(1, &[0xb1; 1472]);
            assert!(with(&take(&mut ordinary), 0xb1) > 0);
        }
        assert!(!first.memory.has(0xb1), "the kernel writes to a guest's pages after it has gone");
    });
}

/// Ends a flood, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The receive queue of one guest goes to another while frames for both come as fast as they can.
#[test]
fn a_queue_goes_from_guest_to_guest_under_load() {
    in_own_network(|| {
        let _ordinary = nic(1, 1500);
        let xdp = Xdp::attach("nic0", 1, 4).unwrap();
        set_up(2);
        let stop = AtomicBool::new(false);
        let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&namespace),
                    kind,
                )
                .unwrap();
                let socket = UdpSocket::bind("10.9.0.254:0").unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for guest in 1..=2 {
                        let _ =
                            socket.send_to(&[0xc0 + guest; 1400], (format!("10.9.0.{guest}"), 9));
                    }
                }
            });
            let _stop = Stop(&stop);
            for round in 0..12u8 {
                let number = 1 + round % 2;
                let mut guest = guest(&xdp, number, 0);
                while guest.counts.direct() < 500 {
                    let taken = take(&mut guest.ingress);
                    assert!(taken.iter().all(|(bytes, _)| bytes[..6] == mac(number).0));
                }
                xdp.forget(mac(number), &guest.socket);
                let Guest { memory, counts, ingress, .. } = guest;
                drop(ingress);
                assert!(memory.has(0xc0 + number) && !memory.has(0xc0 + 3 - number));
                assert_eq!(counts.misdirected(), 0);
                assert_eq!(memory.free.lock().unwrap().len(), PAGES, "all buffers came back");
                // The guest uses its pages for something else. The kernel writes no late frame there.
                let clean = vec![0; PAGES * 4096];
                memory.lent().region.copy_in(0, &clean).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                assert!(!memory.has(0xc0 + number), "a late frame");
            }
        });
    });
}

/// A frame for a guest that the card has put into another guest's receive queue takes the ordinary way. A guest without buffers loses its own frames, and nobody else's.
#[test]
fn frames_in_another_guests_queue_take_the_ordinary_way() {
    in_own_network(|| {
        let mut ordinary = reader(Arc::new(nic(2, 1500)));
        let xdp = Xdp::attach("nic0", 2, 4).unwrap();
        set_up(2);
        // As a card does that steers by destination.
        let steering = card("pv0");
        let (mut first, mut second) = (guest(&xdp, 1, 0), guest(&xdp, 2, 1));
        let one_each = |first: &mut Guest, second: &mut Guest| {
            (1..=2).for_each(|guest| send(guest, &[0xd0 + guest; 1400]));
            (with(&take(&mut first.ingress), 0xd1), with(&take(&mut second.ingress), 0xd2))
        };
        steering.set(&steering::key(mac(1)), 1).unwrap();
        steering.set(&steering::key(mac(2)), 2).unwrap();
        assert_eq!(one_each(&mut first, &mut second), (1, 1));
        // Each in the other's queue.
        steering.set(&steering::key(mac(1)), 2).unwrap();
        steering.set(&steering::key(mac(2)), 1).unwrap();
        (1..=2).for_each(|guest| send(guest, &[0xd8 + guest; 1400]));
        let mut others = Vec::new();
        while others.len() < 2 {
            others.extend(take(&mut ordinary));
        }
        assert_eq!([with(&others, 0xd9), with(&others, 0xda)], [1, 1]);
        for guest in [&first, &second] {
            assert!(!guest.memory.has(0xd9) && !guest.memory.has(0xda));
            assert_eq!(guest.counts.misdirected(), 0);
        }
        // The first takes none of its frames.
        steering.set(&steering::key(mac(1)), 1).unwrap();
        steering.set(&steering::key(mac(2)), 2).unwrap();
        for _ in 0..2 * PAGES {
            send(1, &[0xde; 1400]);
        }
        for _ in 0..100 {
            send(2, &[0xdf; 1400]);
            assert_eq!(with(&take(&mut second.ingress), 0xdf), 1);
        }
        assert!(first.socket.dropped() >= PAGES as u64, "{}", first.socket.dropped());
        first.ingress.finish(&[Outcome::Delivered; WINDOW]);
    });
}

/// So does a frame that is longer than a page holds. The driver of veth does not take an MTU that allows it, so the network stack runs
/// the program.
#[test]
fn frames_longer_than_a_page_take_the_ordinary_way() {
    in_own_network(|| {
        let mut ordinary = reader(Arc::new(nic(1, 9000)));
        let xdp = Xdp::attach("nic0", 1, 4).unwrap();
        assert!(!xdp.is_in_driver());
        set_up(1);
        let mut guest = guest(&xdp, 1, 0);
        for len in [60, 3700, 3798, 3799, 8000] {
            send(1, &vec![0xd5; len]);
            let fits = len + 42 <= 3840;
            let taken = if fits { take(&mut guest.ingress) } else { take(&mut ordinary) };
            assert_eq!(with(&taken, 0xd5), 1, "{len}");
            assert!(taken.iter().all(|(_, lent)| *lent == fits), "{len}");
        }
        assert_eq!((guest.counts.direct(), guest.socket.dropped()), (3, 0));
    });
}

/// What a guest or an operator may do wrong is an error that says so.
#[test]
fn errors_of_sockets_and_programs_name_the_cause() {
    in_own_network(|| {
        let _ordinary = nic(1, 1500);
        let xdp = Xdp::attach("nic0", 1, 4).unwrap();
        let again = Xdp::attach("nic0", 1, 4).unwrap_err().to_string();
        assert!(again.contains("another XDP program") && again.contains("xdp off"), "{again}");
        let missing = Xdp::attach("nic7", 1, 4).unwrap_err().to_string();
        assert!(missing.contains("no interface nic7"), "{missing}");
        let _first = guest(&xdp, 1, 0);
        let lent = Memory::new().lent();
        let taken = xdp.open(0, &lent.region).unwrap_err();
        assert!(matches!(taken, XdpSocketError::Taken { queue: 0 }), "{taken}");
        if let Ok(file) = shm::create_secret_file(4) {
            let region = Region::map(&file, 0, 4 * 4096).unwrap();
            let secret = xdp.open(0, &region).unwrap_err();
            assert!(matches!(secret, XdpSocketError::Memory(_)), "{secret}");
        }
        let LentMemory { features, .. } = lent;
        assert_eq!(features, Features::ALL);
    });
}

/// Has an interface choose the transmit queue, and so its peer's receive queue, by destination: the number in the map, less one.
fn card(name: &str) -> steering::Stations {
    let map = steering::create_map(4).unwrap();
    let program = steering::program::queue_mapping(map.number());
    let program = steering::load(ProgramType::Classifier, &program).unwrap();
    let interface = packet::interface_index(name).unwrap();
    let link = bpf::attach(std::os::fd::AsFd::as_fd(&program), interface, AttachType::TcxEgress, 0);
    // It lives as long as the interface.
    std::mem::forget(link.unwrap());
    map
}
