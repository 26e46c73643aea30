//! The key `limit`: the rates at which a port may send and receive.

use serde::Deserialize;

use crate::meter::Limit;

/// `limit`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// From the port into the switch.
    #[serde(deserialize_with = "limit")]
    pub ingress: Limit,
    /// From the switch out of the port.
    #[serde(deserialize_with = "limit")]
    pub egress: Limit,
}

/// One direction, as in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectionLimits {
    /// 10⁶ bits per second.
    mbps: Option<u64>,
    /// Packets per second.
    packets: Option<u64>,
    burst_kib: Option<u64>,
    burst_packets: Option<u64>,
}

const BYTES_PER_MEGABIT: u64 = 125_000;
/// A terabit per second.
const MBPS_MAX: u64 = 1_000_000;
const PACKETS_MAX: u64 = 1_000_000_000;
/// A gibibyte.
const BURST_KIB_MAX: u64 = 1 << 20;
const BURST_PACKETS_MAX: u64 = 1 << 20;

impl TryFrom<DirectionLimits> for Limit {
    type Error = String;

    fn try_from(direction: DirectionLimits) -> Result<Self, String> {
        let DirectionLimits { mbps, packets, burst_kib, burst_packets } = direction;
        for (key, value, max) in [
            ("mbps", mbps, MBPS_MAX),
            ("packets", packets, PACKETS_MAX),
            ("burst_kib", burst_kib, BURST_KIB_MAX),
            ("burst_packets", burst_packets, BURST_PACKETS_MAX),
        ] {
            if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
                let default = if key.starts_with("burst") { "the default" } else { "no limit" };
                return Err(format!(
                    "{key} is {value}, not 1 to {max}; for {default} leave it out"
                ));
            }
        }
        for (burst, rate, is_alone) in [
            ("burst_kib", "mbps", burst_kib.is_some() && mbps.is_none()),
            ("burst_packets", "packets", burst_packets.is_some() && packets.is_none()),
        ] {
            if is_alone {
                return Err(format!("{burst} needs {rate}, because it is the burst of that rate"));
            }
        }
        let limit = Limit::new(mbps.map(|mbps| mbps * BYTES_PER_MEGABIT), packets);
        Ok(Limit {
            burst_bytes: burst_kib.map_or(limit.burst_bytes, |kib| kib * 1024),
            burst_packets: burst_packets.unwrap_or(limit.burst_packets),
            ..limit
        })
    }
}

fn limit<'de, D>(deserializer: D) -> Result<Limit, D::Error>
where
    D: serde::Deserializer<'de>,
{
    DirectionLimits::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
}
