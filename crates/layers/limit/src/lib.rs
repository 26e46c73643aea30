//! Wrappers around a port that limit bytes and packets per second.
//!
//! | direction | wrapper | beyond the limit, a frame |
//! | --- | --- | --- |
//! | from the port into the switch | [`shape`] | waits in the sender's own ring |
//! | from the switch to the port | [`police`] | is dropped and counted as `rate_limit` |
//!
//! Each direction of a port has one [`Meter`], which all its queues share:
//!
//! ```
//! use limit::{Limit, Meter};
//!
//! # fn plug_in(queues: Vec<port::Queue>) -> Vec<port::Queue> {
//! let from_port = Meter::new(Limit::new(Some(125_000_000), None)); // 1 Gb/s
//! let to_port = Meter::new(Limit::new(None, Some(100_000)));
//! queues
//!     .into_iter()
//!     .map(|queue| port::Queue {
//!         ingress: limit::shape(queue.ingress, &from_port),
//!         egress: limit::police(queue.egress, &to_port),
//!     })
//!     .collect()
//! # }
//! ```
//!
//! # The token buckets
//! Bytes and packets have a bucket each. A bucket fills at the rate, up to the burst. A frame passes
//! while no bucket is empty and takes its tokens out, so the last one may leave a debt, which is
//! filled first. In any period, no more passes than the rate gives in it, a burst and one frame (for
//! shaping: one frame per queue). In the long run the rate is exact: nothing is rounded.
//!
//! Bytes are those of the Ethernet frame, without preamble and frame check sequence. A frame that is
//! yet to be segmented (TSO) counts as the packets it becomes, or a sender could evade a limit on
//! packets. Its bytes count as they are, so headers of its segments but the first are free.
//!
//! # Bursts
//! A burst is what may pass at once after a pause. A long one delays the frames of others by the
//! time it takes. A short one costs the port its rate: a worker that wakes up late finds the bucket
//! full, and what overflows is lost. [`Limit::new`] takes what the rate gives in 20 ms, and at least
//! 128 KiB (two of the largest frames) or 128 packets.
//!
//! # Shaping
//! A queue takes from the port what the buckets hold. When they are empty, it takes nothing until
//! they hold enough for a batch: what the rate gives in a millisecond, at most 256 KiB or 64
//! packets, and half a burst. So the sender finds its own ring full. Nothing is lost and nobody
//! else waits. The worker sleeps meanwhile. Queues that wait have their turns in order, a batch
//! each.
//!
//! Everything that comes from the port counts: also frames that another wrapper refuses, and
//! malformed packets, as packets without bytes.
//!
//! # Policing
//! Frames to the port never wait for its limit, since they would hold back their senders, who send
//! to other ports too. What the port itself leaves waiting or drops costs no tokens. TCP takes
//! drops as a sign to slow down and settles near the rate, if the burst is long enough for its
//! window (the rate times the round-trip time).
//!
//! # Cost
//! One or two short locks per batch, and for shaping a reading of the clock. No allocation. A
//! [limit of nothing](Limit::is_unlimited) costs nothing: the wrappers give back the port itself.

#![forbid(unsafe_code)]

mod meter;
mod policer;
mod settings;
mod shaper;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use port::{Egress, Ingress, Layer};

pub use meter::{Limit, Meter};
pub use policer::police;
pub use settings::{LimitStatus, LimitedPackets, Limits, METRICS, Rates};
pub use shaper::shape;

/// The limits of a port.
pub struct LimitLayer {
    /// Of what comes from it.
    pub from_port: Arc<Meter>,
    /// Of what goes to it.
    pub to_port: Arc<Meter>,
}

impl Layer for LimitLayer {
    fn strip_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        shaper::unshape(ingress, Instant::now)
    }

    fn strip_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress.strip(|policer::Policer { inner, .. }| inner)
    }

    fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        shape(ingress, &self.from_port)
    }

    fn wrap_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        police(egress, &self.to_port)
    }
}
