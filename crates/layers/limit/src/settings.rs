//! The key `limit`: the rates at which a port may send and receive, and what operators see of them.

use port::Metric;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meter::{Limit, Meter};

/// `limit`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// From the port into the switch.
    #[serde(deserialize_with = "limit")]
    #[schemars(with = "DirectionLimits")]
    pub ingress: Limit,
    /// From the switch out of the port.
    #[serde(deserialize_with = "limit")]
    #[schemars(with = "DirectionLimits")]
    pub egress: Limit,
}

/// One direction, as in the file.
#[derive(Deserialize, JsonSchema)]
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

fn limit<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
    DirectionLimits::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
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

impl LimitStatus {
    /// The status of a port with these limits, measured by these meters; none without limits.
    #[must_use]
    pub fn new(
        Limits { ingress, egress }: Limits,
        from_port: &Meter,
        to_port: &Meter,
    ) -> Option<Self> {
        let [ingress, egress] = [ingress, egress].map(Rates::new);
        let packets = LimitedPackets { ingress: from_port.packets(), egress: to_port.packets() };
        (ingress.is_some() || egress.is_some()).then_some(Self { ingress, egress, packets })
    }

    /// The limited directions, each with a number.
    fn each(&self, number: impl Fn(Rates, u64) -> Option<u64>) -> Vec<(&'static str, u64)> {
        let Self { ingress, egress, packets } = *self;
        let both = [("ingress", ingress, packets.ingress), ("egress", egress, packets.egress)];
        let both = both.into_iter();
        both.filter_map(|(name, rates, passed)| Some((name, number(rates?, passed)?))).collect()
    }
}

impl Rates {
    fn new(limit: Limit) -> Option<Self> {
        let Limit { bytes_per_second, packets_per_second, .. } = limit;
        (!limit.is_unlimited()).then_some(Self { bytes_per_second, packets_per_second })
    }
}

/// The metrics of limits.
pub const METRICS: &[Metric<LimitStatus>] = &[
    Metric::gauge(
        "pvnet_port_limit_bytes_per_second",
        "Bytes per second that the port may carry; absent if unlimited",
        |limit| limit.each(|rates, _| rates.bytes_per_second),
    ),
    Metric::gauge(
        "pvnet_port_limit_packets_per_second",
        "Packets per second that the port may carry, counted as on a wire; absent if unlimited",
        |limit| limit.each(|rates, _| rates.packets_per_second),
    ),
    Metric::counter(
        "pvnet_port_limit_packets",
        "Packets that have passed the port's limit since it was set, counted as on a wire; absent if unlimited",
        |limit| limit.each(|_, passed| Some(passed)),
    ),
];
