//! Ports that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use port::{Armed, Broken, Doorbell, DropReason, Event, Outcome, Task};

use crate::common::{frame, wait_for, wait_until};
use crate::{Switch, plain};

#[test]
fn an_egress_that_breaks_disables_its_own_port_only() {
    let switch = Switch::new(1);
    let [a, b, bad] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    bad.egress.break_down();
    for n in 0..6 {
        let to = if n % 2 == 0 { &bad } else { &b };
        a.sender.send(frame(to.mac, a.mac, 2000, n));
    }
    wait_until("the answers", || a.sender.answers().len() == 6);
    for (n, outcome) in a.sender.answers() {
        let gone = Outcome::Dropped(DropReason::PortGone);
        assert_eq!(outcome, if n % 2 == 0 { gone } else { Outcome::Delivered });
    }
    assert_eq!(b.egress.count(), 3);
    assert_eq!(bad.port.counters().snapshot().dropped(DropReason::PortGone), 3);
    let failures = switch.failures.lock().unwrap();
    let failure = wait_for("the failure", || failures.try_recv().ok());
    assert!(Arc::ptr_eq(&failure.port, &bad.port));
    assert_eq!(failure.reason, "the receiver broke down");
    assert!(failures.try_recv().is_err(), "it is reported once");
    let failed = [&a, &b, &bad].map(|port| port.port.has_failed());
    assert_eq!(failed, [false, false, true]);
    // Its frames still come in: only what broke is off.
    bad.sender.send(frame(b.mac, bad.mac, 100, 0));
    wait_until("a frame of the broken port", || b.egress.count() == 4);
}

#[test]
fn an_ingress_that_breaks_disables_its_own_port_only() {
    let switch = Switch::new(1);
    let [a, b, bad] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    bad.sender.break_down();
    let failures = switch.failures.lock().unwrap();
    let failure = wait_for("the failure", || failures.try_recv().ok());
    assert!(Arc::ptr_eq(&failure.port, &bad.port));
    assert_eq!(failure.reason, "the sender broke down");
    let turns = bad.sender.turns();
    bad.sender.send(frame(b.mac, bad.mac, 100, 0));
    for n in 0..10 {
        a.sender.send(frame(b.mac, a.mac, 2000, n));
    }
    wait_until("the frames of another port", || b.egress.count() == 10);
    assert_eq!(bad.sender.turns(), turns, "nobody asks it for frames");
    assert!(failures.try_recv().is_err());
    assert_eq!([&a, &b].map(|port| port.port.has_failed()), [false, false]);
}

/// A control ring whose guest breaks it.
struct BrokenRing {
    doorbell: Arc<Doorbell>,
    steps: Arc<AtomicUsize>,
}

impl Task for BrokenRing {
    fn event(&self) -> Arc<dyn Event> {
        self.doorbell.clone()
    }

    fn step(&mut self) -> Result<bool, Broken> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        Err(Broken::new("the ring broke down"))
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Asleep)
    }
}

#[test]
fn a_task_that_breaks_disables_its_own_port_only() {
    let switch = Switch::new(1);
    let [a, b] = [0, 1].map(|n| plain(&switch.datapath, n));
    let (doorbell, steps) = (Arc::new(Doorbell::new().unwrap()), Arc::<AtomicUsize>::default());
    let task = BrokenRing { doorbell: doorbell.clone(), steps: steps.clone() };
    let bad = switch.datapath.attach("bad", Vec::new(), vec![Box::new(task)]);
    doorbell.ring();
    let failures = switch.failures.lock().unwrap();
    let failure = wait_for("the failure", || failures.try_recv().ok());
    assert!(Arc::ptr_eq(&failure.port, &bad));
    assert_eq!(failure.reason, "the ring broke down");
    doorbell.ring();
    a.sender.send(frame(b.mac, a.mac, 2000, 0));
    wait_until("a frame of another port", || b.egress.count() == 1);
    assert_eq!(steps.load(Ordering::Relaxed), 1, "it has no further step");
    assert!(failures.try_recv().is_err(), "it is reported once");
    assert_eq!([&a.port, &b.port, &bad].map(|port| port.has_failed()), [false, false, true]);
}

#[test]
fn a_failure_names_its_port_after_the_number_is_used_again() {
    let switch = Switch::new(2);
    let [a, bad] = [0, 1].map(|n| plain(&switch.datapath, n));
    bad.egress.break_down();
    a.sender.send(frame(bad.mac, a.mac, 100, 0));
    wait_until("the failure", || bad.port.has_failed());
    switch.datapath.detach(bad.port.id());
    let next = plain(&switch.datapath, 1);
    assert_eq!(next.port.id(), bad.port.id());
    let failures = switch.failures.lock().unwrap();
    let failure = wait_for("the failure", || failures.try_recv().ok());
    assert!(Arc::ptr_eq(&failure.port, &bad.port));
    a.sender.send(frame(next.mac, a.mac, 100, 1));
    wait_until("a frame to the next port", || next.egress.count() == 1);
    assert!(!next.port.has_failed());
    assert!(failures.try_recv().is_err());
}
