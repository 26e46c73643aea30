//! A ring, as the front-end describes it message by message.

use std::fs::File;
use std::io;
use std::sync::Arc;

use virtqueue::{GuestMemory, InflightLog, Options, Queue, RingAddresses, RingSetup, SetupError};

use crate::doorbells::{Call, DoorbellError, Kick};
use crate::position::Position;

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
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            size: 0,
            at: None,
            position: Position::default(),
            kick: Arc::new(Kick::new()?),
            call: Arc::default(),
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
