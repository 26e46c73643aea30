//! Guests' pages that stay mapped, as metrics of their ports.

use std::fmt;

use control_socket::{KeptPages, PortStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// A counter: its name, its help, and its field of the status.
type KeptPagesCounter = (&'static str, &'static str, fn(&KeptPages) -> u64);

const COUNTERS: [KeptPagesCounter; 3] = [
    ("pvnet_port_grant_hits", "Look-ups of a page that found it mapped", |pages| pages.hits),
    ("pvnet_port_grant_misses", "Look-ups of a page that did not find it mapped", |pages| {
        pages.misses
    }),
    ("pvnet_port_grant_evictions", "Mapped pages that lost their place to others", |pages| {
        pages.evictions
    }),
];

/// Encodes them for the ports that have them.
pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let kept = ports.iter().filter_map(|port| Some((port, port.persistent_grants.as_ref()?)));
    let kept: Vec<_> = kept
        .flat_map(|(port, grants)| [("tx", &grants.tx), ("rx", &grants.rx)].map(|of| (port, of)))
        .collect();
    if kept.is_empty() {
        return Ok(());
    }
    for (name, help, value) in COUNTERS {
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (port, (direction, pages)) in &kept {
            let labels = [("port", port.name.as_str()), ("direction", *direction)];
            ConstCounter::new(value(pages)).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "The guest's pages that stay mapped now: the active set";
    let kind = ConstGauge::new(0i64).metric_type();
    let mut family = encoder.encode_descriptor("pvnet_port_mapped_pages", help, None, kind)?;
    for (port, (direction, pages)) in &kept {
        let labels = [("port", port.name.as_str()), ("direction", *direction)];
        let mapped = i64::try_from(pages.mapped).unwrap_or(i64::MAX);
        ConstGauge::new(mapped).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
