//! What operators see of a port's limits.

use port::Metric;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meter::{Limit, Meter};
use crate::settings::Limits;

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
    /// That of a port whose directions are measured by these; none without limits.
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

    /// The directions that are limited, with a number of each.
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

/// What is counted of limits.
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
