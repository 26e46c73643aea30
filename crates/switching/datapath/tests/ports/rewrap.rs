//! Wrappers that come and go while frames flow.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use port::{
    Body, Broken, Budget, Egress, EgressWrapper, Ingress, IngressWrapper, Offer, Queue, Received,
    Rewrap,
};

use crate::common::wait_until;
use crate::{Receiver, Sender, Switch, plug};

/// A wrapper that counts the frames of both sides.
struct Counting<P> {
    inner: P,
    seen: Arc<AtomicU64>,
}

impl IngressWrapper for Counting<Box<dyn Ingress>> {
    port::wraps!(inner: Ingress);

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        let result = self.inner.receive(budget, received);
        self.seen.fetch_add(received.fresh as u64, Ordering::Relaxed);
        result
    }
}

impl EgressWrapper for Counting<Box<dyn Egress>> {
    port::wraps!(inner: Egress);

    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        self.seen.fetch_add(offers.len() as u64, Ordering::Relaxed);
        self.inner.deliver(body, offers, now)
    }
}

struct On(Arc<AtomicU64>);

impl Rewrap for On {
    fn ingress(&self, inner: Box<dyn Ingress>) -> Box<dyn Ingress> {
        Box::new(Counting { inner, seen: self.0.clone() })
    }

    fn egress(&self, inner: Box<dyn Egress>) -> Box<dyn Egress> {
        Box::new(Counting { inner, seen: self.0.clone() })
    }
}

struct Off;

impl Rewrap for Off {
    fn ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let any: Box<dyn Any> = ingress;
        any.downcast::<Counting<Box<dyn Ingress>>>().unwrap().inner
    }

    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        let any: Box<dyn Any> = egress;
        any.downcast::<Counting<Box<dyn Egress>>>().unwrap().inner
    }
}

#[test]
fn every_queue_is_wrapped_once_if_a_worker_has_several() {
    let switch = Switch::new(1);
    let queues = [(); 3].map(|()| Queue { ingress: Sender::new().1, egress: Receiver::new().1 });
    let port = switch.datapath.attach("red", queues.into(), Vec::new());
    let wrapped = Arc::new(AtomicU64::new(0));
    let count: Arc<dyn Rewrap> = Arc::new(Counter(wrapped.clone()));
    switch.datapath.rewrap(&port, &count);
    assert_eq!(wrapped.load(Ordering::Relaxed), 3);
}

/// Counts the ingress queues, and leaves them as they are.
struct Counter(Arc<AtomicU64>);

impl Rewrap for Counter {
    fn ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        self.0.fetch_add(1, Ordering::Relaxed);
        ingress
    }

    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress
    }
}

#[test]
fn a_wrapper_comes_and_goes_while_frames_flow() {
    let switch = Switch::new(2);
    let red = plug(&switch.datapath, 1, Sender::new(), Receiver::new());
    let blue = plug(&switch.datapath, 2, Sender::new(), Receiver::new());
    let seen = Arc::new(AtomicU64::new(0));
    let (on, off): (Arc<dyn Rewrap>, Arc<dyn Rewrap>) = (Arc::new(On(seen.clone())), Arc::new(Off));
    let mut sent = 0u16;
    let mut send = |n: u16| {
        for number in sent..sent + n {
            let header = [&blue.mac[..], &red.mac, &[0x88, 0xb5]].concat();
            red.sender.send([header, number.to_be_bytes().to_vec()].concat());
        }
        sent += n;
    };
    for _ in 0..20 {
        send(50);
        switch.datapath.rewrap(&red.port, &on);
        switch.datapath.rewrap(&blue.port, &on);
        send(50);
        switch.datapath.rewrap(&red.port, &off);
        switch.datapath.rewrap(&blue.port, &off);
    }
    wait_until("every frame", || blue.egress.count() == 2000);
    let numbers = blue.egress.take().into_iter().map(|bytes| number_of(&bytes));
    assert!(numbers.eq(0..2000), "each once, in order");
    let before = seen.load(Ordering::Relaxed);
    assert!(before > 0);
    send(50);
    wait_until("the last frames", || blue.egress.count() == 50);
    assert_eq!(seen.load(Ordering::Relaxed), before, "it is gone");
}

fn number_of(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[14], bytes[15]])
}
