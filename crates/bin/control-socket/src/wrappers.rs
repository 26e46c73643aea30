//! What a port may reach.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use guard::GuardStatus;
    use limit::{LimitStatus, LimitedPackets, Rates};
    use serde_json::json;

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
