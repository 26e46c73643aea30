//! What the command line says of an interface.

use offload::Features;

/// Options of an interface, on either platform.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name for the stack.
    pub device: String,
    /// Queues; as many as there are CPUs if absent.
    pub queues: Option<u32>,
    /// Its addresses; those of the toolstack if absent.
    pub addresses: Option<Vec<String>>,
    /// Offloads that it does without.
    pub without: Features,
    /// One event channel for both rings.
    pub one_event_channel: bool,
    /// Headers stay in their frames' pages.
    pub no_header_channel: bool,
    /// The daemon keeps no pages mapped.
    pub no_persistent_grants: bool,
}
