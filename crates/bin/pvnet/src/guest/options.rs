//! Command-line options of an interface.

use offload::Features;

/// Options of an interface, on either platform.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name for the stack.
    pub device: String,
    /// The most queues; one per CPU if absent.
    pub queues: Option<u32>,
    /// Its addresses; the toolstack's if absent.
    pub addresses: Option<Vec<String>>,
    /// Offloads that it does not use.
    pub without: Features,
    /// One event channel for both rings.
    pub one_event_channel: bool,
    /// Headers stay in the frames' pages.
    pub no_header_channel: bool,
    /// The daemon keeps no pages mapped.
    pub no_persistent_grants: bool,
}
