//! Offloads of a network device: checksums, segmentation, scatter-gather.

use crate::{Namespace, Result, run};
use host::LIMIT;

/// Offloads of one device. `true` keeps the driver's default, `false` switches the offload off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums, on sending and on receiving. Without them the kernel also gives up scatter-gather and TSO.
    pub csum: bool,
    /// TCP segmentation: frames far larger than the MTU.
    pub tso: bool,
    /// The kernel's own segmentation, just before the driver.
    pub gso: bool,
    /// Scatter-gather: frames in several buffers.
    pub sg: bool,
}

impl Offloads {
    /// The drivers' defaults.
    pub const ALL: Self = Self { csum: true, tso: true, gso: true, sg: true };
    /// All off: every frame in one buffer, with its checksum, and no larger than the MTU.
    pub const NONE: Self = Self { csum: false, tso: false, gso: false, sg: false };

    /// Switches off the offloads that are `false`, at `device` in `namespace`.
    pub fn apply(&self, namespace: &Namespace, device: &str) -> Result<()> {
        let changes = self.changes();
        if changes.is_empty() {
            return Ok(());
        }
        let mut command = namespace.exec("ethtool")?;
        command.args(["-K", device]).args(changes);
        run(command, LIMIT).map(drop)
    }

    /// The arguments for `ethtool -K DEVICE`.
    fn changes(&self) -> Vec<&'static str> {
        let features = [
            (self.csum, "rx"),
            (self.csum, "tx"),
            (self.tso, "tso"),
            (self.gso, "gso"),
            (self.sg, "sg"),
        ];
        features.into_iter().filter(|(on, _)| !on).flat_map(|(_, name)| [name, "off"]).collect()
    }
}

impl Default for Offloads {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_off_is_touched() {
        assert!(Offloads::ALL.changes().is_empty());
        assert_eq!(Offloads { tso: false, ..Offloads::ALL }.changes(), ["tso", "off"]);
        assert_eq!(Offloads::NONE.changes().join(" "), "rx off tx off tso off gso off sg off");
    }
}
