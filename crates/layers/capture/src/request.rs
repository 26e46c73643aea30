//! What an operator asks for, as the control socket carries it.

use port::FRAME_MAX;
use serde::{Deserialize, Serialize};

/// A request for a capture: where, and what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// The port's name: a guest's or an uplink's.
    pub port: String,
    /// What to capture there.
    #[serde(default)]
    pub options: Options,
}

/// What to capture at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Most bytes recorded per packet; 0 for whole packets, as tcpdump has it.
    pub snaplen: u32,
    /// Whether frames to be segmented are recorded as their segments.
    pub segmented: bool,
    /// After how many packets the capture ends. Without it, there is no limit.
    pub count: Option<u64>,
    /// The text of a [`Filter`](crate::Filter); empty for every frame.
    pub filter: String,
}

impl Options {
    /// Most bytes recorded per packet.
    pub(crate) fn snaplen(&self) -> usize {
        match usize::try_from(self.snaplen) {
            Ok(0) | Err(_) => FRAME_MAX,
            Ok(len) => len.min(FRAME_MAX),
        }
    }
}
