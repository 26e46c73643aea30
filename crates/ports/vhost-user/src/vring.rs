//! A ring, as the front-end describes it message by message, and where it is continued.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use virtqueue::{GuestMemory, InflightLog, Options, Queue, RingAddresses, RingSetup, SetupError};

use crate::doorbells::{Call, DoorbellError, HeldUp, Kick};

/// A ring's state.
#[derive(Debug)]
pub(crate) struct Vring {
    pub(crate) size: u32,
    pub(crate) at: Option<RingAddresses>,
    pub(crate) position: Position,
    pub(crate) kick: Arc<Kick>,
    pub(crate) call: Arc<Call>,
    /// Whether the front-end has started it: it sent a kick descriptor, or said that there is none.
    pub(crate) is_started: bool,
    pub(crate) is_enabled: bool,
    /// The kick's count when the ring was started.
    pub(crate) kicks: Option<u64>,
}

impl Vring {
    /// A ring that is not started.
    pub(crate) fn new(held_up: HeldUp) -> io::Result<Self> {
        Ok(Self {
            size: 0,
            at: None,
            position: Position::default(),
            kick: Arc::new(Kick::new()?),
            call: Arc::new(Call::of(held_up)),
            is_started: false,
            is_enabled: false,
            kicks: None,
        })
    }

    /// Starts it: the front-end has sent a descriptor for the guest's announcements, or said that there is none.
    pub(crate) fn start(&mut self, kick: Option<File>) -> Result<(), DoorbellError> {
        self.is_started = true;
        self.kick.set(kick)?;
        self.kicks = self.kick.count();
        Ok(())
    }

    /// Whether the guest has announced something since the ring was started.
    pub(crate) fn was_kicked(&self) -> bool {
        self.kick.count() > self.kicks
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_started && self.is_enabled && self.at.is_some()
    }

    /// The device's end of it.
    pub(crate) fn open(
        &self,
        memory: &Arc<GuestMemory>,
        options: Options,
        log: Option<InflightLog>,
    ) -> Result<Queue, SetupError> {
        let (at, size) = (self.at.unwrap_or_default(), self.size);
        let setup = RingSetup { at, size, position: self.position.get(), options };
        Queue::with_log(memory.clone(), setup, log)
    }
}

impl Drop for Vring {
    /// Others have both for a moment longer: workers, and the watchdog, which holds a lock of all sessions. None of them may be the one to close the
    /// front-end's descriptors (see [`Call`]).
    fn drop(&mut self) {
        // Without a new descriptor it fails only if the old one cannot be unwatched; that one is closed then too.
        let _ = (self.call.set(None), self.kick.set(None));
    }
}

/// Where the next device continues a ring, see [`Queue::position`]. A queue leaves it here when it is dropped.
#[derive(Clone, Debug, Default)]
pub struct Position(Arc<AtomicU32>);

impl Position {
    /// The position.
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it.
    pub fn set(&self, position: u32) {
        self.0.store(position, Ordering::Release);
    }
}

/// A queue that leaves its position behind.
#[derive(Debug)]
pub(crate) struct Continued {
    pub(crate) queue: Queue,
    position: Position,
}

impl Continued {
    pub(crate) fn new(queue: Queue, position: Position) -> Self {
        Self { queue, position }
    }

    /// Chains were published: a device in the place of this one goes on behind them, also if this one is never dropped.
    #[inline]
    pub(crate) fn note_position(&self) {
        self.position.set(self.queue.position());
    }
}

impl Drop for Continued {
    fn drop(&mut self) {
        self.note_position();
    }
}
