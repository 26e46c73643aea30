//! What a worker does for a port: it carries frames, or serves a task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use port::{Armed, Broken, Event, Rewrap, Task};

use crate::carry::IngressQueue;
use crate::port::Port;
use crate::wake_ups::WakeUps;

/// A task rests for this many times as long as its step took. A guest sets its pace, and frames are
/// more urgent: so a task has at most a tenth of a worker.
const TASK_REST: u32 = 9;

/// What a worker does for a port.
pub(crate) enum Work {
    /// Carries the frames of a queue, and gets the events of room in the other direction.
    Carry {
        queue: usize,
        ingress: IngressQueue,
        wake_ups: Option<WakeUps>,
    },
    Serve(Box<dyn Task>),
    /// Nothing any more.
    Nothing,
}

impl Work {
    /// Wraps a queue anew.
    pub(crate) fn rewrap(&mut self, rewrap: &dyn Rewrap) {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Carry { queue, ingress, wake_ups } => {
                Self::Carry { queue, ingress: ingress.rewrap(rewrap), wake_ups }
            }
            other => other,
        };
    }

    /// What it is, for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Carry { .. } => "queue",
            Self::Serve(_) => "task",
            Self::Nothing => "nothing",
        }
    }

    /// Prepares to wait for work.
    pub(crate) fn arm(&mut self) -> Result<Armed, Broken> {
        match self {
            Self::Carry { ingress, .. } => ingress.ingress().arm(),
            Self::Serve(task) => task.arm(),
            Self::Nothing => Ok(Armed::Asleep),
        }
    }

    /// Whether another turn would find nothing before the next event.
    pub(crate) fn is_drained(&self) -> bool {
        matches!(self, Self::Carry { ingress, .. } if ingress.is_drained())
    }

    /// Whether it is a queue with no frame in hand.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Carry { ingress, .. } if ingress.is_empty())
    }

    /// What a queue or a task does after a turn in which it worked.
    pub(crate) fn after_turn(&self, began: Instant) -> Armed {
        match self {
            Self::Carry { .. } | Self::Nothing => Armed::Ready,
            Self::Serve(_) => {
                let now = Instant::now();
                Armed::Until(now + (now - began) * TASK_REST)
            }
        }
    }

    /// Frames were taken.
    pub(crate) fn worked(&mut self, frames: usize) {
        if let Self::Carry { wake_ups: Some(wake_ups), .. } = self {
            wake_ups.worked(frames);
        }
    }

    /// Whether it may stay active without work while its worker has some elsewhere.
    pub(crate) fn may_linger(&self) -> bool {
        matches!(self, Self::Carry { wake_ups: None, .. })
    }

    /// How long its worker pauses before it listens to its events again; none if the next frame wakes it.
    pub(crate) fn pause(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Self::Carry { wake_ups: Some(wake_ups), .. } => Some(now + wake_ups.pause(now)?),
            _ => None,
        }
    }

    /// When there must be another turn while frames wait, even without an event.
    pub(crate) fn due(&self) -> Option<Duration> {
        match self {
            Self::Carry { ingress, .. } => ingress.due(),
            Self::Serve(_) | Self::Nothing => None,
        }
    }

    /// The egress queue of whose room it hears.
    pub(crate) fn room_of(&self) -> Option<usize> {
        match self {
            Self::Carry { queue, .. } => Some(*queue),
            Self::Serve(_) | Self::Nothing => None,
        }
    }

    /// What announces work.
    pub(crate) fn events(&mut self, port: &Port) -> Vec<Arc<dyn Event>> {
        match self {
            Self::Carry { queue, ingress, .. } => {
                let frames = ingress.ingress().event();
                std::iter::once(frames).chain(port.room_event(*queue)).collect()
            }
            Self::Serve(task) => vec![task.event()],
            Self::Nothing => Vec::new(),
        }
    }
}
