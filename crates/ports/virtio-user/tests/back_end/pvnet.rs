//! pvnet's own back-end as the peer: what one side sends comes out of the other.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use offload::{Checksum, Features, Gso, GsoKind};
use port::{Doorbell, DropReason, Event, Outcome, Queue};
use port_testing::{Sender, Sent, pass, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user::{Device, DeviceOptions};
use virtio_user::{Error, Options, Session};
use virtqueue::Layout;

use crate::ALL;
use crate::connect;
use crate::connect::{Out, sink};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

/// From the front-end to the back-end, and the reverse.
const DIRECTIONS: [[usize; 2]; 2] = [[0, 1], [1, 0]];

/// The back-end's side of a connection, seen by a test.
struct Served(Mutex<mpsc::Sender<Vec<Queue>>>);

impl Device for Served {
    fn start(&self, queues: Vec<Queue>) {
        let _ = self.0.lock().unwrap().send(queues);
    }

    fn stop(&self, _: &str) {}
}

/// Both ends of a port.
struct Both {
    front: Vec<Queue>,
    back: Vec<Queue>,
    /// Dropped, it takes the memory of both rings away.
    session: Session,
    stop: Doorbell,
}

fn connect(options: &Options, device: DeviceOptions) -> Both {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (started, starts) = mpsc::channel();
    let served = Arc::new(Served(started.into()));
    let session = vhost_user::Session::new(device, served, Arc::default()).unwrap();
    std::thread::spawn(move || session.run(theirs));
    let stop = Doorbell::new().unwrap();
    let (session, front) =
        virtio_user::connect(ours, options, &Arc::default(), stop.as_fd()).unwrap();
    // Rings are served pair by pair as they become ready.
    let mut back = starts.recv_timeout(LIMIT).unwrap();
    while back.len() < front.len() {
        drop(back);
        back = starts.recv_timeout(LIMIT).unwrap();
    }
    Both { front, back, session, stop }
}

fn device(packed: bool, offloads: Features) -> DeviceOptions {
    DeviceOptions { queues: 1, packed, offloads, guest_offloads: true }
}

/// A frame of 64 KiB, to be segmented.
fn large(payload: usize) -> Sent {
    let mut sent = Sent::from(tcp(payload));
    sent.frame.checksum = Checksum::Partial;
    sent.frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    sent
}

/// Sends a frame by `from`, and returns what comes out of `to`.
fn carry(sent: impl Into<Sent>, from: &mut Queue, to: &mut Queue) -> Vec<Out> {
    let (source, mut ingress) = Sender::new();
    source.send(sent);
    let (_, outcomes) = pass(&mut *ingress, &mut *from.egress, Duration::ZERO).unwrap();
    assert_eq!(outcomes, [Outcome::Delivered]);
    let (mut egress, seen) = sink();
    let (received, _) = pass(&mut *to.ingress, &mut egress, Duration::ZERO).unwrap();
    assert_eq!(received.malformed, 0);
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn frames_of_every_length_pass_in_both_directions_and_layouts() {
    for packed in [false, true] {
        let Both { mut front, mut back, session, .. } =
            connect(&ALL, device(packed, Features::ALL));
        let layout = if packed { Layout::Packed } else { Layout::Split };
        assert_eq!((session.agreed().layout(), session.agreed().queues), (layout, 1));
        let mut ends = [front.remove(0), back.remove(0)];
        // Several laps of each ring, and lengths at the ends of buffers.
        for round in 0..300usize {
            let payload = [0, 1, 74, 1446, 4160 - 12 - 54, 4160 - 11 - 54, 8307][round % 7];
            let bytes = tcp(payload + round % 3);
            for ends_at in DIRECTIONS {
                let [from, to] = ends.get_disjoint_mut(ends_at).unwrap();
                let out = carry(&bytes, from, to);
                assert_eq!(out.len(), 1, "{layout:?} {round}");
                assert_eq!(out[0].bytes, bytes, "{layout:?} {round}");
            }
        }
        for payload in [3000, 60_000, 65_000] {
            let (sent, bytes) = (large(payload), tcp(payload));
            for ends_at in DIRECTIONS {
                let [from, to] = ends.get_disjoint_mut(ends_at).unwrap();
                let (checksum, gso) = (Checksum::Partial, sent.frame.gso);
                for _ in 0..70 {
                    let out = carry(sent.clone(), from, to);
                    assert_eq!(out, [Out { bytes: bytes.clone(), checksum, gso }]);
                }
            }
        }
    }
}

/// A device says which checksums it found right. A driver must not (VIRTIO 1.2 §5.1.6.2.1).
#[test]
fn only_the_device_vouches_for_checksums() {
    let mut validated = Sent::from(tcp(3000));
    validated.frame.checksum = Checksum::Validated;
    for layout in [Layout::Split, Layout::Packed] {
        let (_session, mut queue, fake) = connect::honest(layout);
        let (source, mut ingress) = Sender::new();
        source.send(validated.clone());
        pass(&mut *ingress, &mut *queue.egress, Duration::ZERO).unwrap();
        assert_eq!(fake.memory.read(fake.first_buffer(1)), Ok([0u8; 12]), "{layout:?}");
    }
    let Both { mut front, mut back, session: _session, .. } =
        connect(&ALL, device(true, Features::ALL));
    let out = carry(validated, &mut back[0], &mut front[0]);
    assert_eq!(out[0].checksum, Checksum::Validated);
}

#[test]
fn what_a_back_end_does_not_offer_is_done_in_software() {
    let csum = Features { tso_v4: false, tso_v6: false, ..Features::NETIF };
    for (offers, checksum) in [(Features::NONE, Checksum::Unknown), (csum, Checksum::Partial)] {
        for packed in [false, true] {
            let Both { mut front, mut back, session: _session, .. } =
                connect(&ALL, device(packed, offers));
            for _ in 0..10 {
                let out = carry(large(60_000), &mut front[0], &mut back[0]);
                assert_eq!(out.len(), 60_000_usize.div_ceil(1448));
                assert!(out.iter().all(|frame| frame.gso.is_none() && frame.checksum == checksum));
                let payload: Vec<u8> =
                    out.iter().flat_map(|frame| frame.bytes[54..].to_vec()).collect();
                assert_eq!(payload, tcp(60_000)[54..]);
                // A finished checksum is not the blank one.
                let is_blank = |frame: &Out| frame.bytes[50..52] == [0, 0];
                assert!(checksum == Checksum::Partial || !out.iter().any(is_blank));
            }
        }
    }
}

#[test]
fn a_back_end_that_takes_nothing_makes_frames_wait_for_a_while_only() {
    let Both { mut front, mut back, session: _session, .. } =
        connect(&ALL, device(false, Features::ALL));
    let (source, mut ingress) = Sender::new();
    let egress = &mut *front[0].egress;
    for now in 0..8 {
        (0..32).for_each(|_| source.send(tcp(100)));
        let (_, outcomes) = pass(&mut *ingress, egress, Duration::from_millis(now)).unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered));
    }
    source.send(tcp(100));
    let at = |egress: &mut _, ingress: &mut _, ms| {
        pass(ingress, egress, Duration::from_millis(ms)).unwrap().1
    };
    assert_eq!(at(egress, &mut *ingress, 10), [Outcome::Waiting]);
    assert_eq!(at(egress, &mut *ingress, 210), [Outcome::Waiting]);
    assert!(!egress.is_stalled());
    assert_eq!(at(egress, &mut *ingress, 211), [Outcome::Dropped(DropReason::Stalled)]);
    assert!(egress.is_stalled());
    // It takes all, and announces that.
    let room = egress.room_event().unwrap();
    assert!(!has_rung(&*room));
    let (mut drop_all, seen) = sink();
    while seen.lock().unwrap().len() < 256 {
        pass(&mut *back[0].ingress, &mut drop_all, Duration::ZERO).unwrap();
    }
    assert!(has_rung(&*room));
    source.send(tcp(100));
    assert_eq!(at(egress, &mut *ingress, 300), [Outcome::Delivered]);
    assert!(!egress.is_stalled());
}

fn has_rung(event: &dyn Event) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_worker_that_sleeps_is_woken_up() {
    for packed in [false, true] {
        let Both { mut front, mut back, session: _session, .. } =
            connect(&ALL, device(packed, Features::ALL));
        let mut ends = [front.remove(0), back.remove(0)];
        for _ in 0..3 {
            for ends_at in DIRECTIONS {
                let [from, to] = ends.get_disjoint_mut(ends_at).unwrap();
                // What was announced before has been taken.
                let event = to.ingress.event();
                let (mut egress, _) = sink();
                pass(&mut *to.ingress, &mut egress, Duration::ZERO).unwrap();
                while to.ingress.arm().unwrap() == port::Armed::Ready {
                    pass(&mut *to.ingress, &mut egress, Duration::ZERO).unwrap();
                }
                let before = counter(&*event);
                let (source, mut ingress) = Sender::new();
                source.send(tcp(100));
                pass(&mut *ingress, &mut *from.egress, Duration::ZERO).unwrap();
                assert!(has_rung(&*event) && counter(&*event) >= before);
                assert_eq!(to.ingress.arm().unwrap(), port::Armed::Ready);
            }
        }
    }
}

/// What an eventfd has counted, as far as the system says.
fn counter(event: &dyn Event) -> u64 {
    use std::os::fd::AsRawFd as _;
    let info = format!("/proc/self/fdinfo/{}", event.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(info).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    count.map_or(0, |count| u64::from_str_radix(count.trim(), 16).unwrap())
}

#[test]
fn there_are_as_many_queues_as_both_sides_have() {
    for (wanted, offered, agreed) in [(4, 2, 2), (2, 4, 2), (3, 1, 1)] {
        let options = Options { queues: wanted, ..ALL };
        let device = DeviceOptions { queues: offered, ..device(true, Features::ALL) };
        let Both { front, back, session: _session, .. } = connect(&options, device);
        assert_eq!((front.len(), back.len()), (agreed, agreed));
    }
}

#[test]
fn the_end_of_either_side_ends_the_session() {
    let Both { mut session, stop, front, .. } = connect(&ALL, device(true, Features::ALL));
    stop.ring();
    assert!(matches!(session.wait(stop.as_fd()), Error::Stopped));
    drop(front);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let stop = Doorbell::new().unwrap();
    let gone = virtio_user::connect(ours, &ALL, &Arc::default(), stop.as_fd()).map(drop);
    assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
}
