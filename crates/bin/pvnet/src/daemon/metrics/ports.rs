//! The state of ports: what they are, why they are down, and what they may carry.

use std::fmt;

use control_socket::{PortStatus, Reason};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::encode::seconds;

pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let (kind, one) = (ConstGauge::new(0i64).metric_type(), ConstGauge::new(1i64));
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
    let kind = ConstCounter::new(0u64).metric_type();
    let help = "Time of workers in turns of the port's queues, also while the worker had no CPU";
    let mut family = encoder.encode_descriptor("pvnet_port_worker_seconds", help, None, kind)?;
    for port in ports {
        let time = ConstCounter::new(seconds(port.batches.worker_nanoseconds));
        time.encode(family.encode_family(&[("port", port.name.as_str())])?)?;
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
    use control_socket::{
        BatchStatus, LimitStatus, LimitedPackets, MappedMemory, PortKind, PortState, Rates, Status,
    };

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
