//! The state of ports: what they are, why they are down, and what they may carry.

use std::fmt;

use control_socket::{LimitStatus, MappedMemory, PortState, PortStatus, Rates, Reason};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::encode::seconds;

/// A rate of a limit: its name, its help, and its field of the status.
type LimitGauge = (&'static str, &'static str, fn(&Rates) -> Option<u64>);

const LIMITS: [LimitGauge; 2] = [
    (
        "pvnet_port_limit_bytes_per_second",
        "Bytes per second that the port may carry; absent if unlimited",
        |rates| rates.bytes_per_second,
    ),
    (
        "pvnet_port_limit_packets_per_second",
        "Packets per second that the port may carry, counted as on a wire; absent if unlimited",
        |rates| rates.packets_per_second,
    ),
];

/// A gauge of the memory that a front-end has mapped: its name, its help, and its field of the status.
type MemoryGauge = (&'static str, &'static str, fn(&MappedMemory) -> u64);

const MAPPED_MEMORY: [MemoryGauge; 2] = [
    (
        "pvnet_port_mapped_memory_bytes",
        "Memory of a virtual machine that its front-end has mapped in the daemon, with its logs",
        |memory| memory.bytes,
    ),
    (
        "pvnet_port_mapped_memory_limit_bytes",
        "The most that a front-end may have mapped in the daemon: memory_mib, and room for logs",
        |memory| memory.limit,
    ),
];

pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let (kind, one) = (ConstGauge::new(0i64).metric_type(), ConstGauge::new(1i64));
    let help = "Whether the port carries traffic";
    let mut family = encoder.encode_descriptor("pvnet_port_up", help, None, kind)?;
    for port in ports {
        let is_up = ConstGauge::new(i64::from(port.state == PortState::Up));
        is_up.encode(family.encode_family(&[("port", port.name.as_str())])?)?;
    }
    let help = "1 for each port, with its kind: guest or uplink";
    let mut family = encoder.encode_descriptor("pvnet_port_info", help, None, kind)?;
    for port in ports {
        let kind = port.kind.to_string();
        one.encode(family.encode_family(&[("port", &*port.name), ("kind", &*kind)])?)?;
    }
    let help = "1 for each port that carries no traffic, or not well, with the reason's code";
    let mut family = encoder.encode_descriptor("pvnet_port_reason", help, None, kind)?;
    for port in ports {
        if let Some(code) = port.reason.as_ref().and_then(code) {
            one.encode(family.encode_family(&[("port", &*port.name), ("reason", &*code)])?)?;
        }
    }
    for (name, help, rate) in LIMITS {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for port in ports {
            let Some(limit) = &port.limit else { continue };
            for (direction, rates) in [("ingress", &limit.ingress), ("egress", &limit.egress)] {
                let Some(rate) = rates.as_ref().and_then(rate) else { continue };
                let rate = ConstGauge::new(i64::try_from(rate).unwrap_or(i64::MAX));
                let labels = [("port", &*port.name), ("direction", direction)];
                rate.encode(family.encode_family(&labels)?)?;
            }
        }
    }
    for (name, help, bytes) in MAPPED_MEMORY {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for port in ports {
            let Some(memory) = &port.mapped_memory else { continue };
            let bytes = ConstGauge::new(i64::try_from(bytes(memory)).unwrap_or(i64::MAX));
            bytes.encode(family.encode_family(&[("port", port.name.as_str())])?)?;
        }
    }
    let help = "Packets that have passed the port's limit since it was set, counted as on a wire; absent if unlimited";
    let kind = ConstCounter::new(0u64).metric_type();
    let mut family = encoder.encode_descriptor("pvnet_port_limit_packets", help, None, kind)?;
    for port in ports {
        let Some(LimitStatus { ingress, egress, packets }) = &port.limit else { continue };
        let ingress = ingress.map(|_| ("ingress", packets.ingress));
        let egress = egress.map(|_| ("egress", packets.egress));
        for (direction, packets) in ingress.into_iter().chain(egress) {
            let labels = [("port", &*port.name), ("direction", direction)];
            ConstCounter::new(packets).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Time of workers in turns of the port's queues, also while the worker had no CPU";
    let mut family = encoder.encode_descriptor("pvnet_port_worker_seconds", help, None, kind)?;
    for port in ports {
        let time = ConstCounter::new(seconds(port.batches.worker_nanoseconds));
        time.encode(family.encode_family(&[("port", port.name.as_str())])?)?;
    }
    let help =
        "TCP frames from the port to be segmented whose checksum was not blank, and was made so";
    let name = "pvnet_port_gso_checksum_fixups";
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for port in ports {
        let fixups = ConstCounter::new(port.gso_checksum_fixups);
        fixups.encode(family.encode_family(&[("port", port.name.as_str())])?)?;
    }
    Ok(())
}

/// The code that a reason has in JSON.
fn code(reason: &Reason) -> Option<String> {
    let value = serde_json::to_value(reason).ok()?;
    value.get("code")?.as_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use control_socket::{BatchStatus, LimitedPackets, PortKind, Status};

    use super::super::{render, tests::assert_lines};
    use super::*;

    #[test]
    fn the_state_of_a_port_becomes_metrics() {
        let rates = Rates { bytes_per_second: Some(125_000), packets_per_second: None };
        let packets = LimitedPackets { ingress: 7, egress: 0 };
        let port = PortStatus {
            reason: Some(Reason::DeviceFailed("out0: deleted at 12:03:04".to_owned())),
            gso_checksum_fixups: 3,
            mapped_memory: Some(MappedMemory { bytes: 4096, limit: 1 << 30 }),
            limit: Some(LimitStatus { ingress: Some(rates), egress: None, packets }),
            batches: BatchStatus { worker_nanoseconds: 1_500_000_000, ..BatchStatus::default() },
            ..PortStatus::new("up0", PortKind::Uplink, PortState::Down)
        };
        let text = render(Status { ports: vec![port], ..Status::default() }).unwrap();
        let lines = [
            "pvnet_port_up{port=\"up0\"} 0",
            "pvnet_port_gso_checksum_fixups_total{port=\"up0\"} 3",
            "pvnet_port_info{port=\"up0\",kind=\"uplink\"} 1",
            // The code alone: each detail would be another time series.
            "pvnet_port_reason{port=\"up0\",reason=\"device_failed\"} 1",
            "pvnet_port_limit_bytes_per_second{port=\"up0\",direction=\"ingress\"} 125000",
            "pvnet_port_limit_packets_total{port=\"up0\",direction=\"ingress\"} 7",
            "pvnet_port_worker_seconds_total{port=\"up0\"} 1.5",
            "pvnet_port_mapped_memory_bytes{port=\"up0\"} 4096",
            "pvnet_port_mapped_memory_limit_bytes{port=\"up0\"} 1073741824",
        ];
        assert_lines(&text, &lines);
        assert!(!text.contains("direction=\"egress\""), "{text}");
    }
}
