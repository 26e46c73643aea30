//! The wrapper around an egress queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use port::{
    Body, Broken, DropReason, Egress, EgressWrapper, Layer, Merging, Metric, Offer, Outcome,
    WINDOW, whole,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::{Plan, is_worthwhile};

/// Merges what goes to a queue, if its port takes unsegmented TCP; otherwise returns the queue as it is.
#[must_use]
pub fn merge(inner: Box<dyn Egress>, counters: &Arc<Counters>) -> Box<dyn Egress> {
    if merging(&*inner).is_none() {
        return inner;
    }
    Box::new(Merger { inner, counters: Arc::clone(counters), plan: Box::default() })
}

/// Which merged frames a port takes.
fn merging(port: &dyn Egress) -> Option<Merging> {
    port.merging().filter(|merging| merging.features.tso_v4 || merging.features.tso_v6)
}

/// Merges frames for a port and counts them. Without counters, nothing is merged.
pub struct GroLayer(pub Option<Arc<Counters>>);

impl Layer for GroLayer {
    fn strip_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress.strip(|Merger { inner, .. }| inner)
    }

    fn wrap_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        match &self.0 {
            Some(counters) => merge(egress, counters),
            None => egress,
        }
    }
}

/// A queue whose frames are merged.
struct Merger {
    inner: Box<dyn Egress>,
    counters: Arc<Counters>,
    plan: Box<Plan>,
}

impl EgressWrapper for Merger {
    port::wraps!(inner: Egress);

    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        let Self { inner, plan, .. } = self;
        // Asked for each batch: a guest that attaches an XDP program takes no unsegmented frames from then on.
        if offers.len() > 1
            && let Some(merging) = merging(&**inner)
            && is_worthwhile(&merging, offers)
            && plan.find(&merging, offers, body)
        {
            return self.deliver_merged(body, offers, now);
        }
        inner.deliver(body, offers, now)
    }
}

impl Merger {
    fn deliver_merged(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        let Self { inner, plan, counters, .. } = self;
        let outputs = plan.outputs.iter();
        let mut merged: ArrayVec<Offer<'_>, WINDOW> =
            outputs.map(|output| plan.offer(output, offers)).collect();
        let result = deliver_whole(&mut **inner, body, &mut merged, now);
        let mut counts = GroStatus::default();
        for (output, offer) in plan.outputs.iter().zip(&merged) {
            if output.merged.is_some() && offer.outcome == Outcome::Delivered {
                counts.frames += 1;
                counts.segments += u64::from(output.segments());
            }
        }
        counters.add(counts);
        // By output: how many of its frames came before this one.
        let mut before = [0; WINDOW];
        for (offer, output) in offers.iter_mut().zip(&plan.output_of) {
            let output = usize::from(*output);
            let Offer { sent, outcome, .. } = merged[output];
            let is_merged = plan.outputs[output].merged.is_some();
            offer.outcome = match outcome {
                // Segmenting a merged frame gives the frames that it was made of, so the first `sent` of them were sent.
                _ if is_merged && before[output] < sent => Outcome::Delivered,
                Outcome::Waiting if !is_merged && offer.sent < sent => {
                    Outcome::Partial { segments: sent }
                }
                outcome => outcome,
            };
            before[output] += 1;
        }
        result?;
        let parts = offers.iter_mut().zip(&plan.output_of).filter(|(offer, output)| {
            plan.outputs[usize::from(**output)].merged.is_some()
                && offer.outcome == Outcome::Dropped(DropReason::TooLarge)
        });
        let parts: ArrayVec<_, WINDOW> = parts.map(|(offer, _)| offer).collect();
        if !parts.is_empty() {
            deliver_singly(&mut **inner, body, parts, now)?;
        }
        Ok(())
    }
}

/// Delivers frames one by one whose merged frame was too large: a guest's buffers may be smaller than usual.
fn deliver_singly<'a, 'f: 'a>(
    inner: &mut dyn Egress,
    body: Body<'_>,
    mut parts: ArrayVec<&'a mut Offer<'f>, WINDOW>,
    now: Duration,
) -> Result<(), Broken> {
    let mut again: ArrayVec<_, WINDOW> =
        parts.iter().map(|offer| Offer::new(offer.frame)).collect();
    deliver_whole(inner, body, &mut again, now)?;
    for (offer, again) in parts.iter_mut().zip(&again) {
        offer.outcome = again.outcome;
    }
    Ok(())
}

/// Delivers frames. A frame that the port takes in parts is delivered to its end at once: otherwise, frames that were sent in a merged one
/// would be offered again. That is little work, since a batch with much of it is not merged ([`is_worthwhile`]). If there is no more room for
/// a frame, its `sent` says how much of it was sent.
fn deliver_whole(
    inner: &mut dyn Egress,
    body: Body<'_>,
    offers: &mut [Offer<'_>],
    now: Duration,
) -> Result<(), Broken> {
    let mut rest = offers;
    loop {
        inner.deliver(body, rest, now)?;
        let in_parts = rest.iter().position(|o| matches!(o.outcome, Outcome::Partial { .. }));
        let Some(place) = in_parts else { return Ok(()) };
        rest = &mut rest[place..];
        if let Outcome::Partial { segments } = rest[0].outcome {
            (rest[0].sent, rest[0].outcome) = (segments, Outcome::Waiting);
        }
    }
}

/// Counts what was merged for one port. All its queues share it.
#[derive(Debug, Default)]
pub struct Counters {
    frames: AtomicU64,
    segments: AtomicU64,
}

/// TCP segments that were merged on their way out of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroStatus {
    /// Segments that were merged.
    pub segments: u64,
    /// The frames that they became.
    pub frames: u64,
}

impl GroStatus {
    /// Whether nothing was merged.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Counters {
    pub(crate) fn add(&self, GroStatus { frames, segments }: GroStatus) {
        if frames > 0 {
            self.frames.fetch_add(frames, Ordering::Relaxed);
            self.segments.fetch_add(segments, Ordering::Relaxed);
        }
    }

    /// What was counted until now.
    #[must_use]
    pub fn counts(&self) -> GroStatus {
        GroStatus {
            frames: self.frames.load(Ordering::Relaxed),
            segments: self.segments.load(Ordering::Relaxed),
        }
    }
}

/// The metrics of GRO.
pub const METRICS: &[Metric<GroStatus>] = &[
    Metric::counter(
        "pvnet_port_gro_segments",
        "TCP segments for the port that were merged",
        |gro| whole(gro.segments),
    ),
    Metric::counter(
        "pvnet_port_gro_frames",
        "Frames for the port that were merged from segments",
        |gro| whole(gro.frames),
    ),
];
