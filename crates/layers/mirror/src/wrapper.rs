//! Both sides of a mirrored queue.

use std::time::Duration;

use port::{
    Body, Broken, Egress, EgressWrapper, FRAME_MAX, Ingress, IngressWrapper, Layer, Offer, Outcome,
    Outcomes,
};

use crate::Mirror;
use crate::buffer::COPY_BYTES;

/// A side of a queue, and the mirrors of its frames.
struct Mirrored<S: ?Sized> {
    inner: Box<S>,
    mirrors: Vec<Mirror>,
    /// Room for a frame.
    scratch: Box<[u8]>,
}

impl<S: ?Sized> Mirrored<S> {
    fn new(inner: Box<S>, mirrors: &[Mirror]) -> Self {
        Self { inner, mirrors: mirrors.to_vec(), scratch: vec![0; FRAME_MAX].into() }
    }
}

/// The mirrors of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorLayer {
    /// Those that get the frames from the port into the switch.
    pub ingress: Vec<Mirror>,
    /// Those that get the frames from the switch out of the port.
    pub egress: Vec<Mirror>,
}

impl Layer for MirrorLayer {
    fn strip_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        ingress.strip(|Mirrored { inner, .. }| inner)
    }

    fn strip_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress.strip(|Mirrored { inner, .. }| inner)
    }

    fn wrap_ingress(&self, inner: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let Self { ingress, .. } = self;
        if ingress.is_empty() { inner } else { Box::new(Mirrored::new(inner, ingress)) }
    }

    fn wrap_egress(&self, inner: Box<dyn Egress>) -> Box<dyn Egress> {
        let Self { egress, .. } = self;
        if egress.is_empty() { inner } else { Box::new(Mirrored::new(inner, egress)) }
    }
}

impl IngressWrapper for Mirrored<dyn Ingress> {
    port::wraps!(inner: Ingress);

    /// Copies the frames that are about to leave the window: their bodies can still be read.
    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { inner, mirrors, scratch } = self;
        let window = inner.window();
        let is_done = |slot: &&u8| match outcomes[usize::from(**slot)] {
            Outcome::SourceFault => false,
            outcome => outcome.is_final(),
        };
        let done = window.order().iter().filter(is_done);
        if done.clone().next().is_some() {
            inner.with_body(&mut |body| {
                let mut left = COPY_BYTES;
                for Mirror(buffer) in &*mirrors {
                    let frames = done.clone().map(|slot| window.frame(*slot));
                    buffer.copy(frames, body, scratch, &mut left);
                }
            });
        }
        inner.finish(outcomes);
    }
}

impl EgressWrapper for Mirrored<dyn Egress> {
    port::wraps!(inner: Egress);

    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        let Self { inner, mirrors, scratch } = self;
        let result = inner.deliver(body, offers, now);
        let is_taken =
            |offer: &&Offer<'_>| matches!(offer.outcome, Outcome::Delivered | Outcome::InFlight(_));
        let mut left = COPY_BYTES;
        for Mirror(buffer) in &*mirrors {
            let taken = offers.iter().filter(is_taken);
            buffer.copy(taken.map(|offer| offer.frame), body, scratch, &mut left);
        }
        result
    }
}
