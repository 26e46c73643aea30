//! How a port's flows are spread over its queues, published while workers deliver.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use frame::Steering;

/// The steering of a port: none until its guest has asked for one. Workers read it without a lock.
#[derive(Default)]
pub struct SteeringCell {
    steering: ArcSwapOption<Steering>,
    /// Whether there is one. Where a guest has asked for none, a worker reads only this.
    is_some: AtomicBool,
}

/// The steering of a port, as it was when this was taken.
#[derive(Default)]
pub struct SteeringGuard(Option<Guard<Option<Arc<Steering>>>>);

impl SteeringCell {
    /// Replaces the steering. Frames that are being delivered may still use the earlier one.
    pub fn publish(&self, steering: Option<Steering>) {
        let is_some = steering.is_some();
        self.steering.store(steering.map(Arc::new));
        self.is_some.store(is_some, Ordering::Release);
    }

    /// The steering, for one batch of frames.
    #[inline]
    #[must_use]
    pub fn load(&self) -> SteeringGuard {
        match self.is_some.load(Ordering::Acquire) {
            true => SteeringGuard(Some(self.steering.load())),
            false => SteeringGuard(None),
        }
    }
}

impl SteeringGuard {
    /// The steering; none if the datapath decides.
    #[inline]
    #[must_use]
    pub fn steering(&self) -> Option<&Arc<Steering>> {
        self.0.as_ref().and_then(|steering| steering.as_ref())
    }
}

impl fmt::Debug for SteeringCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeringCell").field("is_some", &self.is_some).finish_non_exhaustive()
    }
}
