//! `[[uplink]]`: a tap, and what its NIC can do.

use offload::Features;
use serde::Deserialize;

use super::limits::Limits;

/// The NIC's capabilities on transmit. `capabilities` is their names joined by `+`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Capabilities {
    /// Completes transport checksums.
    pub csum: bool,
    /// Gathers a frame from several pieces.
    pub sg: bool,
    /// Segments TCP frames beyond the MTU.
    pub tso: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { csum: true, sg: true, tso: true }
    }
}

impl Capabilities {
    /// The capabilities as a set of offloads.
    pub fn features(self) -> Features {
        let Self { csum, sg, tso } = self;
        Features { sg, csum_v4: csum, csum_v6: csum, tso_v4: tso, tso_v6: tso }
    }
}

impl TryFrom<String> for Capabilities {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut this = Self { csum: false, sg: false, tso: false };
        for name in text.split('+').filter(|_| text != "none") {
            match name.trim() {
                "csum" => this.csum = true,
                "sg" => this.sg = true,
                "tso" => this.tso = true,
                other => {
                    return Err(format!("{other:?} is not csum, sg or tso, joined by +, or none"));
                }
            }
        }
        if this.tso && !(this.csum && this.sg) {
            return Err("tso needs csum and sg: csum+sg+tso".into());
        }
        Ok(this)
    }
}

/// `receive_buffers`: the memory that frames from an uplink are read into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveBuffers {
    /// Buffers for a whole frame, reused without zeroing.
    #[default]
    Recycled,
    /// Pages zeroed for each frame, as pages that may be flipped must be.
    ZeroedPages,
}

/// `[[uplink]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// The port's name.
    pub name: String,
    /// The device's name.
    pub tap: String,
    /// The network namespace of the device; the daemon's if absent.
    pub namespace: Option<String>,
    /// Whether the device stays after the daemon ends, with its addresses and its bridge.
    #[serde(default)]
    pub persistent: bool,
    /// IP addresses for the host's end.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The NIC's capabilities on transmit.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Whether frames beyond the MTU arrive unsegmented.
    #[serde(default = "yes")]
    pub large_receive: bool,
    /// The memory that frames are read into.
    #[serde(default)]
    pub receive_buffers: ReceiveBuffers,
    /// Whether these buffers have 2 MiB pages.
    #[serde(default)]
    pub huge_pages: bool,
    /// The rates at which frames may come in and go out.
    #[serde(default)]
    pub limit: Limits,
}

fn yes() -> bool {
    true
}
