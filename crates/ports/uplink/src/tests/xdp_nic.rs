//! A NIC that is taken over: one end of a veth pair, whose driver has the kernel copy.

mod full;

use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hypervisor::{CopyOut, DmaHold, DmaRange, GrantedMemory, MappedPages, Target};
use offload::{Checksum, Gso};
use port::{Armed, Body, DropReason, Egress, Event, Frame, Ingress, Outcome};
use port_testing::{deliver, offer, segments, tcp};

use super::egress::{Sender, tso};
use super::network::{LIMIT, in_own_network, ip, take, veth};
use super::{platform, reader};
use crate::sys::bpf;
use crate::tap::TapQueue;
use crate::{
    TapEgress, TapIngress, Xdp, XdpNic, XdpNicEgress, XdpNicError, XdpNicIngress, XdpNicReceiver,
    XdpNicSender, XdpNicSocket, XdpNicWatch, packet,
};

/// Buffers of a queue for frames that come in.
const RX_BUFFERS: usize = 1024;

/// A veth pair with `queues` receive queues each, of which `nic0` is the uplink's end. Returns the other end.
fn wire(queues: u32, mtu: u32) -> Outside {
    veth(queues, mtu);
    ["nic0", "pv0"].iter().for_each(|name| ip(&format!("link set {name} addrgenmode none up")));
    let socket = Arc::new(packet::open("pv0", 1).unwrap().remove(0));
    let meter = platform().meter().clone();
    Outside {
        ingress: reader(socket.clone()),
        egress: TapEgress::new(meter, socket.clone(), offload::Features::NONE),
        socket,
    }
}

/// What is at the other end of the wire.
struct Outside {
    ingress: TapIngress,
    egress: TapEgress,
    socket: Arc<TapQueue>,
}

impl Outside {
    fn send(&mut self, bytes: &[u8]) {
        assert_eq!(send(&mut self.egress, bytes), Outcome::Delivered);
    }

    /// Takes `count` frames.
    fn take(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            let taken = take(&mut self.ingress);
            assert!(!taken.is_empty(), "{} of {count}", frames.len());
            frames.extend(taken.into_iter().map(|(bytes, _)| bytes));
        }
        frames
    }

    fn is_empty(&mut self) -> bool {
        self.ingress.arm().unwrap();
        let mut received = port::Received::default();
        self.ingress.receive(&mut port::Budget::default(), &mut received).unwrap();
        received.fresh == 0
    }
}

/// A frame that needs nothing.
fn whole(sender: &Sender, bytes: &[u8]) -> Frame {
    Frame { checksum: Checksum::Unknown, ..sender.mapped(bytes, None) }
}

/// Sends a frame that needs nothing.
fn send(egress: &mut dyn Egress, bytes: &[u8]) -> Outcome {
    let sender = Sender::new(&platform(), bytes);
    let frame = whole(&sender, bytes);
    offer(egress, Body::Regions(&sender.regions), &frame, Duration::ZERO).unwrap()
}

/// One queue of the NIC.
struct Queue {
    socket: Arc<XdpNicSocket>,
    receiver: XdpNicReceiver,
    sender: XdpNicSender,
    ingress: XdpNicIngress,
    egress: XdpNicEgress,
}

fn take_over() -> (Vec<Queue>, XdpNicWatch) {
    let XdpNic { queues, watch, in_driver } = XdpNic::open("nic0", false).unwrap();
    assert!(in_driver);
    let meter = platform().meter().clone();
    let queues = queues.into_iter().map(|queue| {
        let socket = queue.socket();
        let (receiver, sender) = queue.split(&meter).unwrap();
        let (ingress, egress) = (receiver.ingress(), sender.egress());
        Queue { socket, receiver, sender, ingress, egress }
    });
    (queues.collect(), watch)
}

impl Queue {
    fn offer(&mut self, body: Body<'_>, frames: &[&Frame]) -> Vec<Outcome> {
        deliver(&mut self.egress, body, frames, Duration::ZERO)
    }

    fn send(&mut self, bytes: &[u8]) -> Outcome {
        send(&mut self.egress, bytes)
    }
}

/// A frame of this length without a known protocol, whose bytes depend on a number.
fn bytes(len: usize, number: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    bytes.extend((14..len).map(|at| (number * 31 + at * 7 + at / 251).to_le_bytes()[0]));
    bytes
}

/// A frame in a VLAN.
fn tagged(len: usize) -> Vec<u8> {
    let mut bytes = bytes(len - 4, 0);
    bytes.splice(12..12, [0x81, 0, 0, 7]);
    bytes
}

#[test]
fn all_frames_of_the_wire_come_in_and_all_that_are_sent_arrive() {
    in_own_network(|| {
        let mut outside = wire(2, 1500);
        let (mut queues, _watch) = take_over();
        assert_eq!(queues.iter().map(|queue| queue.socket.queue()).collect::<Vec<_>>(), [0, 1]);
        assert!(queues.iter().all(|queue| !queue.socket.is_zero_copy()));
        let lengths = [60, 61, 127, 128, 129, 1000, 1513, 1514];
        // Three times as many frames as there are buffers, each way.
        for number in 0..3 * 1024 {
            let out = bytes(lengths[number % lengths.len()], number);
            assert_eq!(queues[number % 2].send(&out), Outcome::Delivered);
            assert_eq!(outside.take(1), [out]);
            let sent = bytes(lengths[(number + 3) % lengths.len()], number);
            outside.send(&sent);
            let deadline = Instant::now() + LIMIT;
            let taken = loop {
                // One flow of the wire comes in one of its queues.
                let ready = queues.iter_mut().find_map(|queue| {
                    (queue.ingress.arm().unwrap() == Armed::Ready).then_some(queue)
                });
                match ready {
                    Some(queue) => break take(&mut queue.ingress),
                    None => assert!(Instant::now() < deadline, "frame {number}"),
                }
            };
            assert_eq!(taken, [(sent, false)]);
        }
        let dropped: u64 = queues.iter().map(|queue| queue.socket.dropped()).sum();
        assert_eq!(dropped, 0);
    });
}

/// Has other sides of a queue take and send `count` frames.
fn carry_both_ways(
    outside: &mut Outside,
    ingress: &mut XdpNicIngress,
    egress: &mut XdpNicEgress,
    count: usize,
) {
    for number in 0..count {
        let frame = bytes(60, number);
        outside.send(&frame);
        assert_eq!(take(ingress), [(frame.clone(), false)]);
        assert_eq!(send(egress, &frame), Outcome::Delivered, "frame {number}");
        assert_eq!(outside.take(1), [frame]);
    }
}

/// Waits until a side has a frame in hand.
fn take_in_hand(ingress: &mut XdpNicIngress) {
    let deadline = Instant::now() + LIMIT;
    while ingress.window().is_empty() {
        assert!(Instant::now() < deadline);
        let mut received = port::Received::default();
        ingress.receive(&mut port::Budget::default(), &mut received).unwrap();
    }
}

/// A worker that sleeps in a guest's memory has frames and buffers of a queue in its hands. Other sides serve the queue meanwhile, and when it wakes
/// up nothing is lost to the queue.
#[test]
fn other_sides_take_the_places_of_those_in_which_workers_sleep() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let Queue { receiver, sender, ingress: mut asleep, egress: mut sending, .. } =
            queues.remove(0);
        outside.send(&bytes(60, 0));
        take_in_hand(&mut asleep);
        sending.fall_asleep(port::WINDOW);
        let (mut ingress, mut egress) = (receiver.ingress(), sender.egress());
        // More than there are buffers, each way.
        carry_both_ways(&mut outside, &mut ingress, &mut egress, RX_BUFFERS + 100);
        let filled = ingress.filled();
        drop(asleep);
        assert_eq!(ingress.filled(), filled + 1, "the buffer of the frame in hand");
        let free = egress.free();
        sending.wake_up();
        assert_eq!(egress.free(), free + port::WINDOW);
    });
}

/// Memory in which whoever touches it sleeps until it is woken.
#[derive(Default)]
struct Sleepy {
    /// How many sleep, and whether they are woken.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Sleepy {
    fn sleep(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, LIMIT, |(_, is_woken)| !*is_woken).unwrap());
    }

    /// Waits until this many sleep.
    fn wait(&self, sleepers: usize) {
        let state = self.state.lock().unwrap();
        let missing = |state: &mut (usize, bool)| state.0 < sleepers;
        let (state, _) = self.changed.wait_timeout_while(state, LIMIT, missing).unwrap();
        assert_eq!(state.0, sleepers);
    }

    fn wake(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl GrantedMemory for Sleepy {
    fn copy_out(&self, _: Option<MappedPages<'_>>, _: &[CopyOut], _: &mut Target<'_>) -> bool {
        self.sleep();
        true
    }

    fn dma_map<'a>(&'a self, _: Option<MappedPages<'a>>, _: &mut [DmaRange<'a>]) {}

    fn dma_hold(&self) -> Option<DmaHold> {
        None
    }
}

/// The same with threads that really sleep: one that reads a guest's memory to send from there, and one that has frames of the wire in its hands.
#[test]
fn other_sides_serve_the_queue_while_threads_sleep_in_calls() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let Queue { receiver, sender, ingress: mut reading, egress: mut sending, .. } =
            queues.remove(0);
        outside.send(&bytes(60, 0));
        take_in_hand(&mut reading);
        let memory = Arc::new(Sleepy::default());
        let granted: Arc<dyn GrantedMemory> = memory.clone();
        let late = bytes(1000, 0);
        std::thread::scope(|scope| {
            let (at_wire, in_memory) = (memory.clone(), &granted);
            let reader = scope.spawn(move || {
                reading.with_body(&mut |_| at_wire.sleep());
                reading.finish(&[Outcome::Delivered; port::WINDOW]);
            });
            let late = &late;
            let writer = scope.spawn(move || {
                let from = Sender::new(&platform(), late);
                let frame = Frame { checksum: Checksum::Unknown, ..from.frame(late, None) };
                let body = Body::Granted { memory: in_memory, mapped: None };
                offer(&mut sending, body, &frame, Duration::ZERO).unwrap()
            });
            memory.wait(2);
            let (mut ingress, mut egress) = (receiver.ingress(), sender.egress());
            carry_both_ways(&mut outside, &mut ingress, &mut egress, 100);
            assert!(!reader.is_finished() && !writer.is_finished(), "they slept all the time");
            memory.wake();
            reader.join().unwrap();
            assert_eq!(writer.join().unwrap(), Outcome::Delivered);
            assert_eq!(outside.take(1)[0][..128], late[..128]);
        });
    });
}

/// Takes what has come into the window. Returns how many frames are in hand then.
fn receive(ingress: &mut XdpNicIngress) -> usize {
    let mut received = port::Received::default();
    ingress.receive(&mut port::Budget::default(), &mut received).unwrap();
    ingress.window().len()
}

/// Frames for guests that take nothing stay in hand, and so do their buffers: a window of them, however long that takes and whatever else comes. The others'
/// frames go on in what is left of the window, and no buffer is lost to the queue.
#[test]
fn guests_that_take_nothing_hold_a_windows_buffers_and_no_more() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let Queue { socket, ingress, .. } = &mut queues[0];
        let mut outcomes = [Outcome::Waiting; port::WINDOW];
        let hold = |outside: &mut Outside, ingress: &mut XdpNicIngress, count: usize| {
            let deadline = Instant::now() + LIMIT;
            (ingress.window().len()..count).for_each(|number| outside.send(&bytes(60, number)));
            while receive(ingress) < count {
                assert!(Instant::now() < deadline);
            }
            ingress.finish(&[Outcome::Waiting; port::WINDOW]);
        };
        // As many as the datapath lets wait of frames from a wire.
        let held = port::WINDOW / 2;
        hold(&mut outside, ingress, held);
        for number in 0..2 * RX_BUFFERS {
            outside.send(&bytes(60, number));
            let deadline = Instant::now() + LIMIT;
            while receive(ingress) == held {
                assert!(Instant::now() < deadline, "frame {number}");
            }
            let slot = ingress.window().order()[held];
            assert_eq!(ingress.window().frame(slot).header(), bytes(60, number));
            outcomes[usize::from(slot)] = Outcome::Delivered;
            ingress.finish(&outcomes);
            outcomes[usize::from(slot)] = Outcome::Waiting;
        }
        assert_eq!((ingress.window().len(), socket.dropped()), (held, 0));
        // Nobody takes anything: the kernel has the other buffers, and counts what finds none.
        hold(&mut outside, ingress, port::WINDOW);
        let most = RX_BUFFERS - port::WINDOW;
        (0..most + 10).for_each(|number| outside.send(&bytes(60, number)));
        let deadline = Instant::now() + LIMIT;
        while socket.dropped() < 10 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((receive(ingress), socket.dropped()), (port::WINDOW, 10));
        ingress.finish(&[Outcome::Delivered; port::WINDOW]);
        let mut taken = 0;
        while taken < most {
            let frames = take(ingress);
            assert!(!frames.is_empty(), "{taken} frames");
            taken += frames.len();
        }
        assert_eq!(taken, most);
        assert_eq!(ingress.filled() as usize, RX_BUFFERS, "the kernel has all buffers again");
    });
}

/// What finds no buffer is counted once, though the kernel's statistics have it in two places.
#[test]
fn a_frame_without_a_buffer_is_one_drop() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        for number in 0..RX_BUFFERS + 100 {
            outside.send(&bytes(60, number));
        }
        let deadline = Instant::now() + LIMIT;
        while queues[0].socket.dropped() < 100 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut taken = 0;
        while taken < RX_BUFFERS {
            let frames = take(&mut queues[0].ingress);
            assert!(!frames.is_empty(), "{taken} frames");
            taken += frames.len();
        }
        assert_eq!((taken, queues[0].socket.dropped()), (RX_BUFFERS, 100));
    });
}

#[test]
fn tags_are_part_of_a_frame_and_a_short_one_is_padded_with_zeroes() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let queue = &mut queues[0];
        for len in [64, 1518] {
            outside.send(&tagged(len));
            assert_eq!(take(&mut queue.ingress), [(tagged(len), false)]);
            assert_eq!(queue.send(&tagged(len)), Outcome::Delivered);
            // The kernel takes a tag out of the bytes for whoever reads them by a packet socket.
            let seen = outside.take(1).remove(0);
            assert_eq!(seen[..12], tagged(len)[..12]);
            assert!(seen.ends_with(&tagged(len)[18..]));
        }
        // What an earlier frame has left in the buffer does not go out.
        queue.send(&[0xff; 1514]);
        outside.take(1);
        let short = bytes(15, 1);
        assert_eq!(queue.send(&short), Outcome::Delivered);
        assert_eq!(outside.take(1), [[&short[..], &[0; 45]].concat()]);
    });
}

/// A guest's frame with an offload is finished, wherever its body lies.
#[test]
fn offloads_are_done_before_a_frame_goes_out() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let queue = &mut queues[0];
        let platform = platform();
        for (payload, gso) in
            [(1000, None), (8000, Some(tso())), (8000, Some(Gso { size: 100, ..tso() }))]
        {
            let bytes = tcp(payload);
            let sender = Sender::new(&platform, &bytes);
            let expected = segments(&bytes, gso.unwrap_or(Gso { size: 1448, ..tso() }));
            let (granted, mapped) = (sender.frame(&bytes, gso), sender.mapped(&bytes, gso));
            let both =
                [(&granted, sender.granted_body()), (&mapped, Body::Regions(&sender.regions))];
            for (frame, body) in both {
                assert_eq!(queue.offer(body, &[frame]), [Outcome::Delivered]);
                assert_eq!(outside.take(expected.len()), expected);
            }
            // Those that need nothing are copied in one batch.
            if gso.is_none() {
                let frame = Frame { checksum: Checksum::Unknown, ..sender.frame(&bytes, None) };
                let outcomes = queue.offer(sender.granted_body(), &[&frame, &granted, &frame]);
                assert_eq!(outcomes, [Outcome::Delivered; 3]);
                assert_eq!(outside.take(3), [bytes.clone(), expected[0].clone(), bytes.clone()]);
            }
        }
        let countless = tcp(8000);
        let sender = Sender::new(&platform, &countless);
        let frame = sender.mapped(&countless, Some(Gso { size: 8, ..tso() }));
        let outcomes = queue.offer(Body::Regions(&sender.regions), &[&frame]);
        assert_eq!(outcomes, [Outcome::Dropped(DropReason::TooLarge)]);
        assert!(outside.is_empty());
    });
}

#[test]
fn a_frame_beyond_the_mtu_is_dropped_as_such_and_the_mtu_may_change() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, watch) = take_over();
        let queue = &mut queues[0];
        let too_large = Outcome::Dropped(DropReason::TooLarge);
        assert_eq!(queue.send(&bytes(1515, 0)), too_large);
        assert_eq!(queue.send(&tagged(1519)), too_large);
        let long = tcp(4000);
        let sender = Sender::new(&platform(), &long);
        let segments = sender.mapped(&long, Some(Gso { size: 1461, ..tso() }));
        assert_eq!(queue.offer(Body::Regions(&sender.regions), &[&segments]), [too_large]);
        ["nic0", "pv0"].iter().for_each(|name| ip(&format!("link set {name} mtu 3000")));
        assert_eq!(queue.send(&bytes(3014, 0)), too_large);
        watch.check_mtu();
        assert_eq!(queue.send(&bytes(3014, 0)), Outcome::Delivered);
        assert_eq!(outside.take(1), [bytes(3014, 0)]);
        outside.send(&bytes(3014, 1));
        assert_eq!(take(&mut queue.ingress), [(bytes(3014, 1), false)]);
        assert_eq!(queue.send(&bytes(3015, 0)), too_large);
    });
}

/// A driver that runs out of buffers says so after it has polled for some, so it may be late for the last poll. It gets no frames then,
/// and without frames no event comes: it is asked again.
#[test]
fn a_driver_without_buffers_is_notified_again_of_those_that_there_are() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, _watch) = take_over();
        let ingress = &mut queues[0].ingress;
        assert_eq!(ingress.arm().unwrap(), Armed::Asleep);
        ingress.set_starved(true);
        for least in [1, 2, 4, 8, 16, 32, 64, 64] {
            let least = Instant::now() + Duration::from_millis(least);
            let Armed::Until(again) = ingress.arm().unwrap() else { panic!("it sleeps") };
            assert!(again >= least && again < least + LIMIT);
        }
        outside.send(&bytes(60, 1));
        let deadline = Instant::now() + LIMIT;
        while ingress.arm().unwrap() != Armed::Ready {
            assert!(Instant::now() < deadline, "no frame");
        }
        ingress.set_starved(false);
        take(ingress);
        assert_eq!(ingress.arm().unwrap(), Armed::Asleep);
    });
}

/// Queues that the NIC gets later have no socket, and the watch goes by the interface and not by its name.
#[test]
fn a_nic_that_changes_is_seen_whatever_its_name_is() {
    in_own_network(|| {
        let mut outside = wire(2, 1500);
        let channels = |count| {
            let arguments = ["-L", "nic0", "rx", count, "tx", count];
            let ethtool = Command::new("ethtool").args(arguments).status().unwrap();
            assert!(ethtool.success());
        };
        let ethtool = Command::new("ethtool").args(["-L", "pv0", "tx", "1"]).status().unwrap();
        assert!(ethtool.success());
        channels("1");
        let (mut queues, watch) = take_over();
        assert_eq!((queues.len(), watch.unserved_queues()), (1, 0));
        channels("2");
        assert_eq!(watch.unserved_queues(), 1);
        ip("link set nic0 down");
        ip("link set nic0 name renamed");
        ip("link add nic0 mtu 1000 type veth peer name nic1");
        ["renamed", "pv0"].iter().for_each(|name| ip(&format!("link set {name} mtu 3000 up")));
        watch.check_mtu();
        assert_eq!(watch.unserved_queues(), 1);
        assert_eq!(queues[0].send(&bytes(3014, 0)), Outcome::Delivered);
        assert_eq!(outside.take(1), [bytes(3014, 0)]);
        ip("link delete renamed");
        assert_eq!(watch.unserved_queues(), 0);
    });
}

/// An administrator takes the program off: frames go to the network stack from then on.
#[test]
fn a_program_that_is_taken_off_is_seen() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        let (mut queues, watch) = take_over();
        outside.send(&bytes(100, 0));
        take(&mut queues[0].ingress);
        assert!(queues[0].socket.has_program());
        bpf::detach(queues[0].socket.link()).unwrap();
        assert!(!queues[0].socket.has_program());
        assert!(!watch.is_deleted());
    });
}

/// A daemon that was killed and comes back has the NIC again.
#[test]
fn a_nic_is_given_back_and_may_be_taken_again() {
    in_own_network(|| {
        let mut outside = wire(1, 1500);
        for round in 0..5 {
            let (mut queues, watch) = take_over();
            assert!(!watch.is_deleted());
            outside.send(&bytes(100, round));
            assert_eq!(take(&mut queues[0].ingress), [(bytes(100, round), false)]);
        }
        let mut ordinary = reader(Arc::new(packet::open("nic0", 1).unwrap().remove(0)));
        // The kernel may drop frames while it takes the program off the NIC.
        let came = (0..20).find_map(|_| {
            outside.send(&bytes(100, 9));
            take(&mut ordinary).pop()
        });
        assert_eq!(came, Some((bytes(100, 9), false)));
        let (mut queues, watch) = take_over();
        outside.send(&bytes(100, 7));
        assert_eq!(take(&mut queues[0].ingress), [(bytes(100, 7), false)]);
        outside.socket.take();
        ip("link delete nic0");
        assert!(watch.is_deleted());
        assert_eq!(watch.name(), "nic0");
    });
}

#[test]
fn errors_name_the_cause_and_the_next_step() {
    in_own_network(|| {
        let _outside = wire(1, 1500);
        let error = |name| XdpNic::open(name, false).unwrap_err();
        let missing = error("nic7").to_string();
        assert!(missing.contains("no interface nic7"), "{missing}");
        {
            let _other = Xdp::attach("nic0", 1, 4).unwrap();
            let taken = error("nic0").to_string();
            assert!(taken.contains("another XDP program") && taken.contains("xdp off"), "{taken}");
        }
        ip("link add rx2 numrxqueues 2 numtxqueues 1 type veth peer name rx1");
        let fewer = error("rx2");
        let counts = matches!(fewer, XdpNicError::FewToSend { receive: 2, transmit: 1, .. });
        assert!(counts && fewer.to_string().contains("ethtool -L rx2 rx 1"), "{fewer}");
        ip("link set nic0 mtu 3819");
        let long = error("nic0");
        assert!(matches!(long, XdpNicError::TooLong { mtu: 3819, .. }), "{long}");
        assert!(long.to_string().contains("3818") && long.to_string().contains("af-packet"));
    });
}
