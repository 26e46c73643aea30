//! What lies between a port and the switch: the guard, the limits and what merges.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The sources that a guest's frames may have. In JSON: an object with a `mode`, named as in the configuration, and the
/// `addresses`, if they are checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum GuardStatus {
    /// Any.
    Off,
    /// Its own MAC address, and any IP address.
    Mac,
    /// Its own MAC address, these IP addresses, and the link-local one of its MAC address.
    Addresses {
        /// Each an address, or a network such as `10.77.0.0/24`. May be empty.
        addresses: Vec<String>,
    },
}

/// What a port may reach, by the names of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VlanStatus {
    /// The VLAN of all its frames, which have no tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The VLANs whose frames have tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trunk: Vec<u16>,
    /// The VLAN of a trunk's frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<u16>,
    /// Whether it reaches only ports that are not isolated.
    #[serde(default)]
    pub isolated: bool,
}

/// What a port may carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitStatus {
    /// From the port into the switch; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Rates>,
    /// From the switch out of the port; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Rates>,
    /// Packets that have passed since the limits were set, counted as on a wire.
    #[serde(default)]
    pub packets: LimitedPackets,
}

/// Packets that have passed the limits of a port; of a direction without one, none are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitedPackets {
    /// From the port into the switch.
    pub ingress: u64,
    /// From the switch out of the port.
    pub egress: u64,
}

/// The most that one direction of a port carries in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Bytes of Ethernet frames; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Packets; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<u64>,
}

/// TCP segments that were merged on their way out of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroStatus {
    /// Segments that were merged.
    pub segments: u64,
    /// The frames that they became.
    pub frames: u64,
}

impl GroStatus {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{PortKind, PortState, PortStatus};

    #[test]
    fn guard_and_limits_in_json_are_readable() {
        let addresses = vec!["10.77.0.1".to_owned(), "fd00:77::/64".to_owned()];
        let rates = Rates { bytes_per_second: Some(125_000), packets_per_second: None };
        let port = PortStatus {
            guard: Some(GuardStatus::Addresses { addresses }),
            limit: Some(LimitStatus {
                ingress: Some(rates),
                egress: None,
                packets: LimitedPackets::default(),
            }),
            ..PortStatus::new("red", PortKind::Guest, PortState::Up)
        };
        let value = serde_json::to_value(&port).unwrap();
        let guard = json!({ "mode": "addresses", "addresses": ["10.77.0.1", "fd00:77::/64"] });
        assert_eq!(value["guard"], guard);
        let packets = json!({ "ingress": 0, "egress": 0 });
        let limit = json!({ "ingress": { "bytes_per_second": 125_000 }, "packets": packets });
        assert_eq!(value["limit"], limit);
        assert_eq!(serde_json::from_value::<PortStatus>(value).unwrap(), port);
        for (guard, mode) in [(GuardStatus::Off, "off"), (GuardStatus::Mac, "mac")] {
            assert_eq!(serde_json::to_value(guard).unwrap(), json!({ "mode": mode }));
        }
    }
}
