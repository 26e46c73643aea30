//! Ports that change or go while others carry frames: the others are not late.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use port::{
    Armed, Broken, Budget, Coalescing, Egress, Ingress, IngressWrapper, Queue, Received, Rewrap,
};

use crate::common::wait_until;
use crate::{Receiver, Sender, Switch, plain};

/// A wrapper that is dropped only when the test says so, as where much memory is unmapped.
struct SlowDrop {
    inner: Box<dyn Ingress>,
    begun: mpsc::Sender<()>,
    end: mpsc::Receiver<()>,
}

impl IngressWrapper for SlowDrop {
    port::wraps!(inner: Ingress);
}

impl Drop for SlowDrop {
    fn drop(&mut self) {
        let _ = self.begun.send(());
        let _ = self.end.recv_timeout(Duration::from_secs(20));
    }
}

#[test]
fn no_frame_waits_for_a_queue_that_takes_long_to_drop() {
    let switch = Switch::new(1);
    let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    for is_added in [false, true] {
        let ((begun, has_begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        let ingress = Box::new(SlowDrop { inner: Sender::new().1, begun, end: ends });
        let datapath = &switch.datapath;
        std::thread::scope(|scope| {
            if is_added {
                let id = datapath.add_ingress(&red.port, ingress, None);
                scope.spawn(move || datapath.remove_ingress(id));
            } else {
                let queue = Queue { ingress, egress: Receiver::new().1 };
                let port = datapath.attach("green", vec![queue], Vec::new());
                scope.spawn(move || datapath.detach(port.id()));
            }
            has_begun.recv().unwrap();
            red.sender.send([&blue.mac[..], &red.mac, &[0x88, 0xb5]].concat());
            let start = Instant::now();
            while blue.egress.count() == 0 && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let arrived = blue.egress.take().len();
            end.send(()).unwrap();
            assert_eq!(arrived, 1, "a frame passes while the queue is dropped");
        });
    }
}

/// A wrapper that lets nothing pass for a long time, as a limit that is used up.
struct Late(Box<dyn Ingress>);

impl IngressWrapper for Late {
    port::wraps!(0: Ingress);

    fn receive(&mut self, _: &mut Budget, _: &mut Received) -> Result<(), Broken> {
        Ok(())
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Until(Instant::now() + Duration::from_secs(3600)))
    }
}

struct Delay;

impl Rewrap for Delay {
    fn ingress(&self, inner: Box<dyn Ingress>) -> Box<dyn Ingress> {
        Box::new(Late(inner))
    }

    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress
    }
}

struct Undelay;

impl Rewrap for Undelay {
    fn ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let any: Box<dyn std::any::Any> = ingress;
        any.downcast::<Late>().unwrap().0
    }

    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress
    }
}

#[test]
fn frames_that_waited_for_a_wrapper_go_on_when_it_is_taken_off() {
    let switch = Switch::new(1);
    let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    let (on, off): (std::sync::Arc<dyn Rewrap>, std::sync::Arc<dyn Rewrap>) =
        (std::sync::Arc::new(Delay), std::sync::Arc::new(Undelay));
    switch.datapath.rewrap(&red.port, &on);
    red.sender.send([&blue.mac[..], &red.mac, &[0x88, 0xb5]].concat());
    // The worker is asleep again after that.
    switch.datapath.synchronise(red.port.id());
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(blue.egress.count(), 0);
    switch.datapath.rewrap(&red.port, &off);
    wait_until("the frame", || blue.egress.count() == 1);
}

#[test]
fn wake_ups_are_coalesced_by_other_rules_while_frames_flow() {
    let switch = Switch::new(1);
    let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    let mut sent = 0;
    for coalescing in [Some(Coalescing { frames: 64, after: Duration::from_micros(100) }), None] {
        for _ in 0..20 {
            switch.datapath.coalesce(&red.port, coalescing);
            for _ in 0..30 {
                red.sender.send([&blue.mac[..], &red.mac, &[0x88, 0xb5]].concat());
            }
            sent += 30;
        }
        wait_until("every frame", || blue.egress.count() == sent);
    }
}
