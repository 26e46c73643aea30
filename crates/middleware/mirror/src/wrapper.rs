//! Both sides of a mirrored queue.

use std::time::Duration;

use port::{
    Body, Broken, Egress, EgressWrapper, FRAME_MAX, Ingress, IngressWrapper, Offer, Outcome,
    Outcomes,
};

use crate::buffer::COPY_BYTES;
use crate::mirror::Mirror;

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

/// Copies the frames that come from a port to these mirrors.
#[must_use]
pub fn mirror_ingress(inner: Box<dyn Ingress>, mirrors: &[Mirror]) -> Box<dyn Ingress> {
    if mirrors.is_empty() { inner } else { Box::new(Mirrored::new(inner, mirrors)) }
}

/// Copies the frames that go to a port to these mirrors.
#[must_use]
pub fn mirror_egress(inner: Box<dyn Egress>, mirrors: &[Mirror]) -> Box<dyn Egress> {
    if mirrors.is_empty() { inner } else { Box::new(Mirrored::new(inner, mirrors)) }
}

/// Takes the mirrors off a queue whose outermost wrapper they are, or returns the queue as it is.
#[must_use]
pub fn unmirror_ingress(ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
    ingress.strip(|Mirrored { inner, .. }| inner)
}

/// The same for the other side.
#[must_use]
pub fn unmirror_egress(egress: Box<dyn Egress>) -> Box<dyn Egress> {
    egress.strip(|Mirrored { inner, .. }| inner)
}

impl IngressWrapper for Mirrored<dyn Ingress> {
    fn inner(&self) -> &dyn Ingress {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Ingress {
        &mut *self.inner
    }

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
    fn inner(&self) -> &dyn Egress {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Egress {
        &mut *self.inner
    }

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
