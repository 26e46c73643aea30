//! What a device can do with frames that are sent to it.

use offload::Features;
use schemars::JsonSchema;
use serde::Deserialize;

/// The NIC's capabilities on transmit. `capabilities` is their names joined by `+`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Capabilities {
    /// Completes transport checksums.
    pub csum: bool,
    /// Gathers a frame from several fragments.
    pub sg: bool,
    /// Segments TCP frames beyond the MTU.
    pub tso: bool,
    /// Segments UDP frames beyond the MTU. A device whose kernel cannot say so has it not.
    pub uso: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { csum: true, sg: true, tso: true, uso: true }
    }
}

impl Capabilities {
    /// The capabilities as a set of offloads.
    pub fn features(self) -> Features {
        let Self { csum, sg, tso, uso } = self;
        Features {
            sg,
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: tso,
            tso_v6: tso,
            uso_v4: uso,
            uso_v6: uso,
            tagged: csum,
        }
    }
}

impl TryFrom<String> for Capabilities {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut this = Self { csum: false, sg: false, tso: false, uso: false };
        for name in text.split('+').filter(|_| text != "none") {
            match name.trim() {
                "csum" => this.csum = true,
                "sg" => this.sg = true,
                "tso" => this.tso = true,
                "uso" => this.uso = true,
                other => {
                    return Err(format!(
                        "{other:?} is not csum, sg, tso or uso, joined by +, or none"
                    ));
                }
            }
        }
        if (this.tso || this.uso) && !(this.csum && this.sg) {
            return Err("tso and uso need csum and sg: csum+sg+tso+uso".into());
        }
        Ok(this)
    }
}
