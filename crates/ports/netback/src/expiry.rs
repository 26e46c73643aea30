//! The time limit of granted buffers.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::GuestCopies;
use port::{Armed, Broken, Doorbell, Event, Task};

/// How long a guest may take to copy. After that it loses the frame, and the uplink has its buffer
/// again.
pub const COPY_LIMIT: Duration = Duration::from_secs(1);

/// Revokes what the guest has not copied in time.
///
/// It looks twice per limit, also while nothing is granted: an event per grant would cost more.
pub(crate) struct Expiry {
    copies: Vec<Arc<dyn GuestCopies>>,
    /// Never rung.
    event: Arc<Doorbell>,
    next: Instant,
}

impl Expiry {
    /// For the queues of one frontend.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(crate) fn new(copies: Vec<Arc<dyn GuestCopies>>) -> io::Result<Self> {
        let next = Instant::now() + COPY_LIMIT / 2;
        Ok(Self { copies, event: Arc::new(Doorbell::new()?), next })
    }
}

impl Task for Expiry {
    fn event(&self) -> Arc<dyn Event> {
        self.event.clone()
    }

    fn step(&mut self) -> Result<bool, Broken> {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + COPY_LIMIT / 2;
            for copies in &self.copies {
                copies.expire(COPY_LIMIT);
            }
        }
        Ok(false)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Until(self.next))
    }
}
