//! What all experiments say of a transfer.

use schemars::JsonSchema;
use serde::Serialize;

/// The direction of the stream, as seen from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The server sends.
    Tx,
    /// The server receives.
    Rx,
}

impl Direction {
    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        }
    }
}

/// Payload of an MTU-sized frame with TCP's usual options, in bytes. It counts as a packet, even if
/// larger frames carried it.
pub const PAYLOAD: u32 = 1448;
