//! What guests copy themselves, as metrics of their ports.

use std::fmt;

use control_socket::{GuestCopyStatus, PortStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// A counter: its name, its help, and its field of the status.
type GuestCopyCounter = (&'static str, &'static str, fn(&GuestCopyStatus) -> u64);

const COUNTERS: [GuestCopyCounter; 5] = [
    ("pvnet_port_guest_copy_expired", "Buffers that the guest did not copy in time", |c| c.expired),
    ("pvnet_port_guest_copy_hypercalls", "Hypercalls in which the guest copied", |c| c.hypercalls),
    ("pvnet_port_guest_copies", "Copies that the guest's hypercalls did", |c| c.copies),
    ("pvnet_port_guest_copied_bytes", "Bytes that the guest's hypercalls copied", |c| c.bytes),
    ("pvnet_port_guest_copies_refused", "Copies of the guest that were refused", |c| c.refused),
];

/// Encodes them for the ports that have them.
pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let copiers = || ports.iter().filter_map(|port| Some((port, port.guest_copy.as_ref()?)));
    if copiers().next().is_none() {
        return Ok(());
    }
    for (name, help, value) in COUNTERS {
        let kind = ConstCounter::new(0u64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (port, copies) in copiers() {
            let labels = [("port", port.name.as_str())];
            ConstCounter::new(value(copies)).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Buffers that are granted to the guest and not copied yet";
    let kind = ConstGauge::new(0i64).metric_type();
    let mut family = encoder.encode_descriptor("pvnet_port_granted_buffers", help, None, kind)?;
    for (port, copies) in copiers() {
        let labels = [("port", port.name.as_str())];
        let granted = i64::try_from(copies.granted).unwrap_or(i64::MAX);
        ConstGauge::new(granted).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
