//! Frames between ports in whose memory a thread can sleep and ports beside which it must not.

use std::sync::Arc;

use datapath::{Datapath, MemorySleep, PortMemory};
use port::{DropReason, Outcome};
use shm::Region;
use switch::MacAddr;

use crate::common::{Host, frame, receive, send, wait_until};
use crate::memory::Lends;
use crate::receiver::Receiver;
use crate::{ALL, Plugged, Sender, Switch, plain, plug_with};

const MACHINE: PortMemory =
    PortMemory { sleep: MemorySleep::AtWill, is_replaceable: true, borrows: false };
const BALLOON: PortMemory = PortMemory { is_replaceable: false, ..MACHINE };
/// Lengths of frames: without a body, and with one in up to 16 fragments.
const LENGTHS: [usize; 6] = [60, 128, 1514, 9000, 30_000, 65_000];
/// The address of a guest.
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 0xa];

fn sleepy(datapath: &Datapath, n: u8, memory: PortMemory) -> Plugged<Receiver> {
    plug_with(datapath, n, memory, Sender::new(), Receiver::new())
}

/// The frames of one sender.
fn from(all: &[Vec<u8>], mac: [u8; 6]) -> Vec<Vec<u8>> {
    all.iter().filter(|bytes| bytes[6..12] == mac).cloned().collect()
}

#[test]
fn frames_cross_whole_and_in_order() {
    let host = Host::new(1, 1);
    let mut guest = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    host.datapath.teach(guest.port.id(), MacAddr(GUEST)).unwrap();
    let ports = [
        plain(&host.datapath, 1),
        sleepy(&host.datapath, 2, MACHINE),
        sleepy(&host.datapath, 3, BALLOON),
        sleepy(&host.datapath, 4, BALLOON),
    ];
    let (mut sent, mut rounds) = (0, 0);
    for broadcast in [false, true] {
        // A port without room misses what is flooded, and an inbox has room for one of the longest frames.
        let lengths = LENGTHS.into_iter().filter(|len| !broadcast || *len <= 9000);
        let lengths = lengths.chain([300; 50]);
        for (n, len) in (0u32..).zip(lengths) {
            for (at, port) in ports.iter().enumerate() {
                let others = ports.iter().enumerate().filter(|(other, _)| *other != at);
                let to = others.map(|(_, other)| other.mac).chain([GUEST]);
                let to: Vec<_> = if broadcast { vec![ALL] } else { to.collect() };
                to.iter().for_each(|mac| port.sender.send(frame(*mac, port.mac, len, n)));
                sent += to.len();
            }
            let to: Vec<_> = match broadcast {
                true => vec![ALL],
                false => ports.iter().map(|port| port.mac).collect(),
            };
            for mac in to {
                let bytes = frame(mac, GUEST, len, n);
                wait_until("room", || send(&mut guest.queues[0], &bytes));
            }
            rounds += 1;
            // All of one length before the next, for the same reason.
            let mut at_guest = Vec::new();
            wait_until("its frames", || {
                at_guest.extend(std::iter::from_fn(|| receive(&mut guest.queues[0])));
                at_guest.len() == ports.len()
            });
            let macs: Vec<_> = ports.iter().map(|port| port.mac).chain([GUEST]).collect();
            for (at, port) in ports.iter().enumerate() {
                wait_until("its frames", || port.egress.count() == ports.len());
                let got = port.egress.take();
                for (other, mac) in macs.iter().enumerate().filter(|(other, _)| *other != at) {
                    let to = if broadcast { ALL } else { port.mac };
                    assert!(
                        from(&got, *mac) == [frame(to, *mac, len, n)],
                        "{other} to {at}: {len}"
                    );
                }
            }
            for port in &ports {
                let to = if broadcast { ALL } else { GUEST };
                assert!(from(&at_guest, port.mac) == [frame(to, port.mac, len, n)], "{len}");
            }
        }
    }
    let answers = || ports.iter().flat_map(|port| port.sender.answers());
    wait_until("the answers", || answers().count() == sent);
    assert!(answers().all(|(_, outcome)| outcome == Outcome::Delivered));
    for port in &ports {
        let counted = port.port.counters().snapshot();
        assert_eq!(counted.egress_frames, rounds * ports.len() as u64, "each is counted once");
    }
}

/// A frame that finds no room waits, and so do those behind it; no frame overtakes another one.
#[test]
fn frames_wait_for_a_receiver_without_room() {
    const FRAMES: u32 = 500;
    for workers in [1, 2] {
        let switch = Switch::new(workers);
        let (red, green) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
        let blue = plug_with(&switch.datapath, 2, MACHINE, Sender::new(), Receiver::with_room(0));
        for n in 0..FRAMES {
            red.sender.send(frame(blue.mac, red.mac, 4000, n));
        }
        // Those behind a full window wait with it. There is always room before the first of them has waited for too long, also where the checks are rare.
        let mut got = Vec::new();
        wait_until("all frames", || {
            blue.egress.make_room(40);
            got.extend(blue.egress.take());
            got.len() == FRAMES as usize
        });
        let all: Vec<_> = (0..FRAMES).map(|n| frame(blue.mac, red.mac, 4000, n)).collect();
        assert!(got == all, "in order");
        wait_until("the answers", || red.sender.answers().len() == FRAMES as usize);
        // Nothing is left that would hold back others.
        green.sender.send(frame(blue.mac, green.mac, 60, 0));
        blue.egress.make_room(1);
        wait_until("the last frame", || blue.egress.count() == 1);
    }
}

#[test]
fn a_frame_that_cannot_be_read_is_its_senders_fault() {
    let switch = Switch::new(1);
    let region = Arc::new(Region::anonymous(4096).unwrap());
    for (n, memory) in (0..).step_by(3).zip([PortMemory::default(), MACHINE, BALLOON]) {
        let (sender, inner) = Sender::new();
        // Of the first frame it has the body, of others it does not.
        let regions = [region.slice(0..4096).unwrap()].into();
        let red = plug_with(
            &switch.datapath,
            n,
            memory,
            (sender, Box::new(Lends { inner, regions })),
            Receiver::new(),
        );
        let (blue, green) =
            (sleepy(&switch.datapath, n + 1, BALLOON), plain(&switch.datapath, n + 2));
        for to in [blue.mac, green.mac] {
            for len in [60, 9000, 60, 9000, 60] {
                red.sender.send(frame(to, red.mac, len, 0));
            }
        }
        for to in [&blue, &green] {
            wait_until("frames without a body", || to.egress.count() == 3);
        }
        wait_until("the answers", || red.sender.answers().len() == 10);
        let faults = red.sender.answers().into_iter().map(|(_, outcome)| outcome);
        assert_eq!(faults.filter(|outcome| *outcome == Outcome::SourceFault).count(), 4);
        for to in [&blue, &green] {
            let counted = to.port.counters().snapshot();
            assert_eq!((counted.dropped(DropReason::MemoryFault), counted.egress_frames), (2, 3));
        }
        switch.datapath.detach(blue.port.id());
        switch.datapath.detach(green.port.id());
        switch.datapath.detach(red.port.id());
    }
}
