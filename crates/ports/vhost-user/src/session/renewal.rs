//! Rings that are served anew while nothing has changed for the front-end.
//!
//! A worker that sleeps in the memory of one guest may have the queue of another one in its hands for as long. That queue is made anew, and
//! what the worker still does with the old one when it wakes up must not reach the guest: its mappings are revoked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::map_part_again;
use crate::session::Session;
use crate::vring::Position;

/// Asks a session to serve its rings anew.
#[derive(Debug)]
pub struct Renewal(OwnedFd);

impl Renewal {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Asks. Never blocks.
    pub fn ask(&self) {
        // Its count cannot become so high that this fails.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether somebody has asked since the last time.
    pub(crate) fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

/// What a session waits for beside messages: its end, and a renewal.
#[derive(Debug)]
pub(crate) struct Events(OwnedFd);

impl Events {
    pub(crate) fn new(end: impl AsFd, renewal: &Renewal) -> io::Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        for event in [end.as_fd(), renewal.0.as_fd()] {
            epoll::add(&events, event, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self(events))
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Session {
    /// Serves the rings with new mappings. Whoever has the old ones reads and writes private memory from here on.
    ///
    /// # Errors
    /// A mapping cannot be made or revoked: the session must end.
    pub(crate) fn renew(&mut self) -> Result<(), String> {
        self.stop("its queues are made anew");
        for part in &mut self.parts {
            let (file, offset, len) = (&part.file, part.offset, part.range.len);
            let fresh = map_part_again(file, offset, len, &self.budget);
            let fresh = fresh.map_err(|error| error.to_string())?;
            let old = std::mem::replace(&mut part.region, fresh);
            old.revoke().map_err(|error| format!("revoking a mapping: {error}"))?;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.renew(&self.budget)?;
        }
        for ring in &mut self.rings {
            // The old queue leaves its own behind when it is dropped at last.
            let position = Position::default();
            position.set(ring.position.get());
            ring.position = position;
        }
        self.serve_ready()
    }
}
