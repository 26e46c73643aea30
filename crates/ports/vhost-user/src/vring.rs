//! A ring, as the front-end describes it message by message.

use std::io;
use std::sync::Arc;

use virtqueue::{GuestMemory, InflightLog, Options, Queue, RingAddresses, SetupError};

use crate::doorbells::{Call, Kick};
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
        })
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
        let at = self.at.unwrap_or_default();
        Queue::with_log(memory.clone(), at, self.size, self.position.get(), options, log)
    }
}
