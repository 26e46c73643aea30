//! Queues that get another worker while they carry.

use datapath::{MoveError, Port, QueueName, Workers};
use port::{Outcome, Queue};
use port_testing::Sender;

use crate::common::{frame, wait_until};
use crate::{Plugged, Receiver, Switch, plain, plug, slow};

/// The worker that has each queue of a port.
fn workers_of(switch: &Switch, port: &Port) -> Vec<usize> {
    let loads = switch.datapath.loads();
    let of = |number| {
        let has = |load: &datapath::WorkerLoad| {
            load.queues.iter().any(|queue| {
                queue.port.name() == port.name() && queue.queue == QueueName::Queue(number)
            })
        };
        loads.iter().position(has).unwrap()
    };
    (0..port.queues()).map(of).collect()
}

fn move_to(switch: &Switch, port: &Port, worker: usize) {
    switch.datapath.move_queue(port, QueueName::Queue(0), worker).unwrap();
}

/// Sends frames from red while its queue moves between two workers.
fn send_while_moving(switch: &Switch, red: &Plugged<Receiver>, to: [u8; 6], count: u32) {
    for n in 0..count {
        red.sender.send(frame(to, red.mac, 300, n));
        if n % 8 == 0 {
            move_to(switch, &red.port, (n / 8 % 2) as usize);
        }
    }
}

#[test]
fn frames_of_a_queue_that_moves_come_once_and_in_order() {
    let switch = Switch::new(2);
    let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    send_while_moving(&switch, &red, blue.mac, 4000);
    wait_until("all frames", || blue.egress.count() == 4000);
    let expected: Vec<_> = (0..4000).map(|n| frame(blue.mac, red.mac, 300, n)).collect();
    assert!(blue.egress.take() == expected, "a frame is missing, twice there, or late");
    wait_until("the answers", || red.sender.answers().len() == 4000);
    assert!(red.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
    // A frame that comes after the last move wakes the worker that it moved to.
    red.sender.send(frame(blue.mac, red.mac, 300, 0));
    wait_until("the last frame", || blue.egress.count() == 1);
}

#[test]
fn frames_that_wait_for_room_move_too() {
    let switch = Switch::new(2);
    let red = plain(&switch.datapath, 1);
    let blue = plug(&switch.datapath, 2, Sender::new(), Receiver::with_room(0));
    crate::refresh(&switch.datapath);
    // Few at a time: none may wait for longer than a frame may.
    let send = |n| red.sender.send(frame(blue.mac, red.mac, 300, n));
    (0..4).for_each(send);
    wait_until("a turn", || red.sender.turns() > 0);
    for n in 0..40 {
        move_to(&switch, &red.port, n as usize % 2);
        blue.egress.make_room(1);
        wait_until("a frame", || blue.egress.count() == n as usize + 1);
        if n + 4 < 40 {
            send(n + 4);
        }
    }
    let expected: Vec<_> = (0..40).map(|n| frame(blue.mac, red.mac, 300, n)).collect();
    assert_eq!(blue.egress.take(), expected);
}

#[test]
fn frames_in_flight_move_too() {
    let switch = Switch::new(2);
    let (red, device) = (plain(&switch.datapath, 1), slow(&switch.datapath, 2));
    for n in 0..8 {
        red.sender.send(frame(device.mac, red.mac, 300, n));
        wait_until("a frame in flight", || device.egress.in_flight() == 1);
        move_to(&switch, &red.port, n as usize % 2);
        device.egress.finish(0);
        wait_until("its answer", || red.sender.answers().len() == n as usize + 1);
    }
    assert!(red.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
}

#[test]
fn a_port_that_moves_is_detached_and_wrapped_as_any() {
    let switch = Switch::new(2);
    let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    for n in 0..20 {
        move_to(&switch, &red.port, n % 2);
        switch.datapath.synchronise(red.port.id());
        assert_eq!(workers_of(&switch, &red.port), [n % 2]);
    }
    red.sender.send(frame(blue.mac, red.mac, 300, 0));
    wait_until("a frame", || blue.egress.count() == 1);
    switch.datapath.detach(red.port.id());
    let named = |load: &datapath::WorkerLoad| load.queues.iter().any(|q| q.port.name() == "port1");
    assert!(!switch.datapath.loads().iter().any(named), "nobody has anything of it");
}

#[test]
fn what_cannot_move_is_refused() {
    let switch = Switch::new(2);
    let red = plain(&switch.datapath, 1);
    let to = |queue, worker| switch.datapath.move_queue(&red.port, queue, worker).unwrap_err();
    assert_eq!(to(QueueName::Queue(0), 2), MoveError::NoWorker { number: 2, last: 1 });
    assert_eq!(to(QueueName::Queue(1), 0), MoveError::NoQueue);
    switch.datapath.place(&red.port, Workers::Of(vec![1])).unwrap();
    assert_eq!(to(QueueName::Queue(0), 0), MoveError::NotAllowed(0));
}

/// A port with so many queues.
fn wide(switch: &Switch, name: &str, queues: usize) -> std::sync::Arc<Port> {
    let queue = |_| Queue { ingress: Sender::new().1, egress: Receiver::new().1 };
    let port = switch.datapath.attach(name, (0..queues).map(queue).collect(), Vec::new());
    switch.datapath.synchronise(port.id());
    port
}

#[test]
fn queues_go_to_the_workers_that_their_port_names() {
    let switch = Switch::new(3);
    let (red, blue) = (wide(&switch, "red", 3), wide(&switch, "blue", 3));
    switch.datapath.place(&red, Workers::Of(vec![1, 2])).unwrap();
    let placed = workers_of(&switch, &red);
    assert!(placed.iter().all(|worker| [1, 2].contains(worker)), "{placed:?}");
    assert!(placed.contains(&1) && placed.contains(&2), "{placed:?}");
    let wrong = switch.datapath.place(&red, Workers::Of(vec![3])).unwrap_err();
    assert_eq!(wrong, MoveError::NoWorker { number: 3, last: 2 });
    // One of its own is none of those.
    switch.datapath.place(&blue, Workers::Own).unwrap();
    assert_eq!(workers_of(&switch, &blue), [0; 3]);
    // All workers are somebody's by now, and one is for the others.
    let green = wide(&switch, "green", 1);
    assert_eq!(switch.datapath.place(&green, Workers::Own).unwrap_err(), MoveError::NoneLeft);
}

#[test]
fn queues_go_to_near_workers_unless_their_port_names_others() {
    let switch = Switch::new(4);
    let (red, blue) = (wide(&switch, "red", 4), wide(&switch, "blue", 2));
    let moved = switch.datapath.prefer(&red, &[1, 2]);
    assert_eq!(moved.len(), 2, "{moved:?}");
    let mut placed = workers_of(&switch, &red);
    placed.sort_unstable();
    assert_eq!(placed, [1, 1, 2, 2]);
    switch.datapath.place(&blue, Workers::Of(vec![3])).unwrap();
    assert!(switch.datapath.prefer(&blue, &[1, 2]).is_empty());
    assert_eq!(workers_of(&switch, &blue), [3, 3]);
    // It is a wish, and no bound.
    switch.datapath.move_queue(&red, QueueName::Queue(0), 3).unwrap();
}

#[test]
fn a_worker_of_its_own_serves_nobody_else() {
    let switch = Switch::new(2);
    let (red, blue) = (wide(&switch, "red", 2), wide(&switch, "blue", 2));
    switch.datapath.place(&red, Workers::Own).unwrap();
    let [own, again] = workers_of(&switch, &red)[..] else { panic!("two queues") };
    assert_eq!(own, again);
    let other = 1 - own;
    assert_eq!(workers_of(&switch, &blue), [other; 2]);
    let green = wide(&switch, "green", 3);
    assert_eq!(workers_of(&switch, &green), [other; 3], "nor one that comes later");
    let refused = switch.datapath.move_queue(&green, QueueName::Queue(0), own).unwrap_err();
    assert_eq!(refused, MoveError::NotAllowed(own));
    // With its end the worker is everybody's again.
    switch.datapath.detach(red.id());
    switch.datapath.move_queue(&green, QueueName::Queue(0), own).unwrap();
}
