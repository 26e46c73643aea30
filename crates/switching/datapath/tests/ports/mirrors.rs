//! Ports whose frames are copied to another port.

use std::sync::Arc;

use datapath::{Port, PortParts};
use mirror::{COPIES_MAX, COPY_BYTES, Mirror, MirrorLayer};
use port::{Budget, DropReason, Egress, Layer, Layers, Outcome, Queue, Received, Rewrap, WINDOW};
use port_testing::Sender;
use switch::MacAddr;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{ALL, Plugged, Switch, mac, plain, plug, refresh};

/// Attaches a mirror's port.
pub fn mirror(switch: &Switch, snaplen: u32) -> (Mirror, Arc<Port>) {
    let mirror = Mirror::new(snaplen).unwrap();
    let parts = PortParts { queues: vec![mirror.queue()], ..PortParts::default() };
    let port = switch.datapath.attach_apart("mirror", parts, None);
    (mirror, port)
}

/// Has these mirrors copy a port's frames.
pub fn watch(switch: &Switch, port: &Plugged<Receiver>, mirrors: &[&Mirror]) {
    let mirrors: Vec<_> = mirrors.iter().map(|one| (*one).clone()).collect();
    let layer = MirrorLayer { ingress: mirrors.clone(), egress: mirrors };
    let both: Arc<dyn Rewrap> = Arc::new(Layers(vec![Box::new(layer)]));
    switch.datapath.rewrap(&port.port, &both);
}

/// Plugs in a port that gets copies only.
pub fn target(switch: &Switch, n: u8, receiver: (Receiver, Box<dyn Egress>)) -> Plugged<Receiver> {
    let ((sender, ingress), (egress, side)) = (Sender::new(), receiver);
    let queues = vec![Queue { ingress, egress: side }];
    let parts = PortParts { queues, ..PortParts::default() };
    let port = switch.datapath.attach_target("target", parts);
    switch.datapath.teach(port.id(), MacAddr(mac(n))).unwrap();
    refresh(&switch.datapath);
    Plugged { port, mac: mac(n), sender, egress }
}

fn send(from: &Plugged<Receiver>, bytes: &[u8]) {
    let before = from.sender.answers().len();
    from.sender.send(bytes);
    wait_until("the answer", || from.sender.answers().len() > before);
}

#[test]
fn a_target_gets_what_a_port_sends_and_receives_and_nothing_else() {
    for workers in [1, 2] {
        let switch = Switch::new(workers);
        let [red, blue] = [0, 1].map(|n| plain(&switch.datapath, n));
        let probe = target(&switch, 2, Receiver::new());
        let (mirror, port) = mirror(&switch, 0);
        switch.datapath.aim(&port, &probe.port);
        watch(&switch, &red, &[&mirror]);
        let frames = [
            frame(blue.mac, red.mac, 60_000, 1),
            frame(red.mac, blue.mac, 60, 2),
            frame(ALL, blue.mac, 200, 3),
        ];
        [&red, &blue, &blue].into_iter().zip(&frames).for_each(|(from, frame)| send(from, frame));
        // Not for the mirrored port, though the target has this address.
        send(&blue, &frame(probe.mac, blue.mac, 60, 4));
        wait_until("the copies", || probe.egress.count() == 4);
        let copies = probe.egress.take();
        assert_eq!(copies[..3], frames);
        assert_eq!(copies[3][..6], probe.mac, "flooded to the mirrored port");
        assert_eq!(blue.egress.take(), frames[..1]);
        assert_eq!(mirror.counts().copied, 4);
        // What the target sends goes nowhere, and teaches nothing.
        send(&probe, &frame(ALL, red.mac, 60, 5));
        assert_eq!(probe.port.counters().snapshot().dropped(DropReason::NotForwarded), 1);
        assert_eq!((red.egress.count(), blue.egress.count()), (3, 0));
        assert!(switch.datapath.addresses().iter().all(|entry| entry.port != probe.port.id()));
        // It can be put back, and then the mirror goes.
        switch.datapath.aim_away(&port, &probe.port);
        switch.datapath.set_target(probe.port.id(), false, None);
        watch(&switch, &red, &[]);
        send(&red, &frame(ALL, red.mac, 60, 6));
        assert_eq!((probe.egress.count(), blue.egress.count()), (1, 1));
        switch.datapath.set_target(probe.port.id(), true, None);
        send(&red, &frame(ALL, red.mac, 60, 7));
        assert_eq!((probe.egress.count(), blue.egress.count()), (1, 2));
    }
}

#[test]
fn a_target_without_room_loses_copies_and_delays_nobody() {
    const FRAMES: u32 = 2000;
    let switch = Switch::new(1);
    let [red, blue] = [0, 1].map(|n| plain(&switch.datapath, n));
    let probe = target(&switch, 2, Receiver::with_room(0));
    let (mirror, port) = mirror(&switch, 0);
    switch.datapath.aim(&port, &probe.port);
    watch(&switch, &red, &[&mirror]);
    let frames: Vec<_> = (0..FRAMES).map(|n| frame(blue.mac, red.mac, 1500, n)).collect();
    frames.iter().for_each(|bytes| red.sender.send(bytes));
    wait_until("the originals", || blue.egress.count() == frames.len());
    assert_eq!(blue.egress.take(), frames);
    // The turn of the last ones has ended, their copies included.
    wait_until("the answers", || red.sender.answers().len() == frames.len());
    assert!(red.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
    let counts = mirror.counts();
    assert_eq!(counts.copied + counts.lost, u64::from(FRAMES));
    assert!(counts.lost > 0 && counts.copied >= u64::from(COPIES_MAX), "{counts:?}");
    // With room again, copies come, and none twice.
    probe.egress.make_room(usize::MAX / 2);
    let last = frame(blue.mac, red.mac, 100, FRAMES);
    wait_until("the next copy", || {
        send(&red, &last);
        probe.egress.take().last() == Some(&last)
    });
}

#[test]
fn a_mirror_keeps_its_next_target_when_the_last_one_ends() {
    let switch = Switch::new(1);
    let [red, blue] = [0, 1].map(|n| plain(&switch.datapath, n));
    let probes = [2, 3].map(|n| target(&switch, n, Receiver::new()));
    let (mirror, port) = mirror(&switch, 0);
    probes.iter().for_each(|probe| switch.datapath.aim(&port, &probe.port));
    switch.datapath.aim_away(&port, &probes[0].port);
    watch(&switch, &red, &[&mirror]);
    send(&red, &frame(blue.mac, red.mac, 60, 1));
    wait_until("the copy", || probes[1].egress.count() == 1);
}

#[test]
fn copies_are_cut_and_go_to_each_mirror() {
    let switch = Switch::new(1);
    let [red, blue] = [0, 1].map(|n| plain(&switch.datapath, n));
    let probes = [2, 3].map(|n| target(&switch, n, Receiver::new()));
    let mirrors = [mirror(&switch, 200), mirror(&switch, 0)];
    for ((_, port), probe) in mirrors.iter().zip(&probes) {
        switch.datapath.aim(port, &probe.port);
    }
    watch(&switch, &red, &[&mirrors[0].0, &mirrors[1].0]);
    let bytes = frame(blue.mac, red.mac, 9000, 1);
    send(&red, &bytes);
    wait_until("the copies", || probes.iter().all(|probe| probe.egress.count() == 1));
    assert_eq!(probes[0].egress.take(), [&bytes[..200]]);
    assert_eq!(probes[1].egress.take(), [&bytes[..]]);
    // A target that goes leaves nothing behind.
    switch.datapath.detach(probes[0].port.id());
    let green = plug(&switch.datapath, 4, Sender::new(), Receiver::new());
    send(&red, &bytes);
    wait_until("the copy", || probes[1].egress.count() == 1);
    assert_eq!(green.egress.count(), 0, "it has the number of the target");
}

/// Frames to nowhere cost nothing but their copies.
#[test]
fn a_turn_makes_copies_of_so_many_bytes() {
    const LEN: usize = 60_000;
    let mirrors = [(); 2].map(|()| Mirror::new(0).unwrap());
    let (sender, ingress) = Sender::new();
    let layer = MirrorLayer { ingress: mirrors.to_vec(), ..MirrorLayer::default() };
    let mut ingress = layer.wrap_ingress(ingress);
    for turns in 1..3 {
        (0..WINDOW).for_each(|_| sender.send(frame(mac(0), mac(0), LEN, 0)));
        ingress.receive(&mut Budget::TURN.clone(), &mut Received::default()).unwrap();
        assert_eq!(ingress.window().len(), WINDOW);
        ingress.finish(&[Outcome::Dropped(DropReason::NotForwarded); WINDOW]);
        let counts = mirrors.each_ref().map(Mirror::counts);
        let copied: u64 = counts.iter().map(|counts| counts.copied).sum();
        assert_eq!(copied, turns * (COPY_BYTES / LEN) as u64);
        let all = turns * 2 * WINDOW as u64;
        assert_eq!(counts.iter().map(|counts| counts.copied + counts.lost).sum::<u64>(), all);
    }
}
